"""Embeddings of words, for the symbolic interface of text worlds."""

import jax.numpy as jnp
from flax import linen as nn

from jaxagents.types import Array


class Embedding(nn.Module):
    """Looks up a vector for each word, concatenates them in order, and applies a torso.

    Attributes:
        num_words: number of rows of the table; an id beyond it gives NaN rather than a wrong word.
        features: length of each vector.
        torso: module applied to the concatenated vectors, such as `torsos.MLP`; None: returns the vectors themselves.
    """

    num_words: int
    features: int = 16
    torso: nn.Module | None = None

    def __post_init__(self):
        if self.num_words < 1 or self.features < 1:
            raise ValueError(
                f"`num_words` and `features` must be at least 1, got {self.num_words} and {self.features}; "
                f"`num_words` is the length of the world's `text.words`."
            )
        super().__post_init__()

    @nn.compact
    def __call__(self, observation: Array) -> Array:
        """Computes features `[..., K * features]`, or the torso's output, of ids `[..., K]`; -1 is the zero vector."""
        table = self.param("embedding", nn.initializers.normal(1.0), (self.num_words, self.features))
        vectors = jnp.take(table, jnp.maximum(observation, 0), axis=0, mode="fill", fill_value=jnp.nan)
        vectors = jnp.where((observation >= 0)[..., None], vectors, 0.0)
        joined = vectors.reshape(*observation.shape[:-1], observation.shape[-1] * self.features)
        return joined if self.torso is None else self.torso(joined)
