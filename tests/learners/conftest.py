"""What tests of several learners share."""

import jax
import jax.numpy as jnp
import pytest

from jaxagents.environments.timesteps import first_timestep
from jaxagents.types import Box, Environment, TimeStep


@pytest.fixture
def spaces_only():
    """Returns a function that makes an environment which has spaces but cannot be played."""

    def make(observation_space, action_space):
        return Environment(
            name="spaces",
            sample_task=None,
            reset=None,
            step=None,
            observation_space=observation_space,
            action_space=action_space,
            max_steps=1,
        )

    return make


@pytest.fixture
def follow():
    """Returns a world of one step: the best action is the first number of the observation."""

    def reset(key, task):
        seen = jax.random.uniform(key, (2,), minval=-0.9, maxval=0.9)
        return seen, first_timestep(seen)

    def step(key, state, action):
        reward = -jnp.square(action[0] - state[0])
        return state, TimeStep(
            observation=state, reward=reward, terminated=jnp.ones((), bool), truncated=jnp.zeros((), bool)
        )

    return Environment(
        name="follow",
        sample_task=lambda key, level=None: (),
        reset=reset,
        step=step,
        observation_space=Box((2,)),
        action_space=Box((1,), -1.0, 1.0),
        max_steps=1,
    )
