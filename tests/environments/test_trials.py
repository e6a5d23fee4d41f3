"""Trials of several episodes and the bandit they are of, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments import bernoulli_bandit, coordination, tmaze
from jaxagents.environments.trials import make_trials

KEY = jax.random.key(0)
UP_TASK = {"goal": jnp.int32(tmaze.UP), "corridor_length": jnp.int32(1)}


def test_a_trial_is_several_episodes_of_one_task():
    world = make_trials(tmaze.make_environment(1), num_episodes=2)
    assert world.observation_space.shape == (5,) and world.max_steps == 12
    state, timestep = world.reset(KEY, UP_TASK)
    shown, paid, ends = [timestep.observation.tolist()], [], []
    for action in (tmaze.FORWARD, tmaze.DOWN, tmaze.FORWARD, tmaze.UP, tmaze.UP):
        state, timestep = world.step(KEY, state, jnp.int32(action))
        shown.append(timestep.observation.tolist())
        paid.append(float(timestep.reward))
        ends.append(bool(timestep.terminated))
    # The cue, the junction, the cue of the next episode and that one is over, the junction, the end, which stays.
    cue, junction = [1, 0, 0, 0], [0, 0, 0, 1]
    assert shown[:4] == [[*cue, 0], [*junction, 0], [*cue, 1], [*junction, 0]]
    assert [row[-1] for row in shown[4:]] == [1, 1]
    np.testing.assert_allclose(paid, [0.0, -0.1, 0.0, 1.0, 0.0])
    assert ends == [False, False, False, True, True] and not bool(timestep.truncated)


def test_an_episode_that_is_cut_off_is_over_too():
    world = make_trials(tmaze.make_environment(1, max_steps=2), num_episodes=2)
    state, _ = world.reset(KEY, UP_TASK)
    for flag, end in ((0, False), (1, False), (0, False), (1, True)):
        state, timestep = world.step(KEY, state, jnp.int32(tmaze.BACK))
        assert (int(timestep.observation[-1]), bool(timestep.terminated)) == (flag, end)


def test_arms_pay_by_their_probabilities():
    world = bernoulli_bandit.make_environment(3)
    task = {"probability": jnp.array([0.0, 0.25, 1.0])}
    state, _ = world.reset(KEY, task)
    keys, arms = jax.random.split(KEY, 4000), jnp.arange(3)
    step = jax.vmap(jax.vmap(world.step, (0, None, None)), (None, None, 0))
    _, after = step(keys, state, arms)
    np.testing.assert_allclose(jnp.mean(after.reward, axis=1), task["probability"], atol=0.03)
    assert bool(after.terminated.all()) and world.sample_task(KEY)["probability"].shape == (3,)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="`num_episodes` must be at least 1, got 0; try 10"):
        make_trials(tmaze.make_environment(1), num_episodes=0)
    with pytest.raises(ValueError, match="`num_arms` must be at least 2, got 1; try 5"):
        bernoulli_bandit.make_environment(1)
    with pytest.raises(ValueError, match="`environment` must have one agent for trials"):
        make_trials(coordination.make_two_step_game(), num_episodes=2)
