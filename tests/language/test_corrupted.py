"""Evaluation after random first turns: the walk is admissible, and a policy that acts at random loses nothing by it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import crafting
from jaxagents.language.corrupted import make_corrupted_evaluator, random_actions

KEY = jax.random.key(5)


@pytest.mark.slow
def test_random_actions_are_admissible_in_the_states_that_they_lead_to():
    world = crafting.make_environment((1,), informative=False)
    task = world.sample_task(KEY)
    start = world.reset(KEY, task)
    walk = jax.jit(lambda key: random_actions(world, key, start, 4))(KEY)
    state = start[0]
    for action in walk:
        state, timestep = world.step(KEY, state, action)
        assert timestep.info["valid"] and np.asarray(action)[0] >= 0
    assert len({tuple(row) for row in np.asarray(walk).tolist()}) > 1


def test_results_are_those_of_the_tasks_as_they_are_and_success_after_the_walk(lake, wanderer):
    evaluate = make_corrupted_evaluator(lake, wanderer, num_episodes=64, num_corrupted=6, greedy=False)
    params = jnp.array([0.0, 1.0, 1.0, 0.0])
    results = jax.jit(evaluate)(params, KEY)
    assert results["corrupted_success"].shape == results["success"].shape == (64,)
    # All six turns are random: what the policy prefers does not matter.
    other = jax.jit(evaluate)(-params, KEY)
    np.testing.assert_array_equal(other["corrupted_success"], results["corrupted_success"])
    assert (np.asarray(other["success"]) != np.asarray(results["success"])).any()


def test_refused(lake, wanderer):
    with pytest.raises(ValueError, match="`num_corrupted` must be a positive number, got 0"):
        make_corrupted_evaluator(lake, wanderer, num_episodes=2, num_corrupted=0)
