"""Samples tokens with a cache of keys and values, with fixed shapes."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.language.truncation import truncate
from jaxagents.networks.attention import causal_mask
from jaxagents.ops.checks import check_counts
from jaxagents.types import Array, LanguageModel, Params, PyTree

_SECTION, _MAX_SECTIONS = 16, 2  # Smallest number of steps between growths of the cache, and most sections.
_BLOCK = 256  # Entries that one matrix product sums. In larger vocabularies, only one block is searched.


@struct.dataclass
class Sampling:
    """How tokens are drawn. None leaves a part out of the program; arrays can change without recompilation.

    Attributes:
        temperature: float32 `[]` or `[B]`, divisor of the logits; None: 1.
        top_k: int32 `[]` or `[B]`, number of most probable tokens to sample among; None: all.
        top_p: float32 `[]` or `[B]`, probability that the most probable tokens must reach together, after temperature
            and `top_k`; only these are sampled among; None: all.
        min_p: float32 `[]` or `[B]`, smallest probability of tokens to sample among, of these, as a fraction of the
            largest one; None: all.
        greedy: whether to always take the most probable token; static.

    References:
        See `truncation.truncate`.
    """

    temperature: Array | float | None = None
    top_k: Array | int | None = None
    top_p: Array | float | None = None
    min_p: Array | float | None = None
    greedy: bool = struct.field(pytree_node=False, default=False)

    @property
    def restrictions(self) -> dict[str, Any]:
        """Returns the settings that exclude tokens: arguments of `truncation.truncate`."""
        settings = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
        return {name: value for name, value in settings.items() if value is not None}


@struct.dataclass
class Generation:
    """Sampled tokens, padded with token 0 after the end of each row.

    Attributes:
        tokens: int32 `[B, A]`.
        mask: bool `[B, A]`, whether the token was sampled; this includes the stop token.
        log_prob: float32 `[B, A]`, under the model without tempering; 0 if not sampled.
        sampling_log_prob: float32 `[B, A]`, under the distribution from which it was drawn; 0 if not sampled.
        stopped: bool `[B]`, whether the row ended with a stop token, not by its budget.
        hidden: `[B, D]`, after the last token of the row, from which the next token would be drawn.
    """

    tokens: Array
    mask: Array
    log_prob: Array
    sampling_log_prob: Array
    stopped: Array
    hidden: Array


@struct.dataclass
class _Loop:
    """State that a step of decoding changes; arrays of tokens are `[A, B]`."""

    step: Array
    cache: PyTree
    hidden: Array
    mask: Array
    alive: Array
    stopped: Array
    tokens: Array
    sampled: Array
    log_prob: Array
    sampling_log_prob: Array


def decode(
    model: LanguageModel,
    params: Params,
    cache: PyTree,
    hidden: Array,
    *,
    keys: Array,
    positions: Array,
    index: Array | int,
    mask: Array,
    budget: Array,
    max_new_tokens: int,
    sampling: Sampling,
    stop_ids: Sequence[int] = (),
    write_last: bool = True,
) -> tuple[PyTree, Generation]:
    """Samples up to `max_new_tokens` tokens per row and writes them to the cache.

    It ends as soon as every row has stopped. The tokens of a row do not depend on the other rows.

    Args:
        model: model to sample from.
        params: parameters of the model.
        cache: cache of W entries, of which `index .. index + max_new_tokens - 1` must be free. With a Python int as
            `index`, missing entries are added in a few sections during decoding, because attention reads all entries.
        hidden: `[B, D]`, for the last token of each row's context.
        keys: typed PRNG keys `[B]`.
        positions: int32 `[B]`, position of the next token of each row.
        index: int or int32 `[]`, index in the cache of the first new token.
        mask: bool `[B, W]`, entries that are part of a row's context so far.
        budget: int32 `[B]`, largest number of tokens of each row; 0: the row does not take part.
        max_new_tokens: A, largest number of tokens of any row.
        sampling: how tokens are drawn.
        stop_ids: tokens that end a row.
        write_last: False saves the forward pass of token A if nothing follows: the cache then lacks it and
            `Generation.hidden` is that of the token before it.

    Returns:
        The cache, and the sampled tokens.
    """
    check_counts(max_new_tokens=max_new_tokens)
    # One batched draw per row: counter-based generators are slow inside loops.
    uniforms = jax.vmap(lambda key: jax.random.uniform(key, (max_new_tokens,)))(keys).T
    positions, budget = positions.astype(jnp.int32), jnp.minimum(budget, max_new_tokens)

    def sample(loop: _Loop) -> _Loop:
        drawn = sample_token(model.logits(params, loop.hidden), uniforms[loop.step], sampling)
        token, log_prob, sampling_log_prob = (jnp.where(loop.alive, x, jnp.zeros_like(x)) for x in drawn)
        stop = loop.alive & jnp.any(token[:, None] == jnp.asarray(stop_ids, jnp.int32)[None], axis=-1)
        return loop.replace(
            step=loop.step + 1,
            mask=loop.mask | ((jnp.arange(loop.mask.shape[-1]) == index + loop.step)[None] & loop.alive[:, None]),
            alive=loop.alive & ~stop & (loop.step + 1 < budget),
            stopped=loop.stopped | stop,
            tokens=loop.tokens.at[loop.step].set(token),
            sampled=loop.sampled.at[loop.step].set(loop.alive),
            log_prob=loop.log_prob.at[loop.step].set(log_prob),
            sampling_log_prob=loop.sampling_log_prob.at[loop.step].set(sampling_log_prob),
        )

    def step(loop: _Loop) -> _Loop:
        alive, index_of_token, position = loop.alive, index + loop.step, positions + loop.step
        loop = sample(loop)
        token = loop.tokens[loop.step - 1]
        cache, new_hidden = model.extend(
            params,
            loop.cache,
            token[:, None],
            positions=jnp.where(alive, position, 0)[:, None],
            index=index_of_token,
            mask=loop.mask[:, None],
        )
        return loop.replace(cache=cache, hidden=jnp.where(alive[:, None], new_hidden[:, 0], loop.hidden))

    loop = _start(cache, hidden, mask, budget, max_new_tokens)
    num_steps = max_new_tokens if write_last else max_new_tokens - 1
    for end, width in _sections(num_steps, index, mask.shape[-1]):
        loop = _widen(model, loop, width)
        loop = jax.lax.while_loop(lambda loop, end=end: (loop.step < end) & jnp.any(loop.alive), step, loop)  # type: ignore[misc]
    if not write_last:
        loop = sample(loop)
    rows = jax.tree.map(jnp.transpose, (loop.tokens, loop.sampled, loop.log_prob, loop.sampling_log_prob))
    tokens, sampled, log_prob, sampling_log_prob = rows
    return loop.cache, Generation(
        tokens=tokens,
        mask=sampled,
        log_prob=log_prob,
        sampling_log_prob=sampling_log_prob,
        stopped=loop.stopped,
        hidden=loop.hidden,
    )


def generate(
    model: LanguageModel,
    params: Params,
    tokens: Array,
    token_mask: Array,
    *,
    keys: Array,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    stop_ids: Sequence[int] = (),
    budget: Array | None = None,
) -> Generation:
    """Continues prompts: one pass over all of them, then `decode`.

    Args:
        model: model to sample from.
        params: parameters of the model.
        tokens: int32 `[B, L]`, prompts of any length, padded anywhere.
        token_mask: bool `[B, L]`, True = token of the prompt; every row must have one.
        keys: typed PRNG keys `[B]`.
        max_new_tokens: A, largest number of tokens of any row.
        sampling: how tokens are drawn; None: samples from the model.
        stop_ids: tokens that end a row.
        budget: int32 `[B]`, largest number of tokens of each row; None: `max_new_tokens`.

    Returns:
        The sampled tokens.
    """
    batch_size, length = tokens.shape
    positions = jnp.maximum(jnp.cumsum(token_mask, axis=1) - 1, 0)
    cache, hidden = model.extend(
        params,
        model.init_cache(batch_size, length),
        tokens,
        positions=positions,
        index=jnp.int32(0),
        mask=causal_mask(token_mask),
    )
    last = jnp.max(jnp.where(token_mask, jnp.arange(length)[None], 0), axis=1)
    _, generation = decode(
        model,
        params,
        cache,
        jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0],
        keys=keys,
        positions=jnp.sum(token_mask, axis=1),
        index=length,
        mask=token_mask,
        budget=jnp.full((batch_size,), max_new_tokens) if budget is None else budget,
        max_new_tokens=max_new_tokens,
        sampling=Sampling() if sampling is None else sampling,
        stop_ids=stop_ids,
        write_last=False,
    )
    return generation


def sample_token(logits: Array, uniform: Array, sampling: Sampling) -> tuple[Array, Array, Array]:
    """Draws a token by inverting the cumulative distribution.

    Args:
        logits: float32 `[B, V]`.
        uniform: float32 `[B]`, in [0, 1).
        sampling: how tokens are drawn.

    Returns:
        Token int32, its log-probability without tempering, and under the distribution from which it was drawn, all
        `[B]`.
    """
    shifted = logits - jnp.max(logits, axis=-1, keepdims=True)
    probability = jnp.exp(shifted)
    vocabulary = jnp.arange(logits.shape[-1])[None]
    log_total = jnp.log(jnp.sum(probability, axis=-1))
    if sampling.greedy:
        token = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        log_prob = _pick(shifted, token, vocabulary) - log_total
        return token, log_prob, jnp.zeros_like(log_prob)
    tempered = shifted
    if sampling.temperature is not None:
        # At a temperature of zero, only the largest logits, which are zero here, keep their probability.
        tempered = shifted / jnp.maximum(_column(sampling.temperature, logits), 1e-6)
        probability = jnp.exp(tempered)
    if sampling.restrictions:
        probability = jnp.where(truncate(tempered, **sampling.restrictions) > -jnp.inf, probability, 0.0)
    token, total = _invert(probability, uniform)
    log_prob = _pick(shifted, token, vocabulary) - log_total
    if sampling.temperature is None and not sampling.restrictions:
        return token, log_prob, log_prob
    return token, log_prob, _pick(tempered, token, vocabulary) - jnp.log(total)


def _start(cache: PyTree, hidden: Array, mask: Array, budget: Array, max_new_tokens: int) -> _Loop:
    """Returns the initial state of decoding."""
    shape = (max_new_tokens, hidden.shape[0])
    return _Loop(
        step=jnp.int32(0),
        cache=cache,
        hidden=hidden,
        mask=mask,
        alive=budget > 0,
        stopped=jnp.zeros(shape[1:], bool),
        tokens=jnp.zeros(shape, jnp.int32),
        sampled=jnp.zeros(shape, bool),
        log_prob=jnp.zeros(shape),
        sampling_log_prob=jnp.zeros(shape),
    )


def _sections(num_steps: int, index: Array | int, width: int) -> list[tuple[int, int]]:
    """Returns the end of each section of decoding, and the size of the cache in it."""
    if not isinstance(index, int) or index + num_steps <= width:
        return [(num_steps, width)]
    size = max(_SECTION, -(-num_steps // _MAX_SECTIONS))
    ends = [*range(size, num_steps, size), num_steps]
    # GPUs copy arrays whose size is not a multiple of eight into padded ones, in every step.
    multiple = 8 if jax.default_backend() == "gpu" else 1
    return [(end, max(width, -(-(index + end) // multiple) * multiple)) for end in ends]


def _widen(model: LanguageModel, loop: _Loop, width: int) -> _Loop:
    """Adds free entries to the cache, up to `width`."""
    batch_size, before = loop.mask.shape
    if width == before:
        return loop
    cache = jax.tree.map(
        lambda wide, old: jax.lax.dynamic_update_slice(wide, old, (0,) * old.ndim),
        model.init_cache(batch_size, width),
        loop.cache,
    )
    return loop.replace(cache=cache, mask=jnp.pad(loop.mask, ((0, 0), (0, width - before))))


def _invert(weights: Array, uniform: Array) -> tuple[Array, Array]:
    """Returns where the cumulative sum of `weights [B, V]` exceeds `uniform [B]` of the total, and the total `[B]`."""
    size = weights.shape[-1]
    if size > _BLOCK:
        total = jnp.sum(weights, axis=-1)
        return _place(weights, uniform * total)[0], total
    cumulative = jnp.where(weights > 0.0, _cumulative_sum(weights), -1.0)
    total = jnp.max(cumulative, axis=-1)
    above = cumulative > (uniform * total)[:, None]
    return jnp.min(jnp.where(above, jnp.arange(size)[None], size), axis=-1).astype(jnp.int32), total


def _place(weights: Array, wanted: Array) -> tuple[Array, Array]:
    """Returns the first entry of `weights [B, V]` whose cumulative sum exceeds `wanted [B]`, and the sum before it.

    For many entries, it sums blocks and searches the block that must contain it. If rounding lets no entry exceed
    `wanted`, the last entry with a weight is returned.
    """
    size = weights.shape[-1]
    if size > _BLOCK:
        blocks = jnp.pad(weights, ((0, 0), (0, -size % _BLOCK))).reshape(weights.shape[0], -1, _BLOCK)
        block, before = _place(jnp.sum(blocks, axis=-1), wanted)
        within, before_within = _place(jnp.take_along_axis(blocks, block[:, None, None], 1)[:, 0], wanted - before)
        return block * _BLOCK + within, before + before_within
    cumulative, entries = _cumulative_sum(weights), jnp.arange(size, dtype=jnp.int32)[None]
    above = (weights > 0.0) & (cumulative > wanted[:, None])
    entry = jnp.min(jnp.where(above, entries, jnp.max(jnp.where(weights > 0.0, entries, 0), -1, keepdims=True)), -1)
    return entry, _pick(cumulative - weights, entry, entries)


def _cumulative_sum(x: Array) -> Array:
    """Returns the cumulative sum over the last axis of `[B, V]`."""
    # A product with a triangular matrix: XLA's cumulative sums take many passes over the data.
    size = x.shape[-1]
    return jnp.dot(x, jnp.triu(jnp.ones((size, size), x.dtype)), precision=jax.lax.Precision.HIGHEST)


def _column(x: Any, like: Array) -> Array:
    """Returns a scalar or `[B]` as `[B, 1]`."""
    return jnp.broadcast_to(jnp.asarray(x), like.shape[:1])[:, None]


def _pick(x: Array, token: Array, vocabulary: Array) -> Array:
    """Returns `x[b, token[b]]`."""
    return jnp.sum(jnp.where(vocabulary == token[:, None], x, 0.0), axis=-1)
