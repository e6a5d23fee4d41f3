"""Choices between rows of arrays of any rank."""

import jax.numpy as jnp

from jaxagents.types import Array


def where_rows(condition: Array, when_true: Array, when_false: Array) -> Array:
    """Takes whole rows of one array or the other: `out[b] = when_true[b] if condition[b] else when_false[b]`.

    Args:
        condition: bool `[B]`.
        when_true: `[B, ...]`.
        when_false: `[B, ...]`.

    Returns:
        `[B, ...]`.
    """
    return jnp.where(condition.reshape(-1, *(1,) * (when_false.ndim - 1)), when_true, when_false)
