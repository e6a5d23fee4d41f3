"""Trees of small arrays as a few arrays: an operation on all of them is then a single kernel."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.types import Array, PyTree


def pack(tree: PyTree) -> list[Array]:
    """Stacks leaves of the same shape and dtype, `n` times `[...]` to `[..., n]`; many kernels take long to compile.

    Args:
        tree: tree of arrays.

    Returns:
        A list with an array for every shape and dtype, in the order in which they first appear.
    """
    alike: dict[Any, list[Array]] = {}
    for leaf in map(jnp.asarray, jax.tree.leaves(tree)):
        alike.setdefault((leaf.shape, leaf.dtype), []).append(leaf)
    return [jnp.stack(leaves, axis=-1) for leaves in alike.values()]


def unpack(packed: list[Array], tree: PyTree) -> PyTree:
    """Undoes `pack`; if the arrays have lost or gained leading axes, so have the leaves.

    Args:
        packed: list that `pack` returned, or arrays computed from it.
        tree: packed tree, or its shapes and dtypes.

    Returns:
        A tree of the same structure.
    """
    leaves, structure = jax.tree.flatten(tree)
    kinds = [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]
    rows = {kind: iter(jnp.unstack(array, axis=-1)) for kind, array in zip(dict.fromkeys(kinds), packed, strict=True)}
    return jax.tree.unflatten(structure, [next(rows[kind]) for kind in kinds])


@struct.dataclass
class Rows:
    """A tree of leaves `[..., *shape]` that share their leading axes; see `pack_rows`.

    Attributes:
        columns: one array `[..., D]` for every dtype, which holds the narrow leaves next to each other.
        wide: other leaves, unchanged.
        layout: structure of the tree, and the shape without leading axes and the dtype of every leaf; static.
    """

    columns: dict[str, Array]
    wide: tuple[Array, ...]
    layout: tuple[Any, ...] = struct.field(pytree_node=False)


def pack_rows(tree: PyTree, *, num_axes: int, widest: int = 64) -> Rows:
    """Joins narrow leaves, so that a loop that stacks them, or a buffer, reads and writes fewer arrays.

    Booleans are stored with the 32-bit integers. All values are restored bit by bit.

    Args:
        tree: tree of arrays `[..., *shape]`.
        num_axes: number of leading axes that all leaves share.
        widest: greatest number of elements per row in a narrow leaf. Wide leaves are left alone, so that the compiler
            can leave out unused ones.

    Returns:
        The rows; mapping over their leading axes, or adding axes, does the same to every leaf.
    """
    leaves, structure = jax.tree.flatten(tree)
    kinds = tuple((leaf.shape[num_axes:], leaf.dtype) for leaf in leaves)
    columns: dict[str, list[Array]] = {}
    wide = []
    for leaf, kind in zip(leaves, kinds, strict=True):
        name = _column_of(*kind, widest)
        if name is None:
            wide.append(leaf)
        else:
            columns.setdefault(name, []).append(leaf.astype(name).reshape((*leaf.shape[:num_axes], -1)))
    packed = {name: jnp.concatenate(rows, axis=-1) for name, rows in columns.items()}
    return Rows(columns=packed, wide=tuple(wide), layout=(structure, kinds, widest))


def unpack_rows(rows: Rows) -> PyTree:
    """Undoes `pack_rows`, even if the leading axes have changed."""
    structure, kinds, widest = rows.layout
    wide, taken, leaves = iter(rows.wide), dict.fromkeys(rows.columns, 0), []
    for shape, dtype in kinds:
        name = _column_of(shape, dtype, widest)
        if name is None:
            leaves.append(next(wide))
            continue
        columns, start, width = rows.columns[name], taken[name], math.prod(shape)
        leaf = jax.lax.slice_in_dim(columns, start, start + width, axis=-1)
        leaves.append(leaf.reshape((*columns.shape[:-1], *shape)).astype(dtype))
        taken[name] += width
    return jax.tree.unflatten(structure, leaves)


def _column_of(shape: tuple[int, ...], dtype: Any, widest: int) -> str | None:
    """Returns the dtype of the array that holds a narrow leaf; None for wide leaves and leaves that are not numbers."""
    if jnp.issubdtype(dtype, jax.dtypes.extended) or math.prod(shape) > widest:
        return None
    return "int32" if dtype == jnp.bool_ else jnp.dtype(dtype).name
