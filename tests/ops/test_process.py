"""Labels of steps and the probes that learn them, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.probes import fit_probe
from jaxagents.ops.process import first_error, propagate_errors, ternary_labels


def test_labels_of_a_walk():
    """Closer, into a wall, into the wall again, an unknown word, away, two steps back, into a hole."""
    before = jnp.array([3.0, 2.0, 2.0, 2.0, 2.0, 3.0, 2.0])
    after = jnp.array([2.0, 2.0, 2.0, 2.0, 3.0, 2.0, jnp.inf])
    allowed = jnp.array([True, True, True, False, True, True, True])
    repeated = jnp.array([False, False, True, False, False, False, False])
    label = jax.jit(ternary_labels)(before, after, allowed, repeated)
    np.testing.assert_array_equal(label, [1, 0, -1, -1, -1, 1, -1])
    np.testing.assert_array_equal(ternary_labels(before[None], after[None], allowed[None], repeated[None])[0], label)


def test_what_is_built_on_an_error_is_wrong_until_it_is_made_up_for():
    """Two steps away at distances 3 and 4, one back that does not suffice, a rest, and the one that does."""
    before = jnp.array([4.0, 3.0, 4.0, 5.0, 4.0, 4.0, 3.0])
    after = jnp.array([3.0, 4.0, 5.0, 4.0, 4.0, 3.0, 2.0])
    label = jnp.array([1, -1, -1, 1, 0, 1, 1])
    propagated = jax.jit(propagate_errors)(label, before, after)
    np.testing.assert_array_equal(propagated, [1, -1, -1, -1, -1, 1, 1])
    # An action that changed nothing is made up for by the next good one; of several rows, each has errors of its own.
    rows = propagate_errors(
        jnp.array([[-1, 1], [0, 1]]), jnp.array([[2.0, 2.0], [2.0, 2.0]]), jnp.array([[2.0, 1.0], [2.0, 1.0]])
    )
    np.testing.assert_array_equal(rows, [[-1, 1], [0, 1]])


def test_the_first_error_is_found_among_steps_that_took_place():
    label = jnp.array([[1, -1, -1], [1, 0, -1], [-1, 1, 1]])
    valid = jnp.array([[True, True, True], [True, True, False], [True, False, False]])
    np.testing.assert_array_equal(first_error(label, valid), [1, -1, 0])


def test_a_probe_finds_the_shares_of_a_feature_that_tells_nothing_and_of_one_that_does():
    """Four rows at -1, of which one is of class 1, and four at 1, of which three are; two that do not count."""
    features = jnp.array([[-1.0]] * 4 + [[1.0]] * 4 + [[50.0]] * 2)
    label = jnp.array([1, 0, 0, 0, 1, 1, 1, 0, 0, 0])
    mask = jnp.arange(10) < 8
    probe = jax.jit(lambda *given: fit_probe(*given, num_classes=2, l2=1e-4))(features, label, mask)
    chances = np.exp(probe.log_prob(jnp.array([[-1.0], [1.0], [0.0]])))
    np.testing.assert_allclose(chances[:, 1], [0.25, 0.75, 0.5], atol=1e-3)
    pulled = fit_probe(features, label, mask, num_classes=2, l2=10.0)
    assert 0.5 < float(jnp.exp(pulled.log_prob(jnp.array([1.0])))[1]) < 0.55
    # At the optimum the gradient is zero: shares of the classes are met, whatever the feature.
    constant = fit_probe(jnp.zeros((8, 1)), label[:8], mask[:8], num_classes=3, l2=1e-4)
    assert np.exp(constant.log_prob(jnp.zeros(1)))[:2] == pytest.approx([0.5, 0.5], abs=1e-3)
