"""Corrupted inputs for training: `(key, episode, *, axis_name, vocab_size) -> tokens [B, T, S]` that a model reads."""

from typing import Literal

import jax
import jax.numpy as jnp

from jaxagents.ops.rows import first_row
from jaxagents.types import Array, Episode


def random_tokens(
    key: Array,
    episode: Episode,
    *,
    axis_name: str | None = None,
    vocab_size: int,
    rate: Array | float = 0.4,
    where: Literal["sampled", "thoughts"] = "sampled",
    rows: Array | float = 1.0,
) -> Array:
    """Replaces sampled tokens by random tokens of the vocabulary: `y~_i ~ U(V)` with probability `rate`.

    Args:
        key: PRNG key.
        episode: B episodes.
        axis_name: mapped device axis; the random numbers of a row do not depend on the device.
        vocab_size: V, the size of the vocabulary.
        rate: probability that a token is replaced.
        where: "sampled" for thoughts and actions, or "thoughts" alone. Prompts and observations are kept.
        rows: probability that an episode is changed at all.

    Returns:
        int32 `[B, T, S]`.

    References:
        Chen et al. (2024), "Masked Thought: Simply Masking Partial Reasoning Steps Can Improve Mathematical Reasoning
        Learning of Language Models", section 3.
    """
    tokens, may = episode.tokens, episode.action_mask if where == "sampled" else episode.thought_mask

    def draw(row: Array, shape: Array) -> tuple[Array, Array]:
        chance_key, token_key, row_key = jax.random.split(jax.random.fold_in(key, row), 3)
        random = jax.random.randint(token_key, shape.shape, 0, vocab_size)
        return (jax.random.uniform(chance_key, shape.shape) < rate) & (jax.random.uniform(row_key) < rows), random

    index = first_row(tokens.shape[0], axis_name) + jnp.arange(tokens.shape[0])
    replaced, random = jax.vmap(draw)(index, tokens)
    return jnp.where(may & replaced, random, tokens)
