"""Stores of episodes that learners keep between updates, the newest ones first; see `ops.rows.put_in_front`."""

import jax
import jax.numpy as jnp

from jaxagents.types import Array, Episode


def empty_store(example: Episode, num_rows: int) -> Episode:
    """Returns rows of zeros.

    Args:
        example: B episodes, arrays or shapes.
        num_rows: C, number of rows.

    Returns:
        `Episode` of C rows.
    """
    return jax.tree.map(lambda leaf: jnp.zeros((num_rows, *leaf.shape[1:]), leaf.dtype), example)


def draw_rows(key: Array, filled: Array, batch_size: int) -> Array:
    """Draws filled rows without repetition, or in rotation if there are too few.

    Args:
        key: PRNG key.
        filled: bool `[C]`, with at least one True.
        batch_size: number of rows to draw.

    Returns:
        Places of the rows, int32 `[batch_size]`.
    """
    order = jnp.argsort(jnp.where(filled, jax.random.uniform(key, filled.shape), jnp.inf))
    return order[jnp.arange(batch_size) % jnp.maximum(jnp.sum(filled), 1)]
