"""Policies of several Gaussians: shapes and refusals, and data with two ways around, where one Gaussian fails."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.learners.imitation import make_imitation
from jaxagents.networks.recurrent import GRU
from jaxagents.networks.torsos import MLP
from jaxagents.policies.actor_critic import act, as_policy, make_actor_critic
from jaxagents.policies.mixture import make_mixture_actor_critic, make_mixture_policy
from jaxagents.types import Box, Discrete, PolicyInput
from tests.fakes import make_sample

KEY = jax.random.key(0)
SPACES = Box((3,)), Box((2,), -2.0, 2.0)
ENCODER = MLP((16,))


def test_distributions_have_the_shapes_of_policies_and_components_that_differ():
    for memory in (None, GRU(8)):
        network = make_mixture_actor_critic(*SPACES, encoder=ENCODER, memory=memory, num_components=4)
        inputs = PolicyInput(observation=jnp.ones((5, 2, 3)), first=jnp.zeros((5, 2), bool))
        params = network.init(KEY)
        _, distribution, value = network.apply(params, network.initial_carry((2,)), inputs)
        assert distribution.logits.shape == (5, 2, 4) and distribution.scale.shape == (5, 2, 4, 2)
        assert value.shape == (5, 2) and distribution.log_prob(distribution.sample(KEY)).shape == (5, 2)
        assert distribution.low == -2.0 and distribution.high == 2.0
        np.testing.assert_allclose(distribution.loc[0, 0, :, 0], np.linspace(-0.5, 0.5, 4), atol=0.05)
        np.testing.assert_allclose(distribution.scale, 0.5, atol=0.05)


def two_ways(key, count=256):
    """Draws steps in which the expert goes around an obstacle, left as often as right, by an angle that it sees."""
    seen_key, side_key, noise_key = jax.random.split(key, 3)
    seen = jax.random.uniform(seen_key, (1, count, 1), minval=0.5, maxval=0.8)
    side = jnp.where(jax.random.bernoulli(side_key, shape=(1, count, 1)), 1.0, -1.0)
    action = jnp.arctanh(side * seen + 0.02 * jax.random.normal(noise_key, (1, count, 1)))
    return make_sample((1, count), observation=seen, action=action)


def imitate(policy, steps=400):
    learner = make_imitation(policy, optax.adam(5e-3))

    def update(state, key):
        return learner.update(state, key, two_ways(key))

    state, metrics = jax.jit(lambda state: jax.lax.scan(update, state, jax.random.split(KEY, steps)))(learner.init(KEY))
    return state.params, float(metrics["loss"][-1])


@pytest.mark.exhaustive
def test_of_two_ways_around_a_mixture_takes_one_and_a_gaussian_runs_into_the_middle():
    seen = jnp.linspace(0.55, 0.75, 9)[:, None]
    mistakes, losses = {}, {}
    for name, make in (("gaussian", make_actor_critic), ("mixture", make_mixture_actor_critic)):
        policy = as_policy(make(Box((1,)), Box((1,), -1.0, 1.0), encoder=ENCODER))
        params, losses[name] = imitate(policy)
        distribution = act(policy, params, policy.initial_carry((9,)), PolicyInput(seen, jnp.zeros(9, bool)))[1]
        actions = jnp.tanh(jax.vmap(distribution.sample)(jax.random.split(KEY, 100)))
        # How far from the nearer of both ways, best and drawn actions.
        each = [jnp.abs(jnp.abs(jnp.tanh(distribution.mode())) - seen), jnp.abs(jnp.abs(actions) - seen[None])]
        mistakes[name] = [float(jnp.mean(each[0])), float(jnp.mean(each[1]))]
        sides = float(jnp.mean(actions > 0.0))
        assert 0.3 < sides < 0.7, name
    assert mistakes["gaussian"][0] > 0.4 and mistakes["gaussian"][1] > 0.15, mistakes
    assert mistakes["mixture"][0] < 0.05 and mistakes["mixture"][1] < 0.05, mistakes
    assert losses["mixture"] < losses["gaussian"] - 1.5, losses


def test_what_does_not_fit_is_refused():
    make = partial(make_mixture_policy, SPACES[0], encoder=ENCODER)
    for space in (Discrete(3), Box((2,)), Box((2, 2), -1.0, 1.0)):
        with pytest.raises(ValueError, match="`action_space` must be a bounded Box of rank 1 for a mixture"):
            make(space)
    with pytest.raises(ValueError, match="`num_components` must be at least 1, got 0; try 5"):
        make(SPACES[1], num_components=0)
