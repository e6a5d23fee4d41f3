"""Conditional computations that remain conditional in a batch, such as one of seeds or members of a population."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from jaxagents.types import Array, PyTree


def cond(predicate: Array, on_true: Callable[..., PyTree], on_false: Callable[..., PyTree], *operands: Any) -> PyTree:
    """Computes `on_true(*operands)` or `on_false(*operands)` like `jax.lax.cond`, but also under `jax.vmap`.

    With a batch of predicates, `jax.lax.cond` becomes a selection that always computes both sides. Here, a batch in
    which no predicate holds computes only `on_false`; if one holds, both are computed and selected from.

    Args:
        predicate: bool `[]`.
        on_true: `(*operands) -> result`, the expensive branch.
        on_false: function with the same shapes; it should be cheap, because it is compiled twice.
        *operands: trees of arrays.

    Returns:
        The result.
    """

    def select(*operands: Any) -> PyTree:
        return jax.lax.cond(predicate, on_true, on_false, *operands)

    return jax.lax.cond(any_of_batch(predicate), select, on_false, *operands)


@custom_vmap
def any_of_batch(predicate: Array) -> Array:
    """Returns the predicate; in a batch, whether any of them holds: one value, whatever `jax.vmap` maps over."""
    return predicate


@any_of_batch.def_vmap
def _reduce(size: int, batched: list[bool], predicate: Array) -> tuple[Array, bool]:
    del size, batched  # A predicate that does not depend on the batch never gets here.
    return any_of_batch(jnp.any(predicate, axis=0)), False


@custom_vmap
def max_of_batch(number: Array) -> Array:
    """Returns the number; in a batch, the greatest of them: one value, whatever `jax.vmap` maps over.

    With a batch of numbers, `jax.lax.switch` becomes a selection that computes all branches. This keeps it conditional,
    if each branch also does what the branches before it do.
    """
    return number


@max_of_batch.def_vmap
def _greatest(size: int, batched: list[bool], number: Array) -> tuple[Array, bool]:
    del size, batched
    return max_of_batch(jnp.max(number, axis=0)), False
