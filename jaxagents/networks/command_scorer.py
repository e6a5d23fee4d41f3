"""Scores of commands in words, for worlds that offer a list of commands."""

from collections.abc import Mapping

import jax.numpy as jnp
from flax import linen as nn

from jaxagents.types import Array


class CommandScorer(nn.Module):
    """Computes `f(text) . g(command) / sqrt(F)` for every command, from bags of embedded words.

    Attributes:
        vocab_size: number of word ids; 0 is no word.
        features: F.

    References:
        He et al. (2016), "Deep Reinforcement Learning with a Natural Language Action Space", section 3 (DRRN).

    Deviation: the scores are logits of a policy, not Q-values.
    """

    vocab_size: int = 4096
    features: int = 64

    @nn.compact
    def __call__(self, observation: Mapping[str, Array]) -> Array:
        """Returns float32 `[..., A]` for `text` int `[..., K]` and `commands` int `[..., A, M]`."""
        embedding = nn.Embed(self.vocab_size, self.features, name="embedding")
        text = nn.relu(nn.Dense(self.features, name="text")(_bag(embedding, observation["text"])))
        text = nn.Dense(self.features, name="state")(text)
        commands = nn.relu(nn.Dense(self.features, name="command")(_bag(embedding, observation["commands"])))
        commands = nn.Dense(self.features, name="action")(commands)
        return jnp.einsum("...f,...af->...a", text, commands) / self.features**0.5


class TextEncoder(nn.Module):
    """Computes features `[..., F]` of the text of such an observation, for value functions.

    Attributes:
        vocab_size: number of word ids; 0 is no word.
        features: F.
    """

    vocab_size: int = 4096
    features: int = 64

    @nn.compact
    def __call__(self, observation: Mapping[str, Array]) -> Array:
        """Returns float32 `[..., F]`."""
        embedding = nn.Embed(self.vocab_size, self.features, name="embedding")
        return nn.tanh(nn.Dense(self.features, name="text")(_bag(embedding, observation["text"])))


class Logits(nn.Module):
    """Uses its input as the logits: the head of a policy whose encoder scores actions."""

    @nn.compact
    def __call__(self, scores: Array) -> Array:
        """Returns the scores, times a learned factor."""
        return scores * self.param("scale", nn.initializers.ones, (1,)).reshape((1,) * scores.ndim)


def _bag(embedding: nn.Embed, words: Array) -> Array:
    """Computes the mean of the embedded words along the last axis."""
    is_word = (words > 0)[..., None]
    return jnp.sum(embedding(words) * is_word, axis=-2) / jnp.maximum(jnp.sum(is_word, axis=-2), 1)
