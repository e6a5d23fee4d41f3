"""Inputs that a function reads, found by tracing it: inputs that are not read need not be computed."""

from collections.abc import Callable
from typing import Any

import jax

from jaxagents.types import PyTree


def fields_read(function: Callable[..., Any], *records: PyTree) -> tuple[frozenset[str], ...]:
    """Finds which fields of records of arrays a function reads, by tracing it without running it.

    Args:
        function: `(*records) -> pytree`.
        *records: dataclasses whose fields are `ShapeDtypeStruct`s or arrays, or None.

    Returns:
        For every record, the names of the fields that affect a computation or the result.
    """
    read = paths_read(function, *records)
    return tuple(frozenset(path[1].name for path in read if path[0].idx == index) for index in range(len(records)))


def paths_read(function: Callable[..., Any], *arguments: PyTree) -> list[tuple[Any, ...]]:
    """Finds which leaves of its arguments affect what a function computes or returns, by tracing it without running it.

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
