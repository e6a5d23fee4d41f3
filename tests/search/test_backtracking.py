"""Taking steps back: by hand on lakes of one hole, and what is forbidden, counted and refused."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.language.collect import make_dialogue_evaluator
from jaxagents.language.verifiers import make_distance_verifier
from jaxagents.search.backtracking import make_backtracking, make_backtracking_evaluator

KEY = jax.random.key(5)
RIGHT_THEN_DOWN = jnp.array([-30.0, 27.0, 30.0, -30.0])  # Left, down, right, up: right in 19 of 20 draws.
LEFT_ALONE = jnp.array([30.0, -30.0, -30.0, -30.0])


def search(lake, policy, params, *, holes, goal, start=0, size=4, **options):
    """Searches one lake four times, in rows of their own; cells are numbered row by row."""
    holes = np.isin(np.arange(16).reshape(4, 4), holes)
    task = {"holes": holes, "start": start, "goal": goal, "size": size, "level": 0}
    task = {name: jnp.repeat(jnp.asarray(value)[None], 4, axis=0) for name, value in task.items()}
    play = jax.jit(make_backtracking(lake, policy, **options))
    return {name: np.asarray(value) for name, value in play(params, KEY, jnp.arange(4), task).items()}


@pytest.mark.exhaustive
def test_a_step_into_a_hole_is_taken_back_and_another_one_tried(lake, wanderer):
    """The hole is to the right, the goal below: two steps of two branches, unless the first step is down already."""
    results = search(lake, wanderer, RIGHT_THEN_DOWN, holes=[1], goal=4, max_draws=400)
    assert results["success"].all() and 2.0 in results["branches"]
    assert set(results["branches"]) <= {1.0, 2.0}
    np.testing.assert_array_equal(results["episode_length"], results["branches"])


@pytest.mark.parametrize(
    ("options", "length", "branches"),
    [
        ({"num_branches": 1}, 1, 1),  # Never goes back.
        ({"restart": True}, 3, 3),  # Three attempts, each a step long.
        ({"restart": True, "max_steps": 2}, 2, 3),  # The third one has no step left.
        ({"max_draws": 1}, 3, 3),  # Forbidden actions are not asked for again.
    ],
)
def test_without_another_action_it_fails(lake, wanderer, options, length, branches):
    always_right = jnp.array([-60.0, -60.0, 60.0, -60.0])
    results = search(lake, wanderer, always_right, holes=[1], goal=4, **options)
    assert not results["success"].any()
    np.testing.assert_array_equal(results["episode_length"], [length] * 4)
    np.testing.assert_array_equal(results["branches"], [branches] * 4)


def test_the_same_step_from_the_same_situation_went_wrong(lake, wanderer):
    """A wall to the left: the second step is like the first one, and so is every one after it, until none is left."""
    results = search(lake, wanderer, LEFT_ALONE, holes=[], goal=15, num_branches=3, max_draws=2)
    # The first step, two that are taken back, then the rest of an episode of six.
    np.testing.assert_array_equal(results["branches"], [3.0] * 4)
    np.testing.assert_array_equal(results["episode_length"], [8.0] * 4)
    results = search(lake, wanderer, LEFT_ALONE, holes=[], goal=15, num_branches=3, restart=True)
    np.testing.assert_array_equal(results["episode_length"], [18.0] * 4)


@pytest.mark.exhaustive
def test_a_judge_takes_back_steps_that_the_world_does_not_mind(lake, wanderer):
    """From the corner, left stays there and is judged; down or right is 1.0 closer."""
    walk = jnp.array([27.0, 29.0, 30.0, -30.0])
    options = {"holes": [], "goal": 5, "num_branches": 40, "max_draws": 400, "judge": make_distance_verifier}
    results = search(lake, wanderer, walk, **options)
    np.testing.assert_array_equal(results["success"], [1.0] * 4)
    np.testing.assert_array_equal(results["episode_length"], 1.0 + results["branches"])  # Two steps, and those undone.
    knows_nothing = partial(make_distance_verifier, noise=1.0)  # The other way round: every good step is taken back.
    inverted = search(lake, wanderer, walk, **options | {"judge": knows_nothing, "num_branches": 3})
    np.testing.assert_array_equal(inverted["branches"], [3.0] * 4)


@pytest.mark.exhaustive
def test_one_branch_is_the_episode_itself(lake, wanderer):
    """Success and length of random walks agree with those of the evaluation without going back, within chance."""
    evaluate = partial(make_backtracking_evaluator, lake, wanderer, num_episodes=512)
    once, thrice, retried = (
        {name: float(x.mean()) for name, x in jax.jit(evaluate(**options))(jnp.zeros(4), KEY).items()}
        for options in ({"num_branches": 1}, {"num_branches": 3}, {"num_branches": 3, "restart": True})
    )
    plain = jax.jit(make_dialogue_evaluator(lake, wanderer, num_episodes=512, greedy=False))(jnp.zeros(4), KEY)
    assert once["success"] == pytest.approx(float(plain["success"].mean()), abs=0.09)
    assert once["episode_length"] == pytest.approx(float(plain["episode_length"].mean()), abs=0.5)
    assert thrice["success"] > once["success"] + 0.03 and retried["success"] > once["success"] + 0.03


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_branches": 0}, "`num_branches` must be a positive number, got 0"),
        ({"greedy": True}, "`greedy` must be false where another action is tried"),
        ({"context": None}, "`policy.context_turns` must be 1 to go back, got 6"),
    ],
)
def test_refused(lake, speak, options, message):
    policy = speak(lake, context_turns=options.pop("context", 1), prompt=False)
    with pytest.raises(ValueError, match=message):
        make_backtracking_evaluator(lake, policy, num_episodes=2, **options)
