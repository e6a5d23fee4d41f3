"""Choices row by row, and rows of all devices."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.ops.rows import first_row, rows_of_all_devices, smallest, where_rows


def test_where_rows_takes_leaves_of_any_rank():
    condition = jnp.array([True, False])
    ones, zeros = (
        {"a": jnp.full((2,), v), "b": jnp.full((2, 3, 1), v), "key": jax.random.split(jax.random.key(v), 2)}
        for v in (1, 0)
    )
    chosen = jax.jit(where_rows)(condition, ones, zeros)
    np.testing.assert_array_equal(chosen["a"], [1, 0])
    np.testing.assert_array_equal(chosen["b"][:, :, 0], [[1, 1, 1], [0, 0, 0]])
    expected = jnp.stack([jax.random.key_data(ones["key"])[0], jax.random.key_data(zeros["key"])[1]])
    np.testing.assert_array_equal(jax.random.key_data(chosen["key"]), expected)


def test_rows_of_all_devices_are_in_their_order():
    rows = {"a": jnp.arange(6.0).reshape(3, 2, 1), "b": jnp.arange(6).reshape(3, 2) > 2}

    def gather(own):
        return rows_of_all_devices(own, "devices"), first_row(2, "devices") + jnp.arange(2)

    gathered, places = jax.vmap(gather, axis_name="devices")(rows)
    for device in range(3):
        np.testing.assert_array_equal(gathered["a"][device, :, 0], jnp.arange(6.0))
        np.testing.assert_array_equal(gathered["b"][device][places[device]], rows["b"][device])
    assert rows_of_all_devices(rows, None) is rows and first_row(2, None) == 0


def test_the_gradient_of_the_smallest_goes_to_the_first_of_the_smallest_entries():
    values = jnp.array([[3.0, 1.0, 2.0], [3.0, 5.0, -1.0]])
    np.testing.assert_array_equal(smallest(values), [3.0, 1.0, -1.0])
    np.testing.assert_array_equal(smallest(values, axis=1), [1.0, -1.0])
    np.testing.assert_array_equal(jax.grad(lambda v: smallest(v).sum())(values), [[1, 1, 0], [0, 0, 1]])
    assert np.isnan(smallest(jnp.array([1.0, jnp.nan])))


def test_the_gradient_of_the_smallest_survives_entries_that_a_compiler_computes_twice():
    """Of `-4 (x - best)^2`, whose rounding differs from kernel to kernel, `jnp.min` has gradients that are infinite."""
    x, best, height = jnp.linspace(-1.5, 0.6, 64), jnp.array([0.0, 0.1]), jnp.zeros(2)

    def total(shift, best, height, x):
        return smallest(height[:, None] - 4.0 * jnp.square(0.1 * x[None] + shift - best[:, None])).sum()

    expected = (-8.0 * (0.1 * np.asarray(x) - 1.0 - 0.1)).sum()
    np.testing.assert_allclose(jax.jit(jax.grad(total))(-1.0, best, height, x), expected, rtol=1e-5)
