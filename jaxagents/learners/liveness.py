"""What a function reads of its arguments, found by tracing it: what nobody reads need not be computed."""

from collections.abc import Callable
from typing import Any

import jax

from jaxagents.types import PyTree


def fields_read(function: Callable[..., Any], *records: PyTree) -> tuple[frozenset[str], ...]:
    """Says which fields of records of arrays a function reads, by tracing it; it is not run.

    Args:
        function: `(*records) -> pytree`.
        *records: dataclasses whose fields are `ShapeDtypeStruct`s or arrays, or None.

    Returns:
        For every record, the names of the fields that enter a computation or the result.
    """
    read = paths_read(function, *records)
    return tuple(frozenset(path[1].name for path in read if path[0].idx == index) for index in range(len(records)))


def paths_read(function: Callable[..., Any], *arguments: PyTree) -> list[tuple[Any, ...]]:
    """Says which leaves of its arguments enter what a function computes or returns, by tracing it; it is not run.

    Args:
        function: `(*arguments) -> pytree`.
        *arguments: pytrees of `ShapeDtypeStruct`s or arrays.

    Returns:
        The key paths of these leaves in the tuple of the arguments, in order.
    """
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(arguments)[0]]
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    used = {id(var) for equation in jaxpr.eqns for var in equation.invars} | {id(var) for var in jaxpr.outvars}
    return [path for path, var in zip(paths, jaxpr.invars, strict=True) if id(var) in used]
