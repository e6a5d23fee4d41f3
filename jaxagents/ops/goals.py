"""Choices among several goals: which ones to train for next."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxagents.types import Array


def lowest_success(key: Array, success: Array, *, count: int = 6) -> Array:
    """Chooses the goals with the lowest success; ties are broken at random.

    Args:
        key: PRNG key.
        success: float32 `[A]`, share of the episodes that reach each goal.
        count: K, at most A. EnvGen paper: 4 or 6 configurations.

    Returns:
        int32 `[K]`, the lowest first.

    Raises:
        ValueError: there are fewer goals than that.
    """
    _check(success, count)
    shuffled = jax.random.permutation(key, success.shape[0])
    return shuffled[jnp.argsort(success[shuffled], stable=True)[:count]].astype(jnp.int32)


def any_goals(key: Array, success: Array, *, count: int = 6) -> Array:
    """Chooses different goals at random; has the same arguments as `lowest_success`.

    Args:
        key: PRNG key.
        success: float32 `[A]`, of which only the size is used.
        count: K, at most A.

    Returns:
        int32 `[K]`.

    Raises:
        ValueError: there are fewer goals than that.
    """
    _check(success, count)
    return jax.random.permutation(key, success.shape[0])[:count].astype(jnp.int32)


def known_goals(key: Array, success: Array, *, indices: Sequence[int]) -> Array:
    """Always chooses the same goals, which are known to be right; is called like `lowest_success`.

    Args:
        key: PRNG key, not used.
        success: float32 `[A]`, of which only the size is used.
        indices: K indices of goals.

    Returns:
        int32 `[K]`.

    Raises:
        ValueError: an index is out of range, or there are no indices.
    """
    if not indices or min(indices) < 0 or max(indices) >= success.shape[0]:
        raise ValueError(f"`indices` must be from 0 to {success.shape[0] - 1}, got {list(indices)}.")
    return jnp.asarray(indices, jnp.int32)


def _check(success: Array, count: int) -> None:
    if not 1 <= count <= success.shape[0]:
        raise ValueError(f"`count` must be from 1 to the {success.shape[0]} goals, got {count}.")
