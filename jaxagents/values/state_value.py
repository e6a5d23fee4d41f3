"""Values of states."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxagents.networks.heads import ValueHead
from jaxagents.types import Array, Params, PyTree


class StateValue(NamedTuple):
    """A feed-forward function from states to values.

    Attributes:
        init: `(key) -> params`.
        apply: `(params, observation [..., *shape]) -> [...]`.
    """

    init: Callable[[Array], Params]
    apply: Callable[[Params, PyTree], Array]


def make_state_value(observation_space: PyTree, *, encoder: nn.Module) -> StateValue:
    """Makes the value of states.

    Args:
        observation_space: observation space of one agent.
        encoder: observation `[..., *shape]` -> features `[..., F]`.

    Returns:
        The function, with parameters `{"encoder", "head"}`.
    """
    head = ValueHead()

    def init(key: Array) -> Params:
        encoder_key, head_key = jax.random.split(key)
        observation = jax.tree.map(lambda space: jnp.zeros((1, *space.shape), space.dtype), observation_space)
        features, params = encoder.init_with_output(encoder_key, observation)
        return {"encoder": params, "head": head.init(head_key, features)}

    def apply(params: Params, observation: PyTree) -> Array:
        return head.apply(params["head"], encoder.apply(params["encoder"], observation))

    return StateValue(init=init, apply=apply)
