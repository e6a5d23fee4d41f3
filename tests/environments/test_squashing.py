"""What an environment gets of the actions of policies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.squashing import squash_action, squash_actions
from jaxagents.environments.timesteps import first_timestep
from jaxagents.networks.torsos import MLP
from jaxagents.policies.actor_critic import as_policy, make_actor_critic
from jaxagents.rollouts.evaluate import make_evaluator, play_episode
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.types import Box, Discrete
from tests.fakes import make_world

ACTIONS = Box((1,), 10.0, 30.0)


def make_echo():
    """An episode of one step, whose reward is the action."""

    def step(key, state, action):
        timestep = first_timestep(jnp.zeros(1))
        return state, timestep.replace(reward=action[0], terminated=jnp.ones((), bool))

    return make_world(lambda key, task: (jnp.zeros(()), first_timestep(jnp.zeros(1))), step, Box((1,)), ACTIONS, 1)


def test_bounded_actions_are_squashed_and_others_left():
    np.testing.assert_allclose(squash_action(jnp.array([0.0, 50.0, -50.0]), ACTIONS), [20.0, 30.0, 10.0])
    for space in (Discrete(3), Box((1,))):
        np.testing.assert_array_equal(squash_action(jnp.array([7]), space), [7])
    _, timestep = squash_actions(make_echo()).step(jax.random.key(0), (), jnp.array([1.0]))
    np.testing.assert_allclose(timestep.reward, 20.0 + 10.0 * np.tanh(1.0), rtol=1e-6)


@pytest.mark.exhaustive
def test_all_that_act_squash_at_the_border():
    """A policy at loc 10: float32 cannot tell its actions from the bound, yet their probabilities are exact."""
    echo = make_echo()
    policy = as_policy(make_actor_critic(echo.observation_space, ACTIONS, encoder=MLP(hidden_sizes=(2,))))
    params = policy.init(jax.random.key(0))
    params["actor"]["head"]["params"]["loc"]["bias"] = jnp.array([10.0])
    collector = make_rollout_collector(echo, policy, num_envs=2, num_steps=3)
    _, rollout, _ = jax.jit(collector.collect)(collector.init(jax.random.key(0), params), params, jax.random.key(1))
    np.testing.assert_allclose(rollout.transition.reward, 30.0, rtol=1e-6)
    action = np.asarray(rollout.transition.action[..., 0], np.float64)
    assert np.ptp(action) > 0.1
    # log N(x; 10, 1) - log(10 (1 - tanh(x)^2)), of which the latter is log(40) - 2 x this far out.
    expected = -0.5 * (action - 10.0) ** 2 - 0.5 * np.log(2 * np.pi) - np.log(40.0) + 2 * action
    np.testing.assert_allclose(rollout.transition.behavior_log_prob, expected, rtol=1e-5)
    results = make_evaluator(echo, policy, num_episodes=2)(params, jax.random.key(0))
    np.testing.assert_allclose(results["episode_return"], 30.0, rtol=1e-6)
    last = play_episode(echo, policy, params, jax.random.key(0))[-1][1]
    np.testing.assert_allclose(last.reward, 30.0, rtol=1e-6)
