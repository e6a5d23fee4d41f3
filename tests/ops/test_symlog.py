"""Logarithms of both signs and bins around a number, by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.ops.symlog import symexp, symlog, two_hot, two_hot_mean


def test_symlog_by_hand_and_its_inverse():
    values = jnp.array([-np.e + 1.0, -0.5, 0.0, np.e**2 - 1.0, 1000.0], jnp.float32)
    np.testing.assert_allclose(symlog(values[jnp.array([0, 2, 3])]), [-1.0, 0.0, 2.0], atol=1e-6)
    np.testing.assert_allclose(symexp(symlog(values)), values, rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(jax.grad(symlog))(values), 1.0 / (1.0 + np.abs(values)), rtol=1e-5)


def test_two_bins_share_a_number():
    """Of five bins, ten apart: 4 in `symlog` is 0.6 of the middle one and 0.4 of the next."""
    four = np.e**4 - 1.0
    shares = two_hot(jnp.array([four, -four, 0.0, 1e12], jnp.float32), 5)
    expected = [[0.0, 0.0, 0.6, 0.4, 0.0], [0.0, 0.4, 0.6, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0], [0, 0, 0, 0, 1]]
    np.testing.assert_allclose(shares, expected, atol=1e-5)
    np.testing.assert_allclose(two_hot_mean(jnp.log(shares[:2] + 1e-9)), [four, -four], rtol=1e-3)


def test_numbers_come_back_and_equal_logits_stand_for_zero():
    values = jnp.array([-300.0, -1.0, 0.01, 2.5, 5e4])
    shares = jax.jit(two_hot, static_argnums=1)(values, 255)
    np.testing.assert_allclose(shares.sum(-1), np.ones(5), rtol=1e-5)
    assert np.all(np.sum(shares > 0.0, axis=-1) <= 2)
    np.testing.assert_allclose(two_hot_mean(jnp.log(shares + 1e-12)), values, rtol=1e-3)
    np.testing.assert_allclose(two_hot_mean(jnp.zeros(255)), 0.0, atol=1e-4)
