"""Losses of a world model by hand and by scipy, and where their gradients go."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import entropy

from jaxagents.losses.world_models import balanced_kl, symlog_loss, two_hot_loss

POSTERIOR = np.array([[[0.7, 0.3], [0.2, 0.8]], [[0.5, 0.5], [0.5, 0.5]]])
PRIOR = np.array([[[0.1, 0.9], [0.6, 0.4]], [[0.5, 0.5], [0.4, 0.6]]])


def test_losses_of_numbers_by_hand():
    target = jnp.array([np.e - 1.0, 1.0 - np.e**2], jnp.float32)
    np.testing.assert_allclose(symlog_loss(jnp.array([0.5, -1.0]), target), 0.5 * (0.25 + 1.0), rtol=1e-5)
    probs = np.array([0.1, 0.2, 0.3, 0.25, 0.15])
    expected = -0.6 * np.log(0.3) - 0.4 * np.log(0.25)
    np.testing.assert_allclose(two_hot_loss(jnp.log(probs) + 3.0, jnp.float32(np.e**4 - 1.0)), expected, rtol=1e-4)


def test_divergences_are_those_of_scipy_and_are_free_up_to_a_bound():
    first, second = (entropy(POSTERIOR[i], PRIOR[i], axis=-1).sum() for i in (0, 1))
    assert first > 1.0 > second > 0.0
    losses = jax.jit(balanced_kl)(jnp.log(POSTERIOR), jnp.log(PRIOR))
    np.testing.assert_allclose(losses, [0.6 * first, 0.6], rtol=1e-5)
    losses = balanced_kl(
        jnp.log(POSTERIOR),
        jnp.log(PRIOR),
        free_nats=0.0,
        dynamics_coefficient=2.0,
        representation_coefficient=1.0,
    )
    np.testing.assert_allclose(losses, [3.0 * first, 3.0 * second], rtol=1e-5)


def test_each_coefficient_moves_its_own_side():
    def grads(**coefficients):
        def total(posterior, prior):
            return jnp.sum(balanced_kl(jax.nn.log_softmax(posterior), jax.nn.log_softmax(prior), **coefficients))

        return jax.grad(total, (0, 1))(jnp.log(POSTERIOR), jnp.log(PRIOR))

    to_posterior, to_prior = grads(representation_coefficient=0.0)
    np.testing.assert_array_equal(to_posterior, np.zeros_like(POSTERIOR))
    np.testing.assert_allclose(to_prior[0], 0.5 * (PRIOR[0] - POSTERIOR[0]), rtol=1e-4)
    np.testing.assert_array_equal(to_prior[1], np.zeros((2, 2)))  # Below the free nats.
    to_posterior, to_prior = grads(dynamics_coefficient=0.0)
    np.testing.assert_array_equal(to_prior, np.zeros_like(PRIOR))
    assert np.all(to_posterior[0] != 0.0) and not np.any(to_posterior[1])
