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
        on_true: `(*operands) -> result`, the dear side.
        on_false: likewise, of the same shapes; cheap, as it is compiled twice.
        *operands: trees of arrays.

    Returns:
        The result.
    """

    def select(*operands: Any) -> PyTree:
        return jax.lax.cond(predicate, on_true, on_false, *operands)

    return jax.lax.cond(any_of_batch(predicate), select, on_false, *operands)


@custom_vmap
def any_of_batch(predicate: Array) -> Array:
    """Returns the predicate, and in a batch of them whether any holds: one number, whatever `jax.vmap` maps over."""
    return predicate


@any_of_batch.def_vmap
def _reduce(size: int, batched: list[bool], predicate: Array) -> tuple[Array, bool]:
    del size, batched  # A predicate that is not of the batch does not come here.
    return any_of_batch(jnp.any(predicate, axis=0)), False


@custom_vmap
def max_of_batch(number: Array) -> Array:
    """Returns the number, and in a batch of them the greatest: one number, whatever `jax.vmap` maps over.

    A batch of numbers turns `jax.lax.switch` into a selection, for which all branches are computed. This one keeps it a
    choice, where a branch does all that those before it do.
    """
    return number


@max_of_batch.def_vmap
def _greatest(size: int, batched: list[bool], number: Array) -> tuple[Array, bool]:
    del size, batched
    return max_of_batch(jnp.max(number, axis=0)), False
