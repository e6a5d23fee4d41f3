"""The epsilon-greedy policy of an action-value function."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.ops.distributions import Categorical
from jaxagents.ops.value_distributions import expected_values
from jaxagents.types import Array, Carry, Params, Policy, PolicyInput


@struct.dataclass
class EpsilonGreedy:
    """The mixture `epsilon Uniform(allowed) + (1 - epsilon) greedy`, with the methods of `Categorical`.

    Attributes:
        q: float32 `[..., A]`.
        epsilon: float32 `[...]`, in `[0, 1]`.
        action_mask: bool `[..., A]`, True = allowed.
    """

    q: Array
    epsilon: Array
    action_mask: Array

    def mask(self, action_mask: Array | None) -> "EpsilonGreedy":
        """Returns the policy restricted further to `action_mask` (bool `[..., A]`; None: all actions)."""
        return self if action_mask is None else self.replace(action_mask=self.action_mask & action_mask)

    def noise(self, key: Array) -> Array:
        """Draws standard Gumbel noise `[..., A]`."""
        return Categorical(logits=self.q).noise(key)

    def transform(self, noise: Array) -> Array:
        """Returns the action int32 `[...]` that corresponds to `noise`."""
        return self._categorical().transform(noise)

    def sample(self, key: Array) -> Array:
        """Draws actions, int32 `[...]`."""
        return self.transform(self.noise(key))

    def log_probs(self) -> Array:
        """Returns log-probabilities of all actions, `[..., A]`; very negative, but finite, for impossible actions."""
        return self._categorical().log_probs()

    def log_prob(self, action: Array) -> Array:
        """Returns the log-probability of `action` (int `[...]`), float32 `[...]`."""
        return self._categorical().log_prob(action)

    def entropy(self) -> Array:
        """Returns the entropy in nats, `[...]`."""
        return self._categorical().entropy()

    def mode(self) -> Array:
        """Returns the allowed action with the largest value, int32 `[...]`, regardless of epsilon."""
        allowed_q = jnp.where(self.action_mask, self.q, jnp.finfo(self.q.dtype).min)
        return jnp.argmax(allowed_q, axis=-1).astype(jnp.int32)

    def _categorical(self) -> Categorical:
        greedy = jax.nn.one_hot(self.mode(), self.q.shape[-1])
        num_allowed = jnp.maximum(jnp.sum(self.action_mask, axis=-1, keepdims=True), 1)
        epsilon = self.epsilon[..., None]
        probability = epsilon * self.action_mask / num_allowed + (1.0 - epsilon) * greedy
        possible = probability > 0.0
        return Categorical(logits=jnp.log(jnp.where(possible, probability, 1.0))).mask(possible)


def make_epsilon_greedy(q_function: Any, *, initial_epsilon: float = 1.0) -> Policy:
    """Makes the policy that usually takes the action with the largest expected value.

    Args:
        q_function: Q-function, see `values.q_function.QFunction`.
        initial_epsilon: epsilon in the parameters that `init` makes; a learner replaces it.

    Returns:
        A policy with parameters `{"network", "epsilon"}`, and with the memory and the noise of the function.

    Raises:
        ValueError: `initial_epsilon` is not a probability.
    """
    if not 0.0 <= initial_epsilon <= 1.0:
        raise ValueError(f"`initial_epsilon` must be in [0, 1], got {initial_epsilon}; try 1.")

    def init(key: Array) -> Params:
        return {"network": q_function.init(key), "epsilon": jnp.float32(initial_epsilon)}

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, EpsilonGreedy]:
        carry, values = q_function.apply(params["network"], carry, inputs)
        q = expected_values(values)
        # Every leaf of a distribution has the leading axes of the batch.
        epsilon = jnp.broadcast_to(params["epsilon"], q.shape[:-1])
        return carry, EpsilonGreedy(q=q, epsilon=epsilon, action_mask=jnp.ones(q.shape, bool)).mask(inputs.action_mask)

    return Policy(init=init, initial_carry=q_function.initial_carry, apply=apply, draw_noise=q_function.draw_noise)
