"""Distributions of actions with several parts, each of which has a finite number of values."""

import jax.numpy as jnp
from flax import struct

from jaxagents.ops.distributions import Categorical
from jaxagents.types import Array

_EDGE = 1.0 - 1e-6  # Outermost values before `arctanh`, which is infinite at 1.


@struct.dataclass
class MultiCategorical:
    """Independent categorical distributions for the D parts of an action.

    Attributes:
        logits: float32 `[..., D, K]`, unnormalised; parts with fewer than K values have masked logits.
    """

    logits: Array

    def mask(self, action_mask: Array | None) -> "MultiCategorical":
        """Returns the distribution restricted to `action_mask` (bool `[..., D, K]`, True = allowed; None: all are)."""
        return self.replace(logits=Categorical(self.logits).mask(action_mask).logits)

    def noise(self, key: Array) -> Array:
        """Draws standard Gumbel noise `[..., D, K]`."""
        return Categorical(self.logits).noise(key)

    def transform(self, noise: Array) -> Array:
        """Returns the action that corresponds to `noise`."""
        return self._of_index(Categorical(self.logits).transform(noise))

    def sample(self, key: Array) -> Array:
        """Draws actions `[..., D]`."""
        return self.transform(self.noise(key))

    def log_prob(self, action: Array) -> Array:
        """Returns the log-probability of `action` (`[..., D]`), float32 `[...]`."""
        return jnp.sum(Categorical(self.logits).log_prob(self._to_index(action)), axis=-1)

    def entropy(self) -> Array:
        """Returns the entropy in nats, `[...]`."""
        return jnp.sum(Categorical(self.logits).entropy(), axis=-1)

    def mode(self) -> Array:
        """Returns the most probable action, `[..., D]`."""
        return self._of_index(Categorical(self.logits).mode())

    def kl_divergence(self, other: "MultiCategorical") -> Array:
        """Returns `KL(self || other)` in nats, `[...]`."""
        return jnp.sum(Categorical(self.logits).kl_divergence(Categorical(other.logits)), axis=-1)

    def _of_index(self, index: Array) -> Array:
        return index

    def _to_index(self, action: Array) -> Array:
        return action


@struct.dataclass
class Discretized(MultiCategorical):
    """A bounded continuous action, each of whose D numbers is one of K evenly spaced values, bounds included.

    Actions are these numbers before squashing, as in `TanhNormal`; probabilities are masses.

    References:
        Tang and Agrawal (2020), Discretizing continuous action space for on-policy optimization, section 4.
    """

    def _of_index(self, index: Array) -> Array:
        squashed = 2.0 * index / (self.logits.shape[-1] - 1) - 1.0
        return jnp.arctanh(jnp.clip(squashed, -_EDGE, _EDGE))

    def _to_index(self, action: Array) -> Array:
        return jnp.round(0.5 * (jnp.tanh(action) + 1.0) * (self.logits.shape[-1] - 1)).astype(jnp.int32)
