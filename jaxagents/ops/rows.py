"""Choices row by row, and the rows of all devices."""

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


def rows_of_all_devices(tree: PyTree, axis_name: str | None) -> PyTree:
    """Gathers rows from the devices, those of the first one first.

    Args:
        tree: leaves `[n, ...]`, the rows of this device.
        axis_name: mapped device axis; None returns the tree as it is.

    Returns:
        Leaves `[D n, ...]`, the same on every device.
    """
    if axis_name is None:
        return tree
    return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, axis_name, tiled=True), tree)


def first_row(num_rows: int, axis_name: str | None) -> Array | int:
    """Returns where the rows of this device begin among those of all devices, which have `num_rows` each."""
    return 0 if axis_name is None else jax.lax.axis_index(axis_name) * num_rows
