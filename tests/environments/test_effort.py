"""Effort beyond a limit by hand: measured, and paid for where somebody says so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.effort import with_effort
from jaxagents.environments.tabletop import make_environment
from jaxagents.environments.timesteps import ended
from jaxagents.policies.tabletop_expert import make_tabletop_expert
from jaxagents.types import Box, Discrete, PolicyInput

KEY = jax.random.key(0)
ACTIONS = jnp.array([[0.4, -0.4], [-1.0, 0.1], [0.0, 0.0], [0.5, 0.9]])
EXCESS = np.array([0.0, 0.6, 0.0, 0.5])


def play(environment, actions):
    state, timestep = environment.reset(KEY, environment.sample_task(KEY))
    rewards, totals = [], [timestep.info["metrics"]["effort_reward"]]
    for action in actions:
        state, timestep = jax.jit(environment.step)(KEY, state, action)
        rewards.append(timestep.reward)
        totals.append(timestep.info["metrics"]["effort_reward"])
    return np.array(rewards), np.array(totals), timestep


def test_effort_is_measured_and_paid_for_only_where_it_has_a_scale():
    table = make_environment(num_discs=0, progress_reward=5.0, ends=False, max_steps=4)
    rates, totals, timestep = play(with_effort(table, limit=0.4, scale=2.0), ACTIONS)
    np.testing.assert_allclose(totals, [0.0, *-np.cumsum(EXCESS)], rtol=1e-5)
    untold, same, _ = play(with_effort(table), [*ACTIONS, *ACTIONS])
    np.testing.assert_allclose(rates - untold[:4], -2.0 * EXCESS, atol=1e-5)
    assert timestep.truncated and not np.any(untold[4:]) and np.all(same[4:] == same[4])
    with pytest.raises(ValueError, match="`environment` must have one agent of bounded actions"):
        with_effort(table.__class__(**{**vars(table), "action_space": Discrete(2)}))
    assert isinstance(table.action_space, Box)


def test_a_gentle_expert_reaches_its_goal_within_the_limit_and_stays():
    environment = with_effort(make_environment(num_discs=0, ends=False))
    expert = make_tabletop_expert(num_discs=0, speed=0.4).policy

    def episode(key):
        state, timestep = environment.reset(key, environment.sample_task(key))

        def step(carry, key):
            state, timestep, memory = carry
            inputs = PolicyInput(observation=timestep.observation[None, None], first=jnp.zeros((1, 1), bool))
            memory, distribution = expert.apply((), memory, inputs)
            state, timestep = environment.step(key, state, jnp.tanh(distribution.loc[0, 0]))
            return (state, timestep, memory), timestep.reward

        carry = state, timestep, expert.initial_carry((1,))
        (_, timestep, _), rewards = jax.lax.scan(step, carry, jax.random.split(key, 40))
        return timestep, jnp.sum(rewards)

    timestep, paid = jax.jit(jax.vmap(episode))(jax.random.split(KEY, 16))
    assert timestep.info["success"].all() and ended(timestep).all() and float(paid.min()) > 5.0
    np.testing.assert_allclose(timestep.info["metrics"]["effort_reward"], 0.0, atol=1e-4)
    with pytest.raises(ValueError, match=r"`speed` must be in \(0, 1\], got 2"):
        make_tabletop_expert(speed=2.0)
