"""Actor-critics that see their last action and its reward, and can adapt within an episode (RL^2)."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.ops.distributions import require_vector
from jaxagents.policies.actor_critic import make_actor_critic
from jaxagents.types import ActorCritic, Array, Box, Carry, Discrete, Params, PolicyInput


def make_history_actor_critic(observation_space: Box, action_space: Discrete | Box, **options: Any) -> ActorCritic:
    """Makes an actor-critic whose observation includes the previous action and the previous reward.

    Args:
        observation_space: space of a vector.
        action_space: space of one number or vector.
        **options: further arguments of `make_actor_critic`, especially `memory`.

    Returns:
        The actor-critic.

    Raises:
        ValueError: the observation is not a vector, there is no memory, or, when it acts, the previous action is
            missing.

    References:
        Duan et al. (2016), RL^2: fast reinforcement learning via slow reinforcement learning; Wang et al. (2016),
        Learning to reinforcement learn.
    """
    require_vector("observation_space", observation_space, "flatten it")
    if options.get("memory") is None:
        raise ValueError("`memory` must be chosen for a policy that adapts within an episode, got null; try a GRU.")
    per_part = action_space.num_values if isinstance(action_space, Discrete) else 1
    size = observation_space.shape[0] + math.prod(action_space.shape) * per_part + 1
    actor_critic = make_actor_critic(Box((size,)), action_space, **options)

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, Any, Array]:
        return actor_critic.apply(params, carry, inputs.replace(observation=history_of(inputs, action_space)))

    return actor_critic._replace(apply=apply)


def history_of(inputs: PolicyInput, action_space: Discrete | Box) -> Array:
    """Returns `(observation, previous action, previous reward)`, float32 `[T, B, D + A + 1]`.

    Discrete actions are one-hot, continuous ones are squashed; both are zero in the first step of an episode.
    """
    if inputs.previous_action is None or inputs.previous_reward is None:
        raise ValueError("`previous_action` must be kept for a policy of history, got None; try collector=rollout.")
    if isinstance(action_space, Discrete):
        action = jax.nn.one_hot(inputs.previous_action, action_space.num_values)
    else:
        action = jnp.tanh(inputs.previous_action)
    action = action.reshape(*inputs.first.shape, -1)
    features = jnp.concatenate([action, inputs.previous_reward[..., None]], axis=-1)
    features = jnp.where(inputs.first[..., None], 0.0, features)
    return jnp.concatenate([jnp.asarray(inputs.observation, jnp.float32), features], axis=-1)
