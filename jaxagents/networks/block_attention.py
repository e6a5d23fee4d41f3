"""Attention over long contexts a block of queries at a time: scores never exist for all pairs of tokens."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.networks.attention import mask_bias
from jaxagents.types import Array, PyTree

_EVERYTHING = 2**30


@struct.dataclass
class Visibility:
    """Which of W keys S queries of rows see, in numbers per token.

    A query sees a key if it stands between two queries, is of the label of the key, where that has one, and within a
    window.

    Attributes:
        begin: int32 `[B, W]`, the first query that sees a key, S where none does.
        end: int32 `[B, W]`, one more than the last query that does, 0 where none does.
        label: int32 `[B, S]`, of queries, as of several agents whose turns alternate.
        key_label: int32 `[B, W]`; -1: the key is seen by queries of all labels.
        query_mask: bool `[B, S]`, the query sees something.
        position: int32 `[B, S]`, of queries; what a window counts.
        key_position: int32 `[B, W]`.
        window: int32 `[]`, positions that are seen, the present one included.
    """

    begin: Array
    end: Array
    label: Array
    key_label: Array
    query_mask: Array
    position: Array
    key_position: Array
    window: Array


def find_visibility(mask: Array, position: Array, key_position: Array, *, block: int) -> tuple[Visibility, Array]:
    """Describes masks by numbers per token, a block of queries at a time.

    A key that some queries between its first and its last one do not see gets a label, which is that of its agent: the
    first key in the chain of what tokens see, and what these see, of keys that need one.

    Args:
        mask: bool `[B, S, W]`, the query sees the key; a byte for every pair is all that is quadratic, and gone before
            the first layer. Labels need `S = W` and tokens that see themselves.
        position: int32 `[B, S]`.
        key_position: int32 `[B, W]`.
        block: queries at a time.

    Returns:
        `(visibility without a window, exact bool [B])`; False for rows whose mask is another one.
    """
    batch, length, width = mask.shape
    nothing = Visibility(
        begin=jnp.full((batch, width), length, jnp.int32),
        end=jnp.zeros((batch, width), jnp.int32),
        label=jnp.full((batch, length), -1, jnp.int32),
        key_label=jnp.full((batch, width), -1, jnp.int32),
        query_mask=jnp.zeros((batch, length), bool),
        position=position.astype(jnp.int32),
        key_position=key_position.astype(jnp.int32),
        window=jnp.int32(_EVERYTHING),
    )

    def describe(found: Visibility, start: Array, rows: Array) -> Visibility:
        index = (start + jnp.arange(rows.shape[1], dtype=jnp.int32))[None, :, None]
        return found.replace(
            begin=jnp.minimum(found.begin, jnp.min(jnp.where(rows, index, length), axis=1)),
            end=jnp.maximum(found.end, jnp.max(jnp.where(rows, index + 1, 0), axis=1)),
            query_mask=_put(found.query_mask, jnp.any(rows, axis=2), start),
        )

    visibility = _fold_rows(describe, nothing, mask, block)
    if length == width:
        visibility = _label(visibility, mask, block)

    def compare(exact: Array, start: Array, rows: Array) -> Array:
        return exact & jnp.all(_rows_seen(visibility, start, rows.shape[1]) == rows, axis=(1, 2))

    return visibility, _fold_rows(compare, jnp.ones(batch, bool), mask, block)


def _fold_rows(function: Callable[..., PyTree], carry: PyTree, mask: Array, block: int) -> PyTree:
    """Computes `carry = function(carry, start, rows)` for blocks of queries, the last of which may overlap."""
    length = mask.shape[1]
    size = min(block, length)

    def step(number: Array, carry: PyTree) -> PyTree:
        start = jnp.minimum(number * size, length - size)
        return function(carry, start, jax.lax.dynamic_slice_in_dim(mask, start, size, axis=1))

    return jax.lax.fori_loop(0, -(-length // size), step, carry)


def _label(visibility: Visibility, mask: Array, block: int) -> Visibility:
    """Labels tokens by agents where keys are not seen by all queries between their first and their last one."""
    batch, length, _ = mask.shape
    order = jnp.arange(length, dtype=jnp.int32)

    def find_others(found: Array, start: Array, rows: Array) -> Array:
        return found | jnp.any(_rows_seen(visibility, start, rows.shape[1]) != rows, axis=1)

    labelled = _fold_rows(find_others, jnp.zeros((batch, length), bool), mask, block)

    def find_links(link: Array, start: Array, rows: Array) -> Array:
        first = jnp.min(jnp.where(rows & labelled[:, None], order[None, None], length), axis=2)
        return _put(link, first, start)

    label = _first_of_chain(_fold_rows(find_links, jnp.zeros((batch, length), jnp.int32), mask, block))
    return visibility.replace(label=label, key_label=jnp.where(labelled, label, -1))


def _rows_seen(visibility: Visibility, start: Array, size: int) -> Array:
    """Returns what queries from `start` on see, bool `[B, size, W]`, without the window."""
    cut = partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=size, axis=1)
    index = jnp.broadcast_to(start + jnp.arange(size, dtype=jnp.int32), (visibility.begin.shape[0], size))
    return _seen(visibility, index, cut(visibility.query_mask), cut(visibility.label))


def _put(whole: Array, part: Array, start: Array) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(whole, part, start, axis=1)


def _first_of_chain(link: Array) -> Array:
    """Follows links int32 `[B, S]` to earlier tokens to their ends, int32 `[B, S]`; S is the end of no link."""
    batch, length = link.shape
    ends = jnp.concatenate([link, jnp.full((batch, 1), length, link.dtype)], axis=1)
    for _ in range(max(1, length - 1).bit_length()):
        ends = jnp.take_along_axis(ends, ends, axis=1)
    return ends[:, :length]


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
    of_queries = (query, index, visibility.query_mask, visibility.label, visibility.position)
    blocks = [cut(leaf) for leaf in of_queries]
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
    label: Array,
    position: Array,
) -> Array:
    batch, size, heads, features = query.shape
    key_heads = key.shape[1]
    seen = _seen(visibility, index, query_mask, label)
    seen &= position[:, :, None] - visibility.key_position[:, None, :] < visibility.window
    query = (query / features**0.5).reshape(batch, size, key_heads, heads // key_heads, features)
    scores = jnp.einsum("bqkgf,bkwf->bkgqw", query, key, preferred_element_type=jnp.float32)
    scores = scores if cap is None else cap * jnp.tanh(scores / cap)
    weights = jax.nn.softmax(scores + mask_bias(seen)[:, None, None], axis=-1).astype(value.dtype)
    return jnp.einsum("bkgqw,bkwf->bqkgf", weights, value).reshape(query.shape[:2] + (heads, features))


def _seen(visibility: Visibility, index: Array, query_mask: Array, label: Array) -> Array:
    """Returns what queries at `index` `[B, q]` see, bool `[B, q, W]`, without the window."""
    begin, end, key_label = (x[:, None, :] for x in (visibility.begin, visibility.end, visibility.key_label))
    between = (index[:, :, None] >= begin) & (index[:, :, None] < end)
    return between & query_mask[:, :, None] & ((key_label < 0) | (label[:, :, None] == key_label))
