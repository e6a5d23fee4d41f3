"""Squashed Gaussian policies with a scale of their own for every state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.squashing import squash_action
from jaxagents.networks.torsos import MLP
from jaxagents.policies.actor_critic import act
from jaxagents.policies.tanh_normal import make_tanh_normal_policy
from jaxagents.types import Box, Discrete, PolicyInput


def test_location_and_scale_depend_on_the_state_and_actions_stay_in_the_box():
    policy = make_tanh_normal_policy(Box((3,)), Box((2,), 1.0, 5.0), encoder=MLP((8,)), initial_scale=0.5)
    params = policy.init(jax.random.key(0))
    observation = 10.0 * jax.random.normal(jax.random.key(1), (64, 3))
    _, distribution = act(policy, params, (), PolicyInput(observation=observation, first=jnp.ones(64, bool)))
    assert distribution.loc.shape == distribution.scale.shape == (64, 2)
    assert np.all(np.std(distribution.loc, axis=0) > 0.0) and np.all(np.std(distribution.scale, axis=0) > 0.0)
    np.testing.assert_allclose(distribution.scale, 0.5, atol=0.05)
    action = squash_action(distribution.sample(jax.random.key(2)), Box((2,), 1.0, 5.0))
    assert np.all((action > 1.0) & (action < 5.0))
    np.testing.assert_allclose(squash_action(distribution.mode(), Box((2,), 1.0, 5.0)), 3.0, atol=0.2)


@pytest.mark.parametrize("space", [Discrete(2), Box((2, 2), -1.0, 1.0)])
def test_refuses_other_spaces(space):
    with pytest.raises(ValueError, match="`action_space` must be a Box of rank 1"):
        make_tanh_normal_policy(Box((3,)), space, encoder=MLP((8,)))
