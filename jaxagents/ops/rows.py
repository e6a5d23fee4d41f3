"""Row-wise selection, and the rows of all devices."""

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


def clear_first(first: Array, previous: PyTree) -> PyTree:
    """Sets entries that belong to an earlier episode to zero: `first` is bool `[...]`, leaves are `[..., ...]`."""
    return where_rows(first, jax.tree.map(jnp.zeros_like, previous), previous)


def smallest(values: Array, *, axis: int = 0) -> Array:
    """Returns the minima over an axis, whose gradient flows to the first smallest entry only.

    The gradient of `jnp.min` divides by the number of entries that equal the minimum. If a compiler computes the
    entries a second time with different rounding, none does, and the gradient is not finite.

    Args:
        values: `[...]`.
        axis: axis over which the minimum is taken.

    Returns:
        The minima, without that axis.
    """
    chosen = jax.nn.one_hot(jnp.argmin(values, axis=axis), values.shape[axis], axis=axis, dtype=bool)
    return jnp.sum(jnp.where(chosen, values, 0.0), axis=axis)


def rows_of_all_devices(tree: PyTree, axis_name: str | None) -> PyTree:
    """Gathers rows from all devices, those of the first device first.

    Args:
        tree: leaves `[n, ...]`, the rows of this device.
        axis_name: mapped device axis; None returns the tree unchanged.

    Returns:
        Leaves `[D n, ...]`, the same on every device.
    """
    if axis_name is None:
        return tree
    return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, axis_name, tiled=True), tree)


def first_row(num_rows: int, axis_name: str | None) -> Array | int:
    """Returns the index of this device's first row among the rows of all devices, which have `num_rows` each."""
    return 0 if axis_name is None else jax.lax.axis_index(axis_name) * num_rows


def share_of_device(rows: PyTree, axis_name: str | None) -> PyTree:
    """Returns the rows that this device works on, out of rows that every device has.

    Args:
        rows: leaves `[n, ...]`, the same on every device.
        axis_name: mapped device axis; None returns all rows.

    Returns:
        Leaves `[n / D, ...]`, or all rows if D, the number of devices, does not divide n.
    """
    num_devices = 1 if axis_name is None else jax.lax.axis_size(axis_name)
    size, rest = divmod(jax.tree.leaves(rows)[0].shape[0], num_devices)
    if num_devices == 1 or rest:
        return rows
    start = jax.lax.axis_index(axis_name) * size
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, size), rows)


def put_in_front(queue: PyTree, filled: Array, rows: PyTree, chosen: Array) -> tuple[PyTree, Array]:
    """Puts the chosen rows in front of a queue, in their order, and closes gaps; rows that do not fit are lost.

    Args:
        queue: leaves `[C, ...]`.
        filled: bool `[C]`, which rows of the queue are in use.
        rows: leaves `[n, ...]`, new rows.
        chosen: bool `[n]`, which of them are added.

    Returns:
        The queue, and which of its rows are in use.
    """
    valid = jnp.concatenate([chosen, filled])
    order = jnp.argsort(~valid, stable=True)[: filled.shape[0]]
    moved = jax.tree.map(lambda new, old: jnp.concatenate([new, old])[order], rows, queue)
    return moved, valid[order]
