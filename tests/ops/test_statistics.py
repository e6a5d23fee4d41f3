"""Running statistics against numpy over everything seen."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.ops.statistics import init_statistics, normalize, update_statistics
from jaxagents.types import Box, Discrete


def test_two_batches_by_hand():
    statistics = init_statistics(jnp.zeros(1))
    statistics = update_statistics(statistics, jnp.array([[1.0], [3.0]]))
    assert (float(statistics.mean[0]), float(statistics.variance[0]), float(statistics.count)) == (2.0, 1.0, 2.0)
    # 1, 3, 5, 7: mean 4, deviations 9 + 1 + 1 + 9.
    statistics = update_statistics(statistics, jnp.array([[5.0], [7.0]]))
    assert (float(statistics.mean[0]), float(statistics.variance[0]), float(statistics.count)) == (4.0, 5.0, 4.0)


def test_elements_that_are_masked_do_not_count():
    values, mask = jnp.array([[[1.0], [99.0]], [[3.0], [99.0]]]), jnp.array([[True, False], [True, False]])
    statistics = update_statistics(init_statistics(jnp.zeros(1)), values, mask=mask)
    assert (float(statistics.mean[0]), float(statistics.variance[0]), float(statistics.count)) == (2.0, 1.0, 2.0)
    nobody = update_statistics(statistics, values, mask=jnp.zeros((2, 2), bool))
    jax.tree.map(np.testing.assert_array_equal, nobody, statistics)
    nothing = update_statistics(init_statistics(jnp.zeros(1)), values, mask=jnp.zeros((2, 2), bool))
    jax.tree.map(np.testing.assert_array_equal, nothing, init_statistics(jnp.zeros(1)))


def test_unequal_batches_of_a_tree_agree_with_numpy():
    generator = np.random.default_rng(0)
    image = generator.integers(0, 255, (30, 2, 3)).astype(np.uint8)
    flag = generator.random(30) < 0.3
    statistics = init_statistics({"image": Box((2, 3)), "flag": Discrete(2)})
    for part in (slice(0, 4), slice(4, 24), slice(24, 30)):
        batch = {"image": jnp.asarray(image[part]).reshape(2, -1, 2, 3), "flag": jnp.asarray(flag[part]).reshape(2, -1)}
        statistics = update_statistics(statistics, batch)
    np.testing.assert_allclose(statistics.mean["image"], image.mean(0), rtol=1e-5)
    np.testing.assert_allclose(statistics.variance["image"], image.var(0), rtol=1e-5)
    np.testing.assert_allclose(statistics.mean["flag"], flag.mean(), rtol=1e-5)
    np.testing.assert_allclose(statistics.variance["flag"], flag.var(), rtol=1e-5)
    assert float(statistics.count) == 30.0


def test_large_offset_keeps_its_digits():
    values = 1e4 + np.random.default_rng(0).normal(size=(64, 1)).astype(np.float32)
    statistics = init_statistics(jnp.zeros(1))
    for part in np.split(values, 8):
        statistics = update_statistics(statistics, jnp.asarray(part))
    np.testing.assert_allclose(statistics.variance, values.astype(np.float64).var(0), rtol=1e-2)


def test_devices_agree_with_one_device():
    values = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6, 2)), jnp.float32)
    statistics = update_statistics(init_statistics(jnp.zeros(2)), values[0] + 3.0)
    expected = update_statistics(statistics, values)
    parallel = jax.vmap(lambda part: update_statistics(statistics, part, axis_name="device"), axis_name="device")(
        values
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(jnp.broadcast_to(a, b.shape), b, rtol=1e-5), expected, parallel
    )


def test_normalize_standardises_clips_and_casts():
    statistics = update_statistics(init_statistics(jnp.zeros(())), jnp.array([0, 4], jnp.int32))
    normalized = normalize(statistics, jnp.array([[0, 4, 2, 1000]], jnp.int32), clip=5.0)
    assert normalized.dtype == jnp.float32
    np.testing.assert_allclose(normalized, [[-1.0, 1.0, 0.0, 5.0]], rtol=1e-6)


def test_normalize_with_nothing_seen_changes_nothing():
    statistics = init_statistics(Box((2,)))
    np.testing.assert_allclose(normalize(statistics, jnp.array([[1.0, -2.0]])), [[1.0, -2.0]], rtol=1e-6)
    constant = update_statistics(statistics, jnp.full((3, 2), 7.0))
    np.testing.assert_array_equal(normalize(constant, jnp.full((3, 2), 7.0)), 0.0)


def test_gradient_flows_to_values_and_not_to_statistics():
    statistics = update_statistics(init_statistics(jnp.zeros(1)), jnp.array([[1.0], [3.0]]))
    to_statistics, to_values = jax.grad(lambda s, v: normalize(s, v).sum(), (0, 1))(statistics, jnp.array([[2.5]]))
    assert all(np.all(leaf == 0.0) for leaf in jax.tree.leaves(to_statistics))
    np.testing.assert_allclose(to_values, [[1.0]], rtol=1e-6)


def test_jit_changes_nothing():
    statistics = init_statistics(jnp.zeros(2))
    batch = jnp.arange(12.0).reshape(3, 2, 2)
    jax.tree.map(
        np.testing.assert_allclose, update_statistics(statistics, batch), jax.jit(update_statistics)(statistics, batch)
    )
