"""Trees of small arrays as few arrays: what is done to all of them alike is then one kernel."""

from typing import Any

import jax
import jax.numpy as jnp

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
