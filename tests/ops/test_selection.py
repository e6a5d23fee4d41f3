"""Truncation selection by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.selection import perturb, truncation_selection


def test_the_worst_go_on_from_the_best():
    fitness = jnp.array([3.0, jnp.nan, 5.0, 1.0, 4.0, 2.0])
    chosen = set()
    for seed in range(8):
        source, replaced = truncation_selection(jax.random.key(seed), fitness, fraction=0.34)
        # Two of six: the unknown one and the 1 are replaced by the 5 or the 4.
        np.testing.assert_array_equal(replaced, [False, True, False, True, False, False])
        np.testing.assert_array_equal(source[jnp.array([0, 2, 4, 5])], [0, 2, 4, 5])
        chosen |= set(np.asarray(source)[[1, 3]].tolist())
    assert chosen == {2, 4}


def test_values_of_the_replaced_change_by_either_factor():
    value, replaced = jnp.full(200, 2.0), jnp.arange(200) < 100
    new = np.asarray(perturb(jax.random.key(0), value, replaced))
    np.testing.assert_array_equal(new[100:], 2.0)
    np.testing.assert_allclose(np.unique(new[:100]), [1.6, 2.4], rtol=1e-6)
    assert 30 < (new[:100] > 2).sum() < 70


def test_refused():
    with pytest.raises(ValueError, match="`fitness` must be of a population of at least 2, got 1."):
        truncation_selection(jax.random.key(0), jnp.zeros(1))
    with pytest.raises(ValueError, match="`fraction` must be above 0 and at most 0.5, got 0.6; try 0.2."):
        truncation_selection(jax.random.key(0), jnp.zeros(4), fraction=0.6)
