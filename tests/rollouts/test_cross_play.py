"""Cross-play of teams whose conventions are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.timesteps import first_timestep
from jaxagents.ops.distributions import Categorical
from jaxagents.policies.teams import separate_parameters
from jaxagents.rollouts.cross_play import make_cross_play
from jaxagents.types import Box, Discrete, Policy, TimeStep
from tests.fakes import make_world

KEY = jax.random.key(0)


def make_meeting(num_agents=2, num_actions=3):
    """One step; all agents are paid 1 for the same action, and agent 0's action in tenths."""

    def reset(key, task):
        return jnp.zeros(()), first_timestep(jnp.zeros((num_agents, 1)), reward_shape=(num_agents,))

    def step(key, state, action):
        same = jnp.all(action == action[0])
        reward = jnp.full((num_agents,), same + 0.1 * action[0], jnp.float32)
        yes, no = jnp.ones((), bool), jnp.zeros((), bool)
        return state, TimeStep(
            observation=jnp.zeros((num_agents, 1)),
            reward=reward,
            terminated=yes,
            truncated=no,
            action_mask=None,
            info={},
        )

    return make_world(reset, step, Box((1,)), Discrete(num_actions), 1, num_agents=num_agents)


def apply_logits(params, carry, inputs):
    return carry, Categorical(logits=jnp.broadcast_to(params, (*inputs.observation.shape[:-1], 3)))


POLICY = Policy(init=lambda key: jnp.zeros(3), initial_carry=lambda shape: (), apply=apply_logits)


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("num_agents", [2, 3])
def test_the_first_agent_is_of_the_row_and_the_others_of_the_column(num_agents, greedy):
    conventions = 40.0 * jnp.eye(3)
    play = jax.jit(make_cross_play(make_meeting(num_agents), POLICY, num_episodes=4, greedy=greedy))
    returns = play(conventions, KEY)["episode_return"]
    assert returns.shape == (3, 3, 4)
    np.testing.assert_allclose(returns.mean(axis=-1), np.eye(3) + 0.1 * np.arange(3)[:, None], rtol=1e-6)


def test_separate_parameters_stay_with_their_agents():
    # The first team meets at action 0 by way of (0, 0), the second at 1; agents are of their own seats.
    teams = 40.0 * jnp.stack([jnp.eye(3)[jnp.array([0, 1])], jnp.eye(3)[jnp.array([1, 0])]])
    play = make_cross_play(make_meeting(), separate_parameters(POLICY, 2), num_episodes=2)
    returns = jax.jit(play)(teams, KEY)["episode_return"].mean(axis=-1)
    np.testing.assert_allclose(returns, [[0.0, 1.0], [1.1, 0.1]], rtol=1e-6)


def test_one_agent_is_no_team():
    with pytest.raises(ValueError, match="`environment` must have a team for cross-play"):
        make_cross_play(make_world(None, None, Box((1,)), Discrete(3), 1), POLICY, num_episodes=1)
