"""Choices row by row."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.ops.rows import where_rows


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
