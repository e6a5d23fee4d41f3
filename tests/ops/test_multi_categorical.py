"""Distributions of actions of several parts: sums over the parts, and numbers that are bins."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.ops.distributions import Categorical
from jaxagents.ops.multi_categorical import Discretized, MultiCategorical

LOGITS = jnp.log(jnp.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]))


def test_it_is_the_categorical_of_all_combinations():
    parts, other = MultiCategorical(logits=LOGITS), MultiCategorical(logits=LOGITS[::-1])
    actions = jnp.array(list(itertools.product(range(3), repeat=2)))
    log_probs = parts.replace(logits=jnp.broadcast_to(LOGITS[None], (9, 2, 3))).log_prob(actions)
    joint = Categorical(logits=log_probs)
    np.testing.assert_allclose(jnp.exp(log_probs[0]), 0.5 * 0.1, rtol=1e-5)
    np.testing.assert_allclose(jnp.exp(log_probs).sum(), 1.0, rtol=1e-5)
    np.testing.assert_allclose(parts.entropy(), joint.entropy(), rtol=1e-5)
    others = other.replace(logits=jnp.broadcast_to(LOGITS[None, ::-1], (9, 2, 3))).log_prob(actions)
    np.testing.assert_allclose(parts.kl_divergence(other), joint.kl_divergence(Categorical(others)), rtol=1e-4)
    np.testing.assert_array_equal(parts.mode(), [0, 2])


def test_samples_have_the_frequencies_of_each_part_and_masks_hold():
    many = MultiCategorical(logits=jnp.broadcast_to(LOGITS[None], (4000, 2, 3)))
    samples = many.sample(jax.random.key(0))
    frequencies = [[float(jnp.mean(samples[:, part] == value)) for value in range(3)] for part in range(2)]
    np.testing.assert_allclose(frequencies, jnp.exp(LOGITS), atol=0.03)
    allowed = jnp.array([[False, True, True], [True, True, False]])
    masked = many.mask(jnp.broadcast_to(allowed[None], (4000, 2, 3))).sample(jax.random.key(1))
    assert set(np.unique(masked[:, 0])) == {1, 2} and set(np.unique(masked[:, 1])) == {0, 1}


def test_bins_are_evenly_spaced_with_the_bounds_and_found_again():
    distribution = Discretized(logits=jnp.log(jnp.array([[0.2, 0.1, 0.4, 0.2, 0.1]])))
    actions = jnp.arctanh(jnp.clip(jnp.linspace(-1.0, 1.0, 5), -1 + 1e-6, 1 - 1e-6))[:, None]
    log_probs = jax.vmap(distribution.log_prob)(actions)
    np.testing.assert_allclose(jnp.exp(log_probs), [0.2, 0.1, 0.4, 0.2, 0.1], rtol=1e-5)
    np.testing.assert_allclose(jnp.tanh(distribution.mode()), [0.0], atol=1e-6)
    samples = Discretized(logits=jnp.zeros((500, 1, 5))).sample(jax.random.key(0))
    np.testing.assert_allclose(np.unique(np.round(jnp.tanh(samples), 4)), [-1.0, -0.5, 0.0, 0.5, 1.0])
