"""Ensembles of models of a world with vector observations: predictions of a step, and their uncertainty."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from jaxagents.ops.distributions import is_bounded, require_vector
from jaxagents.types import Array, Box, Params

LOG_SCALE_BOUNDS = -5.0, 1.0


@struct.dataclass
class Prediction:
    """Predicted result of a step; normally distributed, except the end.

    Attributes:
        mean: float32 `[..., D + 1]`, mean of the change of the observation, and of the reward.
        log_scale: float32 `[..., D + 1]`, logarithm of the standard deviation.
        end_logit: float32 `[...]`, logit of "the step terminates the episode".
    """

    mean: Array
    log_scale: Array
    end_logit: Array

    def sample(self, key: Array, observation: Array) -> tuple[Array, Array, Array]:
        """Draws the next observation `[D]`, the reward `[]` and whether the episode ends, for one step."""
        noise_key, end_key = jax.random.split(key)
        drawn = self.mean + jnp.exp(self.log_scale) * jax.random.normal(noise_key, self.mean.shape)
        ends = jax.random.bernoulli(end_key, jax.nn.sigmoid(self.end_logit))
        return observation + drawn[..., :-1], drawn[..., -1], ends


class Dynamics(NamedTuple):
    """An ensemble of E models.

    Attributes:
        init: `(key) -> params`, leaves `[E, ...]`.
        apply: `(params, observation [..., D], action [..., A]) -> Prediction` with leaves `[E, ...]`; actions are
            unsquashed.
    """

    init: Callable[[Array], Params]
    apply: Callable[[Params, Array, Array], Prediction]


def make_dynamics(observation_space: Box, action_space: Box, *, encoder: nn.Module, num_members: int = 5) -> Dynamics:
    """Makes an ensemble of models that differ only in their initial parameters.

    Args:
        observation_space: space of a vector of D numbers.
        action_space: space of a bounded vector.
        encoder: `[..., D + A]` -> features `[..., F]`.
        num_members: E, number of models. Paper: 5, or 7 of which the best 5 are used.

    Returns:
        The ensemble.

    Raises:
        ValueError: a space is not a vector, the actions are unbounded, or there are no members.

    References:
        Chua et al. (2018), Deep reinforcement learning in a handful of trials using probabilistic dynamics models,
        section 4.

    Deviation: the bounds of the standard deviations, which the paper learns, are fixed; ends are predicted, too.
    """
    for name, space in (("observation_space", observation_space), ("action_space", action_space)):
        require_vector(name, space, "flatten it", " for a model")
    if not is_bounded(action_space):
        raise ValueError(f"`action_space` must be bounded for a model, got {action_space}; clip the actions.")
    if num_members < 1:
        raise ValueError(f"`num_members` must be at least 1, got {num_members}; try 5.")
    size = observation_space.shape[0]
    model = nn.Sequential([encoder, nn.Dense(2 * (size + 1) + 1)])
    low, high = LOG_SCALE_BOUNDS

    def init(key: Array) -> Params:
        example = jnp.zeros((1, size + action_space.shape[0]))
        return jax.vmap(model.init, (0, None))(jax.random.split(key, num_members), example)

    def apply(params: Params, observation: Array, action: Array) -> Prediction:
        inputs = jnp.concatenate([observation.astype(jnp.float32), jnp.tanh(action)], axis=-1)
        outputs = jnp.asarray(jax.vmap(model.apply, (0, None))(params, inputs))
        mean, wide, end_logit = jnp.split(outputs, [size + 1, 2 * size + 2], axis=-1)
        log_scale = low + (high - low) * jax.nn.sigmoid(wide)
        return Prediction(mean=mean, log_scale=log_scale, end_logit=end_logit[..., 0])

    return Dynamics(init=init, apply=apply)
