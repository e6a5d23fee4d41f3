"""Choices of what to compute that stay choices in a batch: of seeds, of members of a population."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from jaxagents.types import Array, PyTree


def cond(predicate: Array, on_true: Callable[..., PyTree], on_false: Callable[..., PyTree], *operands: Any) -> PyTree:
    """Computes `on_true(*operands)` or `on_false(*operands)` as `jax.lax.cond`, under `jax.vmap`, too.

    A batch of predicates turns `jax.lax.cond` into a selection, for which both sides are always computed. Here a batch
    in which no predicate holds computes `on_false` only; where one holds, both are computed and selected from.

    Args:
        predicate: bool `[]`.
        on_true: `(*operands) -> result`, the dear side; what it closes over must not be mapped by a `vmap`.
        on_false: likewise, of the same shapes.
        *operands: trees of arrays.

    Returns:
        The result. Deviation from `jax.lax.cond`: it has no gradient in reverse mode.
    """

    def select(predicate: Array, *operands: Any) -> PyTree:
        return jax.lax.cond(predicate, on_true, on_false, *operands)

    def skip(_: Array, *operands: Any) -> PyTree:
        return on_false(*operands)

    choose = custom_vmap(select)

    @choose.def_vmap
    def choose_in_batch(size: int, batched: Any, predicate: Array, *operands: Any) -> tuple[PyTree, PyTree]:
        def as_batch(leaf: Array, is_batch: bool) -> Array:
            return leaf if is_batch else jnp.broadcast_to(leaf, (size, *jnp.shape(leaf)))

        differs, operands = batched[0], jax.tree.map(as_batch, operands, tuple(batched[1:]))
        if differs:
            result = cond(jnp.any(predicate), jax.vmap(select), jax.vmap(skip), predicate, *operands)
        else:
            result = cond(predicate, jax.vmap(on_true), jax.vmap(on_false), *operands)
        return result, jax.tree.map(lambda _: True, result)

    return choose(predicate, *operands)
