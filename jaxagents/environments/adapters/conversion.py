"""Converts spaces, actions and types of public suites to those of this package."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.types import Array, Box, Discrete, PyTree, Task


def permissive(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lets external code broadcast over ranks even if the caller has set `jax_numpy_rank_promotion` to raise."""

    @wraps(function)
    def call(*args, **kwargs):
        with jax.numpy_rank_promotion("allow"):
            return function(*args, **kwargs)

    return call


def sample_key_task(key: Array, level: Array | None = None) -> Task:
    """Draws the task of a suite whose instances are determined by a key alone; such suites have no levels.

    Args:
        key: PRNG key.
        level: ignored.

    Returns:
        `{"key": uint32 [2]}`, plain data that can be stored, compared and reused.
    """
    del level
    return {"key": jax.random.key_data(key)}


def task_key(task: Task) -> Array:
    """Returns the PRNG key that determines the instance."""
    return jax.random.wrap_key_data(task["key"])


def cast_like(template: PyTree, tree: PyTree) -> PyTree:
    """Casts every leaf to the dtype of the template, as strong types: a scan needs the same types at every step."""
    return jax.tree.map(lambda like, leaf: jnp.asarray(leaf, like.dtype), template, tree)


def strong_types(tree: PyTree) -> PyTree:
    """Converts Python scalars and weakly typed leaves to arrays of the dtype that they already have."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.asarray(leaf).dtype), tree)


def convert_space(space: Any) -> Discrete | Box:
    """Converts a space with `n`, or with `low`, `high` and `shape`, as in gymnax, craftax and jaxmarl.

    Args:
        space: space of the suite. Bounds that differ between elements are widened to the outermost ones, and the
            largest float counts as unbounded. For actions see `convert_actions`.

    Returns:
        The space in types of this package.
    """
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    low, high = bounds_of(space)
    return Box(tuple(space.shape), float(np.min(low)), float(np.max(high)), np.dtype(space.dtype).type)


def convert_actions(space: Any) -> tuple[Discrete | Box, Callable[[Array], Array]]:
    """Returns the action space for policies, and the function from its actions to the suite's, see `to_bounds`."""
    ours = convert_space(space)
    if isinstance(ours, Discrete):
        return ours, lambda action: action
    low, high = bounds_of(space)
    shared = shared_bounds(low, high)
    return replace(ours, low=shared[0], high=shared[1]), partial(to_bounds, low=low, high=high, shared=shared)


def bounds_of(space: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bounds of every number of a box; the largest float counts as unbounded."""
    low, high = (np.broadcast_to(bound, space.shape) for bound in (space.low, space.high))
    largest = np.finfo(np.float32).max
    return np.where(low <= -largest, -np.inf, low), np.where(high >= largest, np.inf, high)


def shared_bounds(low: np.ndarray, high: np.ndarray) -> tuple[float, float]:
    """Returns the bounds for policies: those of all numbers if equal, else [-1, 1], or none if some are infinite."""
    if np.all(low == low.flat[0]) and np.all(high == high.flat[0]):
        return float(low.flat[0]), float(high.flat[0])
    return (-1.0, 1.0) if np.all(np.isfinite(low) & np.isfinite(high)) else (-np.inf, np.inf)


def to_bounds(action: Any, *, low: np.ndarray, high: np.ndarray, shared: tuple[float, float]) -> Any:
    """Converts actions of a policy to those of a suite.

    Args:
        action: array of numpy or of JAX, in the `shared` bounds.
        low: lower bound of every number.
        high: upper bound of every number.
        shared: see `shared_bounds`.

    Returns:
        The action itself if the bounds of all numbers are the shared ones. Otherwise, [-1, 1] is scaled to the bounds
        of every number; if some are infinite, actions are clipped.
    """
    if np.all(low == shared[0]) and np.all(high == shared[1]):
        return action
    if not np.isfinite(shared[0]):
        return action.clip(low, high)
    return (low + 0.5 * (action + 1.0) * (high - low)).clip(low, high)


def unbounded_space(shape: tuple[int, ...], dtype: Any) -> Box:
    """Makes the space of arrays whose bounds are unknown; bool arrays are in [0, 1]."""
    dtype = np.dtype(dtype).type
    return Box(tuple(shape), 0.0, 1.0, dtype) if dtype is np.bool_ else Box(tuple(shape), dtype=dtype)
