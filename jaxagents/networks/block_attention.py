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
    """Which of W keys S queries of rows see: of every key, the queries between two of them, within a window.

    Attributes:
        begin: int32 `[B, W]`, the first query that sees a key, S where none does.
        end: int32 `[B, W]`, one more than the last query that does, 0 where none does.
        query_mask: bool `[B, S]`, the query sees something.
        position: int32 `[B, S]`, of queries; what a window counts.
        key_position: int32 `[B, W]`.
        window: int32 `[]`, positions that are seen, the present one included.
    """

    begin: Array
    end: Array
    query_mask: Array
    position: Array
    key_position: Array
    window: Array


def find_visibility(mask: Array, position: Array, key_position: Array, *, block: int) -> tuple[Visibility, Array]:
    """Describes masks by numbers per token, a block of queries at a time.

    Args:
        mask: bool `[B, S, W]`, the query sees the key; a byte for every pair is all that is quadratic.
        position: int32 `[B, S]`.
        key_position: int32 `[B, W]`.
        block: queries at a time.

    Returns:
        `(visibility without a window, exact bool [B])`; False for rows whose mask is another one, as of several agents.
    """
    batch, length, width = mask.shape
    block = min(block, length)

    def rows_of(number: Array) -> tuple[Array, Array]:
        start = jnp.minimum(number * block, length - block)  # The last block may look at some queries again.
        index = start + jnp.arange(block, dtype=jnp.int32)
        return jnp.broadcast_to(index[None], (batch, block)), jax.lax.dynamic_slice_in_dim(mask, start, block, axis=1)

    def describe(number: Array, found: tuple[Array, ...]) -> tuple[Array, ...]:
        begin, end, query_mask = found
        index, rows = rows_of(number)
        begin = jnp.minimum(begin, jnp.min(jnp.where(rows, index[:, :, None], length), axis=1))
        end = jnp.maximum(end, jnp.max(jnp.where(rows, index[:, :, None] + 1, 0), axis=1))
        place = (jnp.int32(0), index[0, 0])
        return begin, end, jax.lax.dynamic_update_slice(query_mask, jnp.any(rows, axis=2), place)

    def compare(number: Array, exact: Array) -> Array:
        index, rows = rows_of(number)
        return exact & jnp.all(_seen(visibility, index, jnp.any(rows, axis=2)) == rows, axis=(1, 2))

    num_blocks = -(-length // block)
    none = jnp.full((batch, width), length, jnp.int32), jnp.zeros((batch, width), jnp.int32)
    start = (*none, jnp.zeros((batch, length), bool))
    begin, end, query_mask = jax.lax.fori_loop(0, num_blocks, describe, start)
    visibility = Visibility(
        begin=begin,
        end=end,
        query_mask=query_mask,
        position=position.astype(jnp.int32),
        key_position=key_position.astype(jnp.int32),
        window=jnp.int32(_EVERYTHING),
    )
    return visibility, jax.lax.fori_loop(0, num_blocks, compare, jnp.ones(batch, bool))


def attend_in_blocks(
    query: Array, key: Array, value: Array, visibility: Visibility, *, block: int, cap: float | None = None
) -> Array:
    """Computes `softmax(q k / sqrt(F) + bias) v` for blocks of queries one after the other, each again backwards.

    Args:
        query: `[B, S, H, F]`.
        key: `[B, K, W, F]`.
        value: `[B, K, W, F]`.
        visibility: of the rows.
        block: queries at a time; scores take `4 B H block W` bytes.
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

    index = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[None], visibility.position.shape)
    blocks = [cut(leaf) for leaf in (query, index, visibility.query_mask, visibility.position)]
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
    query_mask: Array,
    position: Array,
) -> Array:
    batch, size, heads, features = query.shape
    key_heads = key.shape[1]
    seen = _seen(visibility, index, query_mask)
    seen &= position[:, :, None] - visibility.key_position[:, None, :] < visibility.window
    query = (query / features**0.5).reshape(batch, size, key_heads, heads // key_heads, features)
    scores = jnp.einsum("bqkgf,bkwf->bkgqw", query, key, preferred_element_type=jnp.float32)
    scores = scores if cap is None else cap * jnp.tanh(scores / cap)
    weights = jax.nn.softmax(scores + mask_bias(seen)[:, None, None], axis=-1).astype(value.dtype)
    return jnp.einsum("bkgqw,bkwf->bqkgf", weights, value).reshape(query.shape[:2] + (heads, features))


def _seen(visibility: Visibility, index: Array, query_mask: Array) -> Array:
    """Returns what queries at `index` `[B, q]` see, bool `[B, q, W]`, without the window."""
    begin, end = visibility.begin[:, None, :], visibility.end[:, None, :]
    return (index[:, :, None] >= begin) & (index[:, :, None] < end) & query_mask[:, :, None]
