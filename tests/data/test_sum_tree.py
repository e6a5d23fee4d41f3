"""The sum tree against sums and frequencies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.data.sum_tree import get_leaves, init_sum_tree, sample_leaves, set_leaves


@pytest.mark.parametrize(("num_leaves", "size"), [(1, 2), (2, 4), (3, 8), (5, 16), (8, 16)])
def test_size_is_twice_the_next_power_of_two(num_leaves, size):
    assert init_sum_tree(num_leaves).shape == (size,)


def test_nodes_by_hand():
    nodes = set_leaves(init_sum_tree(4), jnp.array([0, 1, 3]), jnp.array([1.0, 2.0, 4.0]))
    np.testing.assert_array_equal(nodes[1:], [7.0, 3.0, 4.0, 1.0, 2.0, 0.0, 4.0])
    nodes = set_leaves(nodes, jnp.array([1]), jnp.array([0.0]))
    np.testing.assert_array_equal(nodes[1:], [5.0, 1.0, 4.0, 1.0, 0.0, 0.0, 4.0])
    np.testing.assert_array_equal(get_leaves(nodes, jnp.array([3, 1])), [4.0, 0.0])


def test_repeated_indices_keep_the_sums():
    nodes = set_leaves(init_sum_tree(4), jnp.array([2, 2, 2, 0]), jnp.array([5.0, 5.0, 5.0, 1.0]))
    np.testing.assert_array_equal(nodes[1:], [6.0, 1.0, 5.0, 1.0, 0.0, 5.0, 0.0])


def test_sums_do_not_drift():
    def overwrite(nodes, key):
        index_key, value_key = jax.random.split(key)
        indices = jax.random.randint(index_key, (8,), 0, 60)
        return set_leaves(nodes, indices, 1e3 * jax.random.uniform(value_key, (8,)) ** 8), None

    nodes, _ = jax.jit(lambda nodes, keys: jax.lax.scan(overwrite, nodes, keys))(
        init_sum_tree(60), jax.random.split(jax.random.key(0), 500)
    )
    np.testing.assert_allclose(nodes[1], np.sum(np.asarray(nodes[64:], np.float64)), rtol=1e-6)


def test_stratified_samples_have_the_exact_frequencies():
    nodes = set_leaves(init_sum_tree(5), jnp.arange(5), jnp.array([1.0, 0.0, 2.0, 0.0, 5.0]))
    counts = np.bincount(sample_leaves(nodes, jax.random.key(0), 80), minlength=8)
    # Each of the 80 strata lies within one leaf, because 1/8, 2/8 and 5/8 are multiples of 1/80.
    np.testing.assert_array_equal(counts, [10, 0, 20, 0, 50, 0, 0, 0])


def test_an_empty_tree_gives_the_first_leaf():
    np.testing.assert_array_equal(sample_leaves(init_sum_tree(5), jax.random.key(0), 3), [0, 0, 0])


def test_rounding_up_to_the_total_stays_on_positive_leaves():
    nodes = set_leaves(init_sum_tree(2), jnp.array([0]), jnp.array([1.0]))
    # In float32 the last of so many strata sometimes reaches its upper end; with this key it does.
    samples = jax.jit(sample_leaves, static_argnums=2)(nodes, jax.random.key(8), 2**23)
    assert int(samples.max()) == 0


@pytest.mark.exhaustive
def test_leaves_of_value_zero_are_never_drawn():
    values = jnp.where(jnp.arange(100) % 3 == 0, 0.1, 0.0)
    nodes = set_leaves(init_sum_tree(100), jnp.arange(100), values)
    samples = jax.jit(sample_leaves, static_argnums=2)(nodes, jax.random.key(0), 10_000)
    assert np.all(np.asarray(samples) % 3 == 0) and np.all(np.asarray(samples) < 100)
