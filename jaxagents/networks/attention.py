"""Attention masks, attention with grouped heads, and rotary position embeddings.

Symbols: K key-value heads, G query heads per key-value head, H = K G, F features per head, S queries, W keys.
"""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.types import Array, CausalMask


def attention_mask(query: tuple[Array, Array], key: tuple[Array, Array, Array], *, context_turns: int) -> Array:
    """Computes which tokens see which: the recent turns of their own agent, and the prompt; not masked causally.

    Args:
        query: turn and agent of the tokens that attend, `[..., q]`; turns are counted per agent, -1 is the prompt.
        key: turn, agent and mask of the tokens that are attended to, `[..., k]`.
        context_turns: number of own turns that are visible, including the current one.

    Returns:
        bool `[..., q, k]`.
    """
    (turn, agent), (key_turn, key_agent, key_mask) = (tuple(x[..., :, None] for x in query), key)
    key_turn, key_agent, key_mask = (x[..., None, :] for x in (key_turn, key_agent, key_mask))
    prompt = key_turn < 0
    return key_mask & (prompt | ((agent == key_agent) & (turn - key_turn < context_turns)))


def causal_mask(present: Array) -> CausalMask:
    """Returns the mask with which tokens see all before them; `present`, bool `[B, W]`, marks real tokens."""
    nothing = jnp.zeros(present.shape, jnp.int32)
    return CausalMask(turn=nothing, agent=nothing, present=present, context_turns=1)


def dense_mask(mask: Array | CausalMask, *, index: Array | int = 0, size: int | None = None) -> Array:
    """Expands a mask to one bit per pair of query and key.

    Args:
        mask: mask of the keys; bits `[B, S, W]` are returned unchanged.
        index: index of the first query among the keys.
        size: S, number of queries; None: as many as keys.

    Returns:
        bool `[B, S, W]`, whether the query sees the key.
    """
    if not isinstance(mask, CausalMask):
        return mask
    turn, agent = (queries_of(x, index=index, size=size) for x in (mask.turn, mask.agent))
    key = (mask.turn, mask.agent, mask.present)
    visible = attention_mask((turn, agent), key, context_turns=mask.context_turns)
    num_queries, num_keys = visible.shape[1:]
    if num_queries == num_keys:
        return visible & jnp.tril(jnp.ones((num_keys, num_keys), bool))[None]
    return visible & (jnp.arange(num_keys)[None] <= index + jnp.arange(num_queries)[:, None])[None]


def queries_of(of_keys: Array, *, index: Array | int, size: int | None) -> Array:
    """Selects the entries `[B, S]` of the queries from those of the keys `[B, W]`; for arguments see `dense_mask`."""
    if size is None or size == of_keys.shape[1]:
        return of_keys
    return jax.lax.dynamic_slice_in_dim(of_keys, index, size, axis=1)


_MASKED_SCORE = -1e9  # Finite, so that a query that sees nothing gets the mean of all values instead of NaN.


@struct.dataclass
class KeyValue:
    """Keys and values of the tokens so far, in the layout that decoding reads without transposing.

    Attributes:
        key: `[B, K, W, F]`, after rotation.
        value: `[B, K, W, F]`.
    """

    key: Array
    value: Array


def mask_bias(mask: Array) -> Array:
    """Computes the bias of scores, float32 `[B, S, W]`: 0 if the query sees the key (bool `[B, S, W]`), else -1e9."""
    return jnp.where(mask, 0.0, _MASKED_SCORE)


def rotary_frequencies(features: int, base: float = 10_000.0) -> tuple[float, ...]:
    """Computes `base^(-2 i / features)` radians per position, for i in `0 .. features / 2 - 1`.

    References:
        Su et al. (2021), "RoFormer", section 3.2.2.
    """
    return tuple(base ** (-2.0 * i / features) for i in range(features // 2))


def rotary_angles(positions: Array, frequencies: Sequence[float]) -> tuple[Array, Array]:
    """Computes the factors for `rotate` at positions int32 `[B, S]`.

    Returns:
        `(cos, cos)` and `(-sin, sin)` of the angles, each float32 `[B, S, 1, R]`, with R rotated features.
    """
    angles = positions[..., None].astype(jnp.float32) * jnp.asarray(frequencies, jnp.float32)[None, None]
    wide = functools.partial(jax.lax.platform_dependent, cpu=_widen_on_cpu, default=_widen)
    cosine, sine = wide(jnp.cos(angles), jnp.sin(angles))
    return cosine[:, :, None], sine[:, :, None]


def _widen(cosine: Array, sine: Array) -> tuple[Array, Array]:
    """Concatenates the factors of both halves."""
    return jnp.concatenate([cosine, cosine], axis=-1), jnp.concatenate([-sine, sine], axis=-1)


def _widen_on_cpu(cosine: Array, sine: Array) -> tuple[Array, Array]:
    # Exact products with ones: XLA:CPU fuses anything else into every layer and computes the sines there for every
    # head; optimization barriers have been removed by then.
    same = np.eye(cosine.shape[-1], dtype=np.float32)
    expand = functools.partial(jnp.dot, precision=jax.lax.Precision.HIGHEST)
    return expand(cosine, np.concatenate([same, same], axis=1)), expand(sine, np.concatenate([-same, same], axis=1))


def rotate(x: Array, angles: tuple[Array, Array]) -> Array:
    """Rotates the pairs (i, i + R / 2) of the first R features of heads `[B, S, H, F]`; the rest is unchanged.

    Deviation: the paper pairs neighbours (2 i, 2 i + 1); pairing halves matches Llama and Qwen checkpoints.
    """
    cosine, sine = (angle.astype(x.dtype) for angle in angles)
    rotated, rest = jnp.split(x, [cosine.shape[-1]], axis=-1)
    # A reversal of the halves, not a concatenation, which is slower on XLA:CPU.
    swapped = rotated.reshape(*rotated.shape[:-1], 2, -1)[..., ::-1, :].reshape(rotated.shape)
    rotated = rotated * cosine + swapped * sine
    return jnp.concatenate([rotated, rest], axis=-1) if rest.shape[-1] else rotated


def attend(query: Array, key: Array, value: Array, bias: Array, *, causal: bool = False) -> Array:
    """Computes `softmax(q k / sqrt(F) + bias) v`.

    On GPUs with cuDNN's fused kernel, that kernel is used if it supports the shapes, see `is_fused`. Elsewhere the
    products below are as fast as `jax.nn.dot_product_attention` or faster: 2 times and more in training on a CPU.

    Args:
        query: `[B, S, H, F]`.
        key: `[B, K, W, F]`.
        value: `[B, K, W, F]`.
        bias: float32 `[B, S, W]`, see `mask_bias`.
        causal: whether the bias masks all keys after each query, with S = W; the kernel then skips them.

    Returns:
        `[B, S, H, F]`.
    """
    batch, length, heads, features = query.shape
    key_heads, width = key.shape[1:3]
    groups = heads // key_heads
    if is_fused(query, width):
        return _attend_fused(query, key, value, bias, causal=causal and length == width)
    query = query.reshape(batch, length, key_heads, groups, features).transpose(0, 2, 3, 1, 4) / math.sqrt(features)
    half = value.dtype in (jnp.bfloat16, jnp.float16)
    if half and length == 1 < groups:
        # GPUs process rows in groups of eight: padded here, scores and weights are not copied into a wider array.
        query = jnp.pad(query, ((0, 0), (0, 0), (0, -groups % 8), (0, 0), (0, 0)))
    rows = query.shape[2]
    # One query per head is a matrix-vector product, for which XLA:CPU has faster code than for a thin matrix.
    single = length == rows == 1
    query = query.reshape(batch, key_heads, *([] if single else [rows * length]), features)
    equations = ("bkf,bkwf->bkw", "bkw,bkwf->bkf") if single else ("bkqf,bkwf->bkqw", "bkqw,bkwf->bkqf")
    scores = jnp.einsum(equations[0], query, key, preferred_element_type=jnp.float32)
    scores = scores.reshape(batch, key_heads, rows, length, width) + bias[:, None, None]
    if half:
        weights, total = jax.nn.softmax(scores, axis=-1), None  # One kernel on a GPU.
    else:
        # On a CPU, dividing the output is less work than dividing the weights.
        weights = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
        total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights.astype(value.dtype).reshape(*query.shape[:-1], width)
    output = jnp.einsum(equations[1], weights, value).reshape(batch, key_heads, rows, length, features)[:, :, :groups]
    output = output if total is None else output / total
    return output.transpose(0, 3, 1, 2, 4).reshape(batch, length, heads, features)


def _attend_fused(query: Array, key: Array, value: Array, bias: Array, *, causal: bool) -> Array:
    seen = bias == 0.0
    # The kernel's gradients for a query that sees nothing are NaN; it sees itself, or the first key, instead of a mean.
    length, width = seen.shape[1:]
    first = jnp.arange(width)[None] == (jnp.arange(length)[:, None] if causal else 0)
    mask = seen | (first[None] & ~jnp.any(seen, axis=-1, keepdims=True))
    key, value = key.transpose(0, 2, 1, 3), value.transpose(0, 2, 1, 3)
    return jax.nn.dot_product_attention(query, key, value, mask=mask[:, None], is_causal=causal, implementation="cudnn")


def is_fused(query: Array, width: int) -> bool:
    """Returns whether cuDNN's fused attention supports queries `[B, S, H, F]` and `width` keys, masked, with gradients.

    It needs half precision, at most 128 features, a multiple of 8, even lengths, and an NVIDIA GPU since Ampere.
    """
    half = query.dtype in (jnp.bfloat16, jnp.float16)
    features, length = query.shape[3], query.shape[1]
    return half and features <= 128 and features % 8 == length % 2 == width % 2 == 0 and _has_cudnn()


@functools.cache
def _has_cudnn() -> bool:
    device = jax.devices()[0]
    return "cuda" in device.client.platform_version and float(device.compute_capability) >= 8.0
