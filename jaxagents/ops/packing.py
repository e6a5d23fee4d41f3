"""Trees of small arrays as few arrays: what is done to all of them alike is then one kernel."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.types import Array, PyTree


def pack(tree: PyTree) -> list[Array]:
    """Stacks the leaves of one shape and type, `n` times `[...]` to `[..., n]`; many kernels take long to compile.

    Args:
        tree: of arrays.

    Returns:
        An array for every shape and type, in the order in which they first appear.
    """
    alike: dict[Any, list[Array]] = {}
    for leaf in map(jnp.asarray, jax.tree.leaves(tree)):
        alike.setdefault((leaf.shape, leaf.dtype), []).append(leaf)
    return [jnp.stack(leaves, axis=-1) for leaves in alike.values()]


def unpack(packed: list[Array], tree: PyTree) -> PyTree:
    """Undoes `pack`; of arrays that have lost or gained axes on the left, so do the leaves.

    Args:
        packed: as `pack` returned it, or what was made of it.
        tree: what was packed, or its shapes and types.

    Returns:
        A tree of that structure.
    """
    leaves, structure = jax.tree.flatten(tree)
    kinds = [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]
    rows = {kind: iter(jnp.unstack(array, axis=-1)) for kind, array in zip(dict.fromkeys(kinds), packed, strict=True)}
    return jax.tree.unflatten(structure, [next(rows[kind]) for kind in kinds])


@struct.dataclass
class Rows:
    """A tree of leaves `[..., *shape]` that share their leading axes; see `pack_rows`.

    Attributes:
        columns: one array `[..., D]` for every type, the narrow leaves beside each other.
        wide: the other leaves, as they are.
        layout: structure of the tree, and the shape without leading axes and the type of every leaf; static.
    """

    columns: dict[str, Array]
    wide: tuple[Array, ...]
    layout: tuple[Any, ...] = struct.field(pytree_node=False)


def pack_rows(tree: PyTree, *, num_axes: int, widest: int = 64) -> Rows:
    """Puts narrow leaves beside each other: a loop that stacks them, or a buffer, then writes and reads few arrays.

    Booleans lie among the integers of 32 bits. Values come back as they were, bit by bit.

    Args:
        tree: of arrays `[..., *shape]`.
        num_axes: leading axes that all leaves share.
        widest: most numbers of one row of a narrow leaf. Wide ones are left alone, so that the compiler can leave out
            those that nobody reads.

    Returns:
        The rows; what maps over their leading axes, or adds some, maps over those of every leaf.
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
    """Undoes `pack_rows`, whatever the leading axes are by now."""
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
    """Returns the type of the array that a narrow leaf is part of, None for a wide one or what is no number."""
    if jnp.issubdtype(dtype, jax.dtypes.extended) or math.prod(shape) > widest:
        return None
    return "int32" if dtype == jnp.bool_ else jnp.dtype(dtype).name
