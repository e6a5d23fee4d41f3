"""A policy on the state of a world model: what it remembers, how it draws, and what is refused."""

from functools import partial
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks.torsos import MLP
from jaxagents.policies.world_model import make_world_model_policy
from jaxagents.types import Box, Discrete, PolicyInput

KEY = jax.random.key(0)
ENCODER = MLP((6,), activation="silu", layer_norm=True)
make = partial(
    make_world_model_policy,
    Box((3,)),
    encoder=ENCODER,
    actor_encoder=ENCODER,
    critic_encoder=ENCODER,
    hidden_size=5,
    num_variables=2,
    num_categories=4,
    width=6,
    num_bins=7,
)
POLICY = make(Discrete(2))
PARAMS = POLICY.init(KEY)
T, B = 5, 2


def played(seed=0):
    """Returns a sequence whose second row begins an episode at its third step."""
    generator = np.random.default_rng(seed)
    return PolicyInput(
        observation=jnp.asarray(generator.normal(size=(T, B, 3)), jnp.float32),
        first=jnp.zeros((T, B), bool).at[2, 1].set(True),
        previous_action=jnp.asarray(generator.integers(2, size=(T, B)), jnp.int32),
        noise=jax.vmap(lambda key: POLICY.draw_noise(key, T), out_axes=1)(jax.random.split(jax.random.key(seed), B)),
    )


observe = jax.jit(POLICY.observe)


def test_acting_step_by_step_is_observing_the_sequence():
    inputs, carry = played(), POLICY.initial_carry((B,))
    states, _, _ = observe(PARAMS, carry, inputs)
    act = jax.jit(POLICY.apply)
    for step in range(T):
        carry, distribution = act(PARAMS, carry, jax.tree.map(itemgetter(slice(step, step + 1)), inputs))
        np.testing.assert_allclose(carry.hidden, states.hidden[step], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(carry.latent.round(4), states.latent[step].round(4))
        expected = POLICY.act(PARAMS, jax.tree.map(itemgetter(step), states))
        np.testing.assert_allclose(distribution.logits[0], expected.logits, rtol=1e-4, atol=1e-4)


def test_an_episode_knows_nothing_of_the_one_before():
    inputs, other = played(), played(1)
    changed = inputs.replace(
        observation=inputs.observation.at[:2].set(other.observation[:2]), noise=inputs.noise.at[:2].set(other.noise[:2])
    )
    one, two = (observe(PARAMS, POLICY.initial_carry((B,)), each)[0] for each in (inputs, changed))
    np.testing.assert_array_equal(one.features[2:, 1], two.features[2:, 1])
    assert np.any(one.features[2:, 0] != two.features[2:, 0])


@pytest.mark.exhaustive
def test_categories_are_one_hot_with_a_share_of_uniform_ones_and_the_gradient_of_probabilities():
    states, posterior, prior = observe(PARAMS, POLICY.initial_carry((B,)), played())
    latent = states.latent.reshape(T, B, 2, 4)
    np.testing.assert_allclose(np.sort(latent, axis=-1), np.broadcast_to([0.0, 0.0, 0.0, 1.0], latent.shape), atol=1e-6)
    for log_probs in (posterior, prior):
        np.testing.assert_allclose(np.exp(log_probs).sum(-1), np.ones((T, B, 2)), rtol=1e-5)
        assert np.exp(log_probs).min() >= 0.01 / 4 - 1e-6
    sharp = jax.tree.map(lambda leaf: 100.0 * leaf, PARAMS["model"])
    hidden = jax.random.normal(KEY, (1, 5))
    _, _, prior = POLICY.observe(PARAMS | {"model": sharp}, POLICY.initial_carry((B,)), played())
    np.testing.assert_allclose(np.exp(prior).min(), 0.01 / 4, rtol=1e-2)

    def chosen(noise, params):
        return POLICY.foresee({**PARAMS, "model": params}, hidden, noise).latent[0, :4]

    def foreseen(params):
        """Of the same hidden state, the probabilities of the first variable by hand."""
        head = params["params"]
        x = hidden @ head["prior_head"]["layers_0"]["Dense_0"]["kernel"]
        x = x + head["prior_head"]["layers_0"]["Dense_0"]["bias"][None]
        mean, variance = jnp.mean(x, -1, keepdims=True), jnp.var(x, -1, keepdims=True)
        norm = head["prior_head"]["layers_0"]["LayerNorm_0"]
        x = jax.nn.silu((x - mean) / jnp.sqrt(variance + 1e-6) * norm["scale"][None] + norm["bias"][None])
        logits = x @ head["prior_head"]["layers_1"]["kernel"] + head["prior_head"]["layers_1"]["bias"][None]
        return 0.99 * jax.nn.softmax(logits[0, :4]) + 0.01 / 4

    noise, weights = jnp.zeros((1, 2, 4)), jnp.arange(4.0)
    actual = jax.jit(jax.grad(lambda params: chosen(noise, params) @ weights))(PARAMS["model"])
    expected = jax.jit(jax.grad(lambda params: foreseen(params) @ weights))(PARAMS["model"])
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), actual, expected)
    assert np.argmax(chosen(noise, PARAMS["model"])) == np.argmax(foreseen(PARAMS["model"]))


def test_actions_are_of_either_kind():
    policy = make(Box((2,), -1.0, 1.0))
    params, state = policy.init(KEY), policy.initial_carry((3,))
    still, moved = (policy.advance(params, state, jnp.full((3, 2), value)) for value in (0.0, 9.0))
    assert policy.act(params, state).loc.shape == (3, 2) and np.any(still != moved)
    np.testing.assert_allclose(moved, policy.advance(params, state, jnp.full((3, 2), 99.0)), rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_size": 0}, "`hidden_size` must be at least 1, got 0"),
        ({"num_variables": 0}, "`num_variables` must be at least 1, got 0"),
        ({"num_categories": 1}, "`num_categories` must be at least 2, got 1"),
        ({"num_bins": 1}, "`num_bins` must be at least 2, got 1"),
        ({"uniform_share": 0.0}, r"`uniform_share` must be in \(0, 1\), got 0.0; try 0.01"),
    ],
)
def test_sizes_of_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(Discrete(2), **options)
    with pytest.raises(ValueError, match="`previous_action` must be kept for a world model, got None"):
        POLICY.observe(PARAMS, POLICY.initial_carry((B,)), played().replace(previous_action=None))
