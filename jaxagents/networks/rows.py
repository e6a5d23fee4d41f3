"""Observations as rows of a matrix: on CPU, gradients of matrix products are faster than those of more axes."""

from collections.abc import Callable

from jaxagents.types import Array


def as_rows(values: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Joins the axes before the last one, if the first of them has one element, as that of time in feed-forward use.

    Other arrays stay as they are: joining a time axis with the axis of environments, which devices may split, would
    move data between them.

    Args:
        values: `[1, B, ..., D]`, or any other shape.

    Returns:
        `values` as `[B * ..., D]`, and the function that gives results `[B * ..., F]` the axes `[1, B, ..., F]`.
    """
    if values.ndim < 3 or values.shape[0] != 1:
        return values, lambda results: results
    leading = values.shape[:-1]
    return values.reshape(-1, values.shape[-1]), lambda results: results.reshape(*leading, *results.shape[1:])
