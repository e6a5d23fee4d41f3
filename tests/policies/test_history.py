"""Policies that see what they did: their observation by hand, and a bandit that they find out (RL^2)."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.environments import bernoulli_bandit
from jaxagents.environments.trials import make_trials
from jaxagents.learners import ppo
from jaxagents.networks.gated_transformer import GTrXL
from jaxagents.networks.recurrent import GRU
from jaxagents.networks.torsos import MLP
from jaxagents.policies.history import history_of, make_history_actor_critic
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.training.program import make_program, run_updates
from jaxagents.types import Box, Discrete, PolicyInput

KEY = jax.random.key(0)


def given(previous_action, first=(False, True)):
    return PolicyInput(
        observation=jnp.array([[[7.0], [8.0]]]),
        first=jnp.array([first]),
        previous_action=previous_action,
        previous_reward=jnp.array([[0.5, 0.25]]),
    )


def test_the_observation_has_the_previous_action_and_reward():
    """The second row begins an episode: before it, there was nothing."""
    found = history_of(given(jnp.array([[1, 2]])), Discrete(3))
    np.testing.assert_allclose(found, [[[7.0, 0.0, 1.0, 0.0, 0.5], [8.0, 0.0, 0.0, 0.0, 0.0]]])
    found = history_of(given(jnp.array([[[0.3], [0.3]]])), Box((1,), -2.0, 2.0))
    np.testing.assert_allclose(found, [[[7.0, np.tanh(0.3), 0.5], [8.0, 0.0, 0.0]]], rtol=1e-6)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="`previous_action` must be kept for a policy of history, got None"):
        history_of(given(None), Discrete(3))
    with pytest.raises(ValueError, match="`memory` must be chosen for a policy that adapts"):
        make_history_actor_critic(Box((1,)), Discrete(2), encoder=MLP((4,)))
    with pytest.raises(ValueError, match="`observation_space` must be a Box of rank 1"):
        make_history_actor_critic(Box((2, 2)), Discrete(2), encoder=MLP((4,)), memory=GRU(4))


@pytest.mark.exhaustive
@pytest.mark.parametrize("memory", [GRU(16), GTrXL(16, num_heads=2, window=12)], ids=["gru", "gtrxl"])
def test_it_finds_out_which_arm_pays(memory):
    """Three pulls of a fair choice of two arms pay 1.5; who stays with what paid and leaves what did not gets 1.75."""
    world = make_trials(bernoulli_bandit.make_environment(2), num_episodes=6)
    policy = partial(make_history_actor_critic, encoder=MLP((16,)), memory=memory, shared=True)
    agent = ppo.make_agent(world, policy=policy, optimizer=lambda steps: optax.adam(5e-3))
    collector = make_rollout_collector(world, agent.policy, num_envs=128, num_steps=12)
    program = make_program(collector, agent.make_learner(collector, 80))
    play = jax.jit(partial(run_updates, program))
    state, _ = play(program.init(KEY), 70)
    _, metrics = play(state, 10)
    assert float(metrics["rollout/episode_return"].value) > 3.4
