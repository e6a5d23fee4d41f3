"""Attention over long contexts a block of queries at a time: scores never exist for all pairs of tokens."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.networks.attention import mask_bias
from jaxagents.types import Array

_EVERYTHING = 2**30


@struct.dataclass
class Visibility:
    """Which of S keys the S queries of rows see: the keys that count, up to itself, except for one gap.

    Attributes:
        key_mask: bool `[B, S]`, the key counts.
        gap_begin: int32 `[B, S]`, of every query, where the keys begin that it does not see.
        gap_end: int32 `[B, S]`, where they end; what is after the prompt and before the turns that are still seen.
        position: int32 `[B, S]`; what a window counts.
        window: int32 `[]`, positions that are seen, the present one included.
    """

    key_mask: Array
    gap_begin: Array
    gap_end: Array
    position: Array
    window: Array


def find_visibility(mask: Array, position: Array, *, block: int, window: int | None = None) -> tuple[Visibility, Array]:
    """Describes masks by numbers per token, a block of queries at a time.

    Args:
        mask: bool `[B, S, S]`, the query sees the key; a byte for every pair is all that is quadratic.
        position: int32 `[B, S]`.
        block: queries at a time.
        window: see `Visibility`; is not in the mask. None for all.

    Returns:
        `(visibility, exact bool [B])`; False for rows whose mask is another one, as of several agents.
    """
    batch, length = mask.shape[:2]
    block = min(block, length)
    key_mask = jnp.diagonal(mask, axis1=1, axis2=2)
    key = jnp.arange(length, dtype=jnp.int32)[None, None, :]

    def describe(number: Array, found: tuple[Array, ...]) -> tuple[Array, ...]:
        gap_begin, gap_end, exact = found
        start = jnp.minimum(number * block, length - block)  # The last block may look at some queries again.
        rows = jax.lax.dynamic_slice_in_dim(mask, start, block, axis=1)
        index = start + jnp.arange(block, dtype=jnp.int32)
        hidden = key_mask[:, None, :] & (key <= index[None, :, None]) & ~rows
        begin, end = jnp.min(jnp.where(hidden, key, length), axis=2), jnp.max(jnp.where(hidden, key + 1, 0), axis=2)
        exact &= jnp.all(_seen(key_mask, begin, end, index) == rows, axis=(1, 2))
        place = (jnp.int32(0), start)
        return *(jax.lax.dynamic_update_slice(*pair, place) for pair in ((gap_begin, begin), (gap_end, end))), exact

    nothing = jnp.zeros((batch, length), jnp.int32)
    start = (nothing, nothing, jnp.ones(batch, bool))
    gap_begin, gap_end, exact = jax.lax.fori_loop(0, -(-length // block), describe, start)
    visibility = Visibility(
        key_mask=key_mask,
        gap_begin=gap_begin,
        gap_end=gap_end,
        position=position.astype(jnp.int32),
        window=jnp.int32(_EVERYTHING if window is None else window),
    )
    return visibility, exact


def attend_in_blocks(
    query: Array, key: Array, value: Array, visibility: Visibility, *, block: int, cap: float | None = None
) -> Array:
    """Computes `softmax(q k / sqrt(F) + bias) v` for blocks of queries one after the other, each again backwards.

    Args:
        query: `[B, S, H, F]`.
        key: `[B, K, S, F]`.
        value: `[B, K, S, F]`.
        visibility: of the rows.
        block: queries at a time; scores take `4 B H block S` bytes.
        cap: soft bound of scores; None: no bound.

    Returns:
        `[B, S, H, F]`.

    References:
        Rabe and Staats (2021), "Self-attention Does Not Need O(n^2) Memory".
        Chen et al. (2016), "Training Deep Nets with Sublinear Memory Cost", for computing again.
    """
    length = query.shape[1]
    num_blocks = -(-length // block)

    def cut(leaf: Array) -> Array:
        """`[B, S, ...]` -> `[blocks, B, block, ...]`, zeros behind the end."""
        padding = [(0, 0), (0, num_blocks * block - length), *[(0, 0)] * (leaf.ndim - 2)]
        padded = jnp.pad(leaf, padding).reshape(leaf.shape[0], num_blocks, block, *leaf.shape[2:])
        return jnp.moveaxis(padded, 1, 0)

    index = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[None], visibility.gap_begin.shape)
    blocks = [cut(leaf) for leaf in (query, index, visibility.gap_begin, visibility.gap_end, visibility.position)]
    attend_block = jax.checkpoint(partial(_attend_block, key, value, visibility, cap), prevent_cse=False)
    output = jnp.moveaxis(jax.lax.map(lambda inputs: attend_block(*inputs), tuple(blocks)), 0, 1)
    return output.reshape(output.shape[0], -1, *output.shape[3:])[:, :length]


def _attend_block(
    key: Array,
    value: Array,
    visibility: Visibility,
    cap: float | None,
    query: Array,
    index: Array,
    gap_begin: Array,
    gap_end: Array,
    position: Array,
) -> Array:
    batch, size, heads, features = query.shape
    key_heads = key.shape[1]
    seen = _seen(visibility.key_mask, gap_begin, gap_end, index)
    seen &= position[:, :, None] - visibility.position[:, None, :] < visibility.window
    query = (query / features**0.5).reshape(batch, size, key_heads, heads // key_heads, features)
    scores = jnp.einsum("bqkgf,bkwf->bkgqw", query, key, preferred_element_type=jnp.float32)
    scores = scores if cap is None else cap * jnp.tanh(scores / cap)
    weights = jax.nn.softmax(scores + mask_bias(seen)[:, None, None], axis=-1).astype(value.dtype)
    return jnp.einsum("bkgqw,bkwf->bqkgf", weights, value).reshape(query.shape[:2] + (heads, features))


def _seen(key_mask: Array, gap_begin: Array, gap_end: Array, index: Array) -> Array:
    """Returns what queries at `index` (`[q]`, or `[B, q]` by row) see, bool `[B, q, S]`."""
    key = jnp.arange(key_mask.shape[1], dtype=jnp.int32)[None, None, :]
    index = index[None] if index.ndim == 1 else index
    in_gap = (key >= gap_begin[:, :, None]) & (key < gap_end[:, :, None])
    return key_mask[:, None, :] & (key <= index[:, :, None]) & ~in_gap
