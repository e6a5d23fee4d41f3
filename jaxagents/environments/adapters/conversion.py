"""Turns what public suites say into our types."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.types import Array, Box, Discrete, PyTree, Task


def permissive(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lets foreign code broadcast over ranks where the caller has set `jax_numpy_rank_promotion` to raise."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        with jax.numpy_rank_promotion("allow"):
            return function(*args, **kwargs)

    return call


def sample_key_task(key: Array, level: Array | None = None) -> Task:
    """Draws the task of a suite whose instances are fixed by a key alone; such suites have no levels.

    Args:
        key: PRNG key.
        level: ignored.

    Returns:
        `{"key": uint32 [2]}`, plain data that can be stored, compared and repeated.
    """
    del level
    return {"key": jax.random.key_data(key)}


def task_key(task: Task) -> Array:
    """Returns the PRNG key that fixes the instance."""
    return jax.random.wrap_key_data(task["key"])


def cast_like(template: PyTree, tree: PyTree) -> PyTree:
    """Casts every leaf to the dtype of the template, as strong types: a scan wants the same types at every step."""
    return jax.tree.map(lambda like, leaf: jnp.asarray(leaf, like.dtype), template, tree)


def strong_types(tree: PyTree) -> PyTree:
    """Turns Python scalars and weakly typed leaves into arrays of the dtype that they have anyway."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.asarray(leaf).dtype), tree)


def convert_space(space: Any) -> Discrete | Box:
    """Converts a space with `n`, or with `low`, `high` and `shape`, as gymnax, craftax and jaxmarl write them.

    Args:
        space: the suite's space. Bounds that differ between elements are widened to the outermost ones, and the
            largest float counts as unbounded.

    Returns:
        The space in our types.
    """
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    low, high = float(np.min(space.low)), float(np.max(space.high))
    largest = float(np.finfo(np.float32).max)
    return Box(
        shape=tuple(space.shape),
        low=-np.inf if low <= -largest else low,
        high=np.inf if high >= largest else high,
        dtype=np.dtype(space.dtype).type,
    )


def unbounded_space(shape: tuple[int, ...], dtype: Any) -> Box:
    """Makes the space of arrays of which nothing more is known; bool arrays are in [0, 1]."""
    dtype = np.dtype(dtype).type
    return Box(tuple(shape), 0.0, 1.0, dtype) if dtype is np.bool_ else Box(tuple(shape), dtype=dtype)
