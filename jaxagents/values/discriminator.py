"""Judges of single steps: who did this, the policy or the demonstrator?"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxagents.networks.heads import ValueHead
from jaxagents.ops.distributions import is_bounded
from jaxagents.types import Array, Box, Discrete, Params


class Discriminator(NamedTuple):
    """A number of a state and an action.

    Attributes:
        init: `(key) -> params`.
        apply: `(params, observation [..., D], action) -> [...]`, the logit of "a demonstrator did this"; actions are
            those of policies, before their squashing.
    """

    init: Callable[[Array], Params]
    apply: Callable[[Params, Array, Array], Array]


def make_discriminator(observation_space: Box, action_space: Discrete | Box, *, encoder: nn.Module) -> Discriminator:
    """Makes a discriminator of observations and actions in one vector.

    Args:
        observation_space: a vector.
        action_space: discrete, or a bounded vector.
        encoder: `[..., D + A]` -> features `[..., F]`.

    Returns:
        The function; parameters `{"encoder", "head"}`.

    Raises:
        ValueError: the observations are not a vector, or the actions are not bounded.
    """
    if not isinstance(observation_space, Box) or len(observation_space.shape) != 1:
        raise ValueError(f"`observation_space` must be a Box of rank 1, got {observation_space}; flatten it.")
    discrete = isinstance(action_space, Discrete)
    if not discrete and not (is_bounded(action_space) and len(action_space.shape) == 1):
        raise ValueError(f"`action_space` must be Discrete or a bounded Box of rank 1, got {action_space}.")
    size = action_space.num_values if discrete else action_space.shape[0]
    head = ValueHead()

    def init(key: Array) -> Params:
        encoder_key, head_key = jax.random.split(key)
        inputs = jnp.zeros((1, observation_space.shape[0] + size))
        features, params = encoder.init_with_output(encoder_key, inputs)
        return {"encoder": params, "head": head.init(head_key, features)}

    def apply(params: Params, observation: Array, action: Array) -> Array:
        action = jax.nn.one_hot(action, size) if discrete else jnp.tanh(action)
        inputs = jnp.concatenate([observation.astype(jnp.float32), action], axis=-1)
        return head.apply(params["head"], encoder.apply(params["encoder"], inputs))

    return Discriminator(init=init, apply=apply)
