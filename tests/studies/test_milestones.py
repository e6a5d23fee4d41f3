"""Milestones by hand, and attempts of a policy."""

import jax.numpy as jnp
import pytest

from jaxagents.environments.text import crafting, guess_number
from jaxagents.studies.milestones import grade, run

FIRST = jnp.array([2.0, 4.0, 3.0])
LEAST = jnp.array([[0.0, 1.0], [3.0, 1.0], [jnp.inf, 3.0]])  # Of the last task, a mistake ends the first attempt.
SUCCESS = jnp.array([[True, False], [False, False], [False, False]])


def test_milestones_are_shares_of_the_way():
    # Shares of the way: 1 and 1/2; 1/4 and 3/4; 0 and 0.
    expected = {
        "success": 1 / 3,
        "milestones": (1 + 1 / 4 + 0) / 3,
        "success_best": 1 / 3,
        "milestones_best": (1 + 3 / 4 + 0) / 3,
        "gap": 0.0,
        "milestones_gap": 1 / 2 / 3,
        "partial": 1 / 3,
        "success_hard": 0.0,  # Of the tasks 4 and 3 away.
        "milestones_hard": 1 / 8,
    }
    graded = grade(FIRST, LEAST, SUCCESS)
    assert {name: float(value) for name, value in graded.items()} == pytest.approx(expected)


def test_more_attempts_elicit_more():
    graded = grade(FIRST, LEAST[:, ::-1], SUCCESS[:, ::-1])
    assert float(graded["success"]) == 0.0 and float(graded["gap"]) == pytest.approx(1 / 3)
    assert float(graded["milestones"]) == pytest.approx((1 / 2 + 3 / 4) / 3)


def test_a_policy_attempts_held_out_tasks(speak, params_of):
    world = crafting.make_environment((1,), max_steps=4)
    policy = speak(world, context_turns=1)
    graded = run(0, environment=world, policy=policy, params=params_of(policy), num_tasks=4, num_attempts=2)
    assert graded["success"] <= graded["success_best"] <= 1.0
    assert graded["success"] <= graded["milestones"] <= graded["milestones_best"] <= 1.0


def test_the_distance_must_be_known():
    with pytest.raises(ValueError, match="must know the distance to the goal, got 'guess_number'"):
        run(0, environment=guess_number.make_environment(), policy=None, params=None)
