"""Action values: of all actions of a discrete space, or twice of one continuous action."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxagents.networks.heads import DuelingHead, ValueHead
from jaxagents.ops.distributions import is_bounded
from jaxagents.types import Array, Box, Discrete, Params, PyTree


class QFunction(NamedTuple):
    """An action-value function.

    Attributes:
        init: `(key) -> params`.
        apply: discrete actions: `(params, observation [..., *shape]) -> [..., A]`;
            continuous actions: `(params, observation [..., D], action [..., A]) -> [2, ...]`, two independent values;
            actions are those of policies, before their squashing.
    """

    init: Callable[[Array], Params]
    apply: Callable[..., Array]


def make_q_function(
    observation_space: PyTree, action_space: Discrete, *, encoder: nn.Module, dueling: bool = False
) -> QFunction:
    """Makes the values of all actions of a discrete space.

    Args:
        observation_space: of one agent.
        action_space: of A actions.
        encoder: observation `[..., *shape]` -> features `[..., D]`.
        dueling: True adds a state value and centred advantages (Wang et al., 2016), False has one linear layer.

    Returns:
        The function; parameters `{"encoder", "head"}`.

    Raises:
        ValueError: if the actions are not discrete.
    """
    if not isinstance(action_space, Discrete):
        raise ValueError(f"`action_space` must be Discrete, got {action_space}; try `make_twin_q`.")
    num_actions = action_space.num_values
    head = DuelingHead(num_actions) if dueling else nn.Dense(num_actions, kernel_init=nn.initializers.orthogonal(1.0))

    def init(key: Array) -> Params:
        encoder_key, head_key = jax.random.split(key)
        observation = jax.tree.map(lambda space: jnp.zeros((1, 1, *space.shape), space.dtype), observation_space)
        features, encoder_params = encoder.init_with_output(encoder_key, observation)
        return {"encoder": encoder_params, "head": head.init(head_key, features)}

    def apply(params: Params, observation: PyTree) -> Array:
        return head.apply(params["head"], encoder.apply(params["encoder"], observation))

    return QFunction(init=init, apply=apply)


def make_twin_q(observation_space: Box, action_space: Box, *, encoder: nn.Module) -> QFunction:
    """Makes two values of one continuous action, which differ in their initial parameters only.

    The encoder sees the observation and the squashed action, `tanh(action)`, in one vector.

    Args:
        observation_space: a vector.
        action_space: a bounded vector.
        encoder: `[..., D + A]` -> features `[..., F]`.

    Returns:
        The function; parameters `{"encoder", "head"}`, whose leaves have a leading axis of 2.

    Raises:
        ValueError: if a space is not a vector or the actions are unbounded.

    References:
        Fujimoto, van Hoof and Meger (2018), section 4.2.
    """
    for name, space in (("observation_space", observation_space), ("action_space", action_space)):
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise ValueError(f"`{name}` must be a Box of rank 1, got {space}; flatten it or try `make_q_function`.")
    if not is_bounded(action_space):
        raise ValueError(f"`action_space` must be bounded, got {action_space}; clip the actions.")
    head = ValueHead()

    def join(observation: Array, action: Array) -> Array:
        return jnp.concatenate([observation.astype(jnp.float32), jnp.tanh(action)], axis=-1)

    def init_one(key: Array) -> Params:
        encoder_key, head_key = jax.random.split(key)
        inputs = jnp.zeros((1, observation_space.shape[0] + action_space.shape[0]))
        features, encoder_params = encoder.init_with_output(encoder_key, inputs)
        return {"encoder": encoder_params, "head": head.init(head_key, features)}

    def apply_one(params: Params, inputs: Array) -> Array:
        return head.apply(params["head"], encoder.apply(params["encoder"], inputs))

    def init(key: Array) -> Params:
        return jax.vmap(init_one)(jax.random.split(key))

    def apply(params: Params, observation: Array, action: Array) -> Array:
        return jax.vmap(apply_one, (0, None))(params, join(observation, action))

    return QFunction(init=init, apply=apply)
