"""Choices row by row, and rows of all devices."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.ops.rows import first_row, rows_of_all_devices, where_rows


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
