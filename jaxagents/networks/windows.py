"""Attention over a window of the latest tokens, given as embeddings."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxagents.types import Array

_MASKED_SCORE = -1e9


class WindowAttention(nn.Module):
    """A pre-norm block of attention and a feed-forward layer; scores have a learned bias per distance.

    Attributes:
        num_heads: number of heads, which divides the number of features.
        window: number of tokens that a query sees, including its own.
    """

    num_heads: int
    window: int

    @nn.compact
    def __call__(self, x: Array, episode: Array) -> Array:
        """Computes `[B, L, D]` of tokens `[B, L, D]`; each sees those up to it in its episode, int32 `[B, L]`."""
        length, features = x.shape[1:]
        size = features // self.num_heads
        normed = nn.LayerNorm()(x)
        query, key, value = (nn.DenseGeneral((self.num_heads, size), name=name)(normed) for name in ("q", "k", "v"))
        distance = jnp.arange(length)[:, None] - jnp.arange(length)[None]
        bias = self.param("bias", nn.initializers.zeros, (self.num_heads, self.window))
        scores = jnp.einsum("bihd,bjhd->bhij", query, key) / math.sqrt(size)
        scores = scores + bias[:, jnp.clip(distance, 0, self.window - 1)][None]
        near = ((distance >= 0) & (distance < self.window))[None, None]
        same = (episode[:, :, None] == episode[:, None])[:, None]
        weights = jax.nn.softmax(jnp.where(near & same, scores, _MASKED_SCORE))
        mixed = jnp.einsum("bhij,bjhd->bihd", weights, value)
        x = x + nn.DenseGeneral(features, axis=(-2, -1), name="out")(mixed)
        hidden = nn.relu(nn.Dense(4 * features)(nn.LayerNorm()(x)))
        return x + nn.Dense(features)(hidden)


class StepTokens(nn.Module):
    """Embeds each step as three tokens, attends, and returns the features of the last token of every step.

    Attributes:
        features: D, features per token; a multiple of `num_heads`.
        num_layers: number of attention blocks.
        num_heads: number of attention heads.
        num_steps: K, number of latest steps that are visible, including the current one.
    """

    features: int = 64
    num_layers: int = 2
    num_heads: int = 2
    num_steps: int = 20

    def __post_init__(self):
        if min(self.features, self.num_layers, self.num_heads, self.num_steps) < 1 or self.features % self.num_heads:
            raise ValueError(
                "`features`, `num_layers`, `num_heads` and `num_steps` must be at least 1 and the heads divide the "
                f"features, got {self.features}, {self.num_layers}, {self.num_heads} and {self.num_steps}; try 64, 2, "
                "2 and 20."
            )
        super().__post_init__()

    @nn.compact
    def __call__(self, parts: tuple[Array, Array, Array], episode: Array) -> Array:
        """Computes features `[B, S, D]` of three parts `[B, S, *]` of S steps, with episodes int32 `[B, S]`."""
        tokens = jnp.stack([nn.Dense(self.features)(part) for part in parts], axis=2)
        batch, steps = tokens.shape[:2]
        kinds = self.param("kinds", nn.initializers.normal(0.02), (3, self.features))
        x = (tokens + kinds[None, None]).reshape(batch, 3 * steps, self.features)
        of_tokens = jnp.repeat(episode, 3, axis=1)
        for _ in range(self.num_layers):
            x = WindowAttention(self.num_heads, 3 * self.num_steps)(x, of_tokens)
        return nn.LayerNorm()(x[:, 2::3])
