"""Stores of episodes that learners keep from update to update, the newest ones first; see `ops.rows.put_in_front`."""

import jax
import jax.numpy as jnp

from jaxagents.types import Array, Episode


def empty_store(example: Episode, num_rows: int) -> Episode:
    """Returns rows of zeros.

    Args:
        example: B episodes, arrays or shapes.
        num_rows: C.

    Returns:
        `Episode` of C rows.
    """
    return jax.tree.map(lambda leaf: jnp.zeros((num_rows, *leaf.shape[1:]), leaf.dtype), example)


def draw_rows(key: Array, filled: Array, batch_size: int) -> Array:
    """Draws filled rows without repetition, in rotation where they are too few.

    Args:
        key: of the draw.
        filled: bool `[C]`, of which one at least is.
        batch_size: how many are drawn.

    Returns:
        Their places, int32 `[batch_size]`.
    """
    order = jnp.argsort(jnp.where(filled, jax.random.uniform(key, filled.shape), jnp.inf))
    return order[jnp.arange(batch_size) % jnp.maximum(jnp.sum(filled), 1)]
