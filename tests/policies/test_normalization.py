"""Policies that see normalised observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks.torsos import MLP
from jaxagents.ops.statistics import update_statistics
from jaxagents.policies.actor_critic import act, make_actor_critic, make_policy
from jaxagents.policies.normalization import normalize_observations
from jaxagents.types import Box, Discrete, PolicyInput

SPACE = Box((2,))
FIRST = jnp.ones((1, 3), bool)


def test_policy_sees_what_the_statistics_make_of_the_observation():
    plain = make_policy(SPACE, Discrete(2), encoder=MLP((4,)))
    policy = normalize_observations(plain, SPACE)
    params = policy.init(jax.random.key(0))
    raw = jnp.array([[[0.0, 10.0], [2.0, 30.0], [4.0, 50.0]]])
    params["statistics"] = update_statistics(params["statistics"], raw)
    _, actual = act(policy, params, (), PolicyInput(observation=raw[0], first=FIRST[0]))
    scaled = (raw - jnp.array([[[2.0, 30.0]]])) / jnp.sqrt(jnp.array([[[8.0 / 3.0, 800.0 / 3.0]]]))
    _, expected = plain.apply(params["params"], (), PolicyInput(observation=scaled, first=FIRST))
    np.testing.assert_allclose(actual.logits, expected.logits[0], rtol=1e-5, atol=1e-6)


def test_actor_critics_stay_actor_critics_and_integers_are_cast():
    space = Box((2,), 0, 9, np.int32)
    actor_critic = normalize_observations(make_actor_critic(space, Discrete(2), encoder=MLP((4,))), space)
    params = actor_critic.init(jax.random.key(0))
    carry = actor_critic.initial_carry((3,))
    _, distribution, value = actor_critic.apply(
        params, carry, PolicyInput(observation=jnp.ones((1, 3, 2), jnp.int32), first=FIRST)
    )
    assert distribution.logits.shape == (1, 3, 2) and value.shape == (1, 3)


def test_no_gradient_reaches_the_statistics():
    policy = normalize_observations(make_policy(SPACE, Discrete(2), encoder=MLP((4,))), SPACE)
    params = policy.init(jax.random.key(0))

    def loss(params):
        return (
            policy.apply(params, (), PolicyInput(observation=jnp.ones((1, 3, 2)), first=FIRST))[1]
            .log_prob(jnp.zeros((1, 3), int))
            .sum()
        )

    gradient = jax.grad(loss)(params)
    assert all(np.all(leaf == 0.0) for leaf in jax.tree.leaves(gradient["statistics"]))
    assert any(np.any(leaf != 0.0) for leaf in jax.tree.leaves(gradient["params"]))


def test_refuses_a_clip_that_is_not_positive():
    with pytest.raises(ValueError, match="`clip` must be positive, got 0"):
        normalize_observations(make_policy(SPACE, Discrete(2), encoder=MLP((4,))), SPACE, clip=0.0)
