"""Choices row by row."""

import jax
import jax.numpy as jnp

from jaxagents.types import Array, PyTree


def where_rows(condition: Array, on_true: PyTree, on_false: PyTree) -> PyTree:
    """Chooses between two pytrees row by row.

    Args:
        condition: bool `[*rows]`.
        on_true: leaves `[*rows, ...]`.
        on_false: the same structure and shapes.

    Returns:
        The rows of `on_true` where the condition holds, else those of `on_false`.
    """

    def choose(true_leaf: Array, false_leaf: Array) -> Array:
        if true_leaf is false_leaf:
            return true_leaf
        trailing = (1,) * (jnp.ndim(true_leaf) - condition.ndim)
        return jnp.where(condition.reshape(condition.shape + trailing), true_leaf, false_leaf)

    return jax.tree.map(choose, on_true, on_false)
