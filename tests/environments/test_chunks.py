"""Several actions at once: what they earn, where they end, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments import tabletop, tmaze
from jaxagents.environments.chunks import chunked

KEY = jax.random.key(0)
RIGHT = jnp.tile(jnp.array([1.0, 0.0]), 4)


def reach(goal, *, length=4, discount=0.5, **options):
    """A pusher at 0.2 that goes 0.08 to the right per step, without discs."""
    world = tabletop.make_environment(num_discs=0, max_steps=8, **options)
    places = {"pushers": jnp.array([[0.2, 0.5]]), "goals": jnp.array([[goal, 0.5]])}
    environment = chunked(world, length=length, discount=discount)
    return environment, world.sample_task(KEY) | places


def test_rewards_are_discounted_within_a_chunk_and_end_with_the_episode():
    environment, task = reach(0.44, progress_reward=1.0)
    state, timestep = environment.reset(KEY, task)
    assert environment.action_space.shape == (8,) and environment.max_steps == 2
    assert int(timestep.info["metrics"]["num_steps"]) == 0
    state, timestep = jax.jit(environment.step)(KEY, state, RIGHT)
    # The goal is 0.24 away: 0.16 and 0.08 are left, then it is there; the fourth action is not executed.
    np.testing.assert_allclose(timestep.reward, 0.08 + 0.08 / 2 + (0.08 + 1.0) / 4, rtol=1e-5)
    assert timestep.terminated and not timestep.truncated and timestep.info["success"]
    assert int(timestep.info["metrics"]["num_steps"]) == 3
    np.testing.assert_allclose(timestep.observation[:2], [0.44, 0.5], rtol=1e-5)
    after, again = environment.step(KEY, state, -RIGHT)
    assert float(again.reward) == 0.0 and int(again.info["metrics"]["num_steps"]) == 3
    np.testing.assert_array_equal(again.observation, timestep.observation)


def test_the_time_limit_ends_with_a_chunk():
    environment, task = reach(0.9)
    state, _ = environment.reset(KEY, task)
    state, middle = environment.step(KEY, state, RIGHT)
    assert not middle.truncated and int(middle.info["metrics"]["num_steps"]) == 4
    np.testing.assert_allclose(middle.observation[:2], [0.52, 0.5], rtol=1e-5)
    state, last = environment.step(KEY, state, -RIGHT)
    assert last.truncated and not last.terminated and int(last.info["metrics"]["num_steps"]) == 8
    np.testing.assert_allclose(last.observation[:2], [0.2, 0.5], rtol=1e-5)


def test_chunks_of_one_are_steps():
    environment, task = reach(0.9, length=1)
    state, _ = environment.reset(KEY, task)
    inner, timestep = tabletop.make_environment(num_discs=0, max_steps=8).reset(KEY, task)
    world = tabletop.make_environment(num_discs=0, max_steps=8)
    for _ in range(3):
        state, ours = environment.step(KEY, state, RIGHT[:2])
        inner, timestep = world.step(KEY, inner, RIGHT[:2])
        np.testing.assert_array_equal(ours.observation, timestep.observation)
        assert ours.reward == timestep.reward


def test_bad_settings_are_refused():
    world = tabletop.make_environment(max_steps=40)
    with pytest.raises(
        ValueError, match="`length` must be at least 1 and divide the time limit of 40 steps, got 7; try 8"
    ):
        chunked(world, length=7)
    with pytest.raises(ValueError, match="`discount` must be in \\[0, 1\\], got 1.5; try 0.99"):
        chunked(world, length=8, discount=1.5)
    with pytest.raises(ValueError, match="`environment` must have one agent and actions in a Box of rank 1"):
        chunked(tmaze.make_environment((1, 2)), length=2)
