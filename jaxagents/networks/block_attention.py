"""Attention over long contexts, one block of queries at a time: scores never exist for all pairs of tokens."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.networks.attention import attention_mask, mask_bias, queries_of
from jaxagents.types import Array, CausalMask

NO_WINDOW = 2**30


@struct.dataclass
class View:
    """Which of the W keys are visible to the S queries of each row.

    Attributes:
        seen: a `CausalMask` of the keys; or bool `[B, S, W]`, a byte per pair, the only array of quadratic size.
        position: int32 `[B, S]`, positions of the queries, by which the window is measured.
        key_position: int32 `[B, W]`, positions of the keys.
        index: int32 `[]`, index of the first query among the keys.
        window: int32 `[]`, number of visible positions, including the current one; `NO_WINDOW` for all.
    """

    seen: Array | CausalMask
    position: Array
    key_position: Array
    index: Array
    window: Array


@struct.dataclass
class _Queries:
    """A block of queries.

    Attributes:
        query: `[B, q, H, F]`.
        number: int32 `[B, q]`, indices of the queries among the keys.
        position: int32 `[B, q]`.
        seen: bool `[B, q, W]`; or, with a `CausalMask`, turn and agent `[B, q]`.
    """

    query: Array
    number: Array
    position: Array
    seen: Any


def attend_in_blocks(
    query: Array, key: Array, value: Array, view: View, *, block: int, cap: float | None = None
) -> Array:
    """Computes `softmax(q k / sqrt(F) + bias) v` one block of queries at a time, recomputed in the backward pass.

    Args:
        query: `[B, S, H, F]`.
        key: `[B, K, W, F]`.
        value: `[B, K, W, F]`.
        view: keys that are visible to the queries.
        block: number of queries per block; scores take `4 B H block W` bytes.
        cap: soft bound of the scores; None: no bound.

    Returns:
        `[B, S, H, F]`.

    References:
        Rabe and Staats (2021), "Self-attention Does Not Need O(n^2) Memory".
        Chen et al. (2016), "Training Deep Nets with Sublinear Memory Cost", for the recomputation.
    """
    batch, length = query.shape[:2]
    num_blocks = -(-length // block)

    def cut(leaf: Array) -> Array:
        """Reshapes `[B, S, ...]` to `[blocks, B, block, ...]`, padded with zeros."""
        padding = [(0, 0), (0, num_blocks * block - length), *[(0, 0)] * (leaf.ndim - 2)]
        padded = jnp.pad(leaf, padding).reshape(batch, num_blocks, block, *leaf.shape[2:])
        return jnp.moveaxis(padded, 1, 0)

    seen: Any = view.seen
    if isinstance(seen, CausalMask):
        seen = tuple(queries_of(x, index=view.index, size=length) for x in (seen.turn, seen.agent))
    number = jnp.broadcast_to((view.index + jnp.arange(length, dtype=jnp.int32))[None], (batch, length))
    queries = _Queries(query=query, number=number, position=view.position, seen=seen)
    attend_block = jax.checkpoint(partial(_attend_block, key, value, view, cap), prevent_cse=False)
    output = jnp.moveaxis(jax.lax.map(attend_block, jax.tree.map(cut, queries)), 0, 1)
    return output.reshape(batch, -1, *output.shape[3:])[:, :length]


def _attend_block(key: Array, value: Array, view: View, cap: float | None, queries: _Queries) -> Array:
    batch, size, heads, features = queries.query.shape
    key_heads = key.shape[1]
    seen = _seen(view, queries) & (queries.position[:, :, None] - view.key_position[:, None, :] < view.window)
    query = (queries.query / features**0.5).reshape(batch, size, key_heads, heads // key_heads, features)
    scores = jnp.einsum("bqkgf,bkwf->bkgqw", query, key, preferred_element_type=jnp.float32)
    scores = scores if cap is None else cap * jnp.tanh(scores / cap)
    weights = jax.nn.softmax(scores + mask_bias(seen)[:, None, None], axis=-1).astype(value.dtype)
    return jnp.einsum("bkgqw,bkwf->bqkgf", weights, value).reshape(batch, size, heads, features)


def _seen(view: View, queries: _Queries) -> Array:
    """Returns which keys a block of queries sees, bool `[B, q, W]`, before the window is applied."""
    mask_of_keys = view.seen
    if not isinstance(mask_of_keys, CausalMask):
        return queries.seen
    key = (mask_of_keys.turn, mask_of_keys.agent, mask_of_keys.present)
    visible = attention_mask(queries.seen, key, context_turns=mask_of_keys.context_turns)
    return visible & (jnp.arange(mask_of_keys.turn.shape[1])[None, None] <= queries.number[:, :, None])
