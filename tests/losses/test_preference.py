"""Preference losses by hand, at their limits, and where their gradients point."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.losses.preference import dpo, ipo

MARGIN = jnp.array([-2.0, 0.0, 3.0])


def test_by_hand():
    # log(1 + e) = 1.313262, log 2 = 0.693147, log(1 + exp(-1.5)) = 0.201413.
    np.testing.assert_allclose(dpo(MARGIN, coefficient=0.5), [1.313262, 0.693147, 0.201413], atol=1e-6)
    # The target is 1 / (2 * 0.25) = 2.
    np.testing.assert_allclose(ipo(MARGIN, coefficient=0.25), [16.0, 4.0, 1.0])


@pytest.mark.parametrize("loss", [dpo, ipo])
def test_gradients_raise_small_margins_and_stop_where_they_should(loss):
    slope = jax.vmap(jax.grad(lambda margin: loss(margin, coefficient=0.25)))
    assert (slope(jnp.array([-2.0, 0.0, 1.0])) < 0).all()
    if loss is ipo:
        np.testing.assert_allclose(slope(jnp.array([2.0, 3.0])), [0.0, 2.0])
    else:
        np.testing.assert_allclose(slope(jnp.array([0.0])), [-0.125])
        assert -1e-6 < float(slope(jnp.array([1e4]))[0]) <= 0.0


@pytest.mark.parametrize("loss", [dpo, ipo])
def test_any_margin_is_finite_and_jit_changes_nothing(loss):
    margin = jnp.array([-1e4, 1e4])
    assert np.isfinite(loss(margin)).all()
    np.testing.assert_allclose(jax.jit(loss)(MARGIN), loss(MARGIN), rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(loss)(MARGIN), loss(MARGIN), rtol=1e-6)
