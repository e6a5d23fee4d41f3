"""Policies and actor-critics assembled from an encoder, an optional memory and heads."""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxagents.networks.heads import CategoricalHead, TanhNormalHead, ValueHead
from jaxagents.networks.torsos import make_torso
from jaxagents.ops.distributions import Categorical, TanhNormal
from jaxagents.ops.multi_categorical import Discretized, MultiCategorical
from jaxagents.types import ActorCritic, Array, Box, Carry, Discrete, Params, Policy, PolicyInput, PyTree


def make_policy(
    observation_space: PyTree,
    action_space: Discrete | Box,
    *,
    encoder: nn.Module,
    memory: nn.Module | None = None,
    head: nn.Module | None = None,
    num_bins: int | None = None,
) -> Policy:
    """Makes a policy `pi(a | s)`.

    Args:
        observation_space: observation space of one agent; batch, time and agent axes are free.
        action_space: `Discrete` gives a categorical distribution, or with a shape `(D,)` one for each of D parts; a
            bounded `Box` gives a tanh-Gaussian distribution.
        encoder: `module(observation [..., *shape]) -> features [..., F]`.
        memory: recurrent module of `networks.recurrent`; None for a feed-forward policy.
        head: module that maps features to the distribution's parameters; None: the default for the action space.
        num_bins: number of evenly spaced values for every number of a bounded `Box`, with categorical distributions
            instead of the Gaussian; None: the Gaussian.

    Returns:
        The policy. Its parameters are a dict with the keys `torso` and `head`.

    Raises:
        ValueError: the action space is unbounded, `num_bins` does not fit it, or the encoder's output is not one row of
            features per observation.
    """
    torso = make_torso(observation_space, encoder, memory)
    _, features = jax.eval_shape(torso.init, jax.random.key(0))
    if features.ndim != 3:
        shapes = jax.tree.map(lambda space: space.shape, observation_space)
        raise ValueError(
            f"`encoder` must give one row of features for an observation of shape {shapes}, got features of shape "
            f"{features.shape[2:]}; try policy=grid_mlp or policy=cnn for grids."
        )
    head_module = head if head is not None else _make_head(action_space, num_bins)
    to_distribution = _make_distribution(action_space, num_bins)

    def init(key: Array) -> Params:
        torso_key, head_key = jax.random.split(key)
        torso_params, features = torso.init(torso_key)
        return {"torso": torso_params, "head": head_module.init(head_key, features)}

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, Any]:
        carry, features = torso.apply(params["torso"], carry, inputs.observation, inputs.first)
        return carry, to_distribution(head_module.apply(params["head"], features)).mask(inputs.action_mask)

    return Policy(init=init, initial_carry=torso.initial_carry, apply=apply)


def make_actor_critic(
    observation_space: PyTree,
    action_space: Discrete | Box,
    *,
    encoder: nn.Module,
    memory: nn.Module | None = None,
    head: nn.Module | None = None,
    num_bins: int | None = None,
    shared: bool = False,
    detach_value: bool = False,
    critic_encoder: nn.Module | None = None,
) -> ActorCritic:
    """Makes a policy and a state-value function in one record.

    Args:
        observation_space: observation space of one agent.
        action_space: see `make_policy`.
        encoder: see `make_policy`.
        memory: see `make_policy`.
        head: head of the policy, see `make_policy`.
        num_bins: see `make_policy`.
        shared: whether both heads are computed from one torso; else the critic has a separate torso.
        detach_value: whether the value of a shared torso trains only its head.
        critic_encoder: encoder of the critic's torso, which may see what the actor does not; None: like `encoder`.

    Returns:
        The actor-critic. Parameters: `{"actor": {"torso", "head"}, "critic": {"torso" (unless shared), "head"}}`; the
        carry is a pair (actor's, critic's), the latter empty when shared.

    Raises:
        ValueError: the action space is unbounded, or there is a `critic_encoder` without a separate torso.
    """
    if shared and critic_encoder is not None:
        raise ValueError("`critic_encoder` must be null when `shared` is true; try `shared: false`.")
    policy = make_policy(observation_space, action_space, encoder=encoder, memory=memory, head=head, num_bins=num_bins)
    torso = make_torso(observation_space, encoder, memory)
    head_module = head if head is not None else _make_head(action_space, num_bins)
    to_distribution = _make_distribution(action_space, num_bins)
    critic_torso = torso if critic_encoder is None else make_torso(observation_space, critic_encoder, memory)
    value_head = ValueHead()

    def init(key: Array) -> Params:
        actor_key, torso_key, head_key = jax.random.split(key, 3)
        torso_params, features = critic_torso.init(torso_key)
        critic = {"head": value_head.init(head_key, features)}
        return {"actor": policy.init(actor_key), "critic": critic if shared else {"torso": torso_params, **critic}}

    def initial_carry(batch_shape: tuple[int, ...]) -> Carry:
        return torso.initial_carry(batch_shape), () if shared else critic_torso.initial_carry(batch_shape)

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, Any, Array]:
        observation, first = inputs.observation, inputs.first
        actor, critic = params["actor"], params["critic"]
        actor_carry, critic_carry = carry
        actor_carry, actor_features = torso.apply(actor["torso"], actor_carry, observation, first)
        distribution = to_distribution(head_module.apply(actor["head"], actor_features)).mask(inputs.action_mask)
        if shared:
            critic_features = jax.lax.stop_gradient(actor_features) if detach_value else actor_features
        else:
            critic_carry, critic_features = critic_torso.apply(critic["torso"], critic_carry, observation, first)
        return (actor_carry, critic_carry), distribution, value_head.apply(critic["head"], critic_features)

    return ActorCritic(init=init, initial_carry=initial_carry, apply=apply)


def as_policy(actor_critic: ActorCritic) -> Policy:
    """Drops the value; computations that only the value needs are removed by compilation."""

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, Any]:
        carry, distribution, _ = actor_critic.apply(params, carry, inputs)
        return carry, distribution

    return Policy(actor_critic.init, actor_critic.initial_carry, apply, actor_critic.draw_noise)


def act(policy: Any, params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, Any]:
    """Applies a policy to one time step: takes leaves `[B, ...]`, returns `(carry, distribution [B])`."""
    inputs = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], inputs)
    carry, distribution = policy.apply(params, carry, inputs)
    return carry, jax.tree.map(lambda leaf: leaf[0], distribution)


def _make_head(action_space: Discrete | Box, num_bins: int | None) -> nn.Module:
    if isinstance(action_space, Discrete):
        return CategoricalHead(num_actions=action_space.num_values * math.prod(action_space.shape))
    action_dim = _action_dim(action_space)
    return TanhNormalHead(action_dim=action_dim) if num_bins is None else CategoricalHead(action_dim * num_bins)


def _make_distribution(action_space: Discrete | Box, num_bins: int | None) -> Callable[[Any], Any]:
    if num_bins is not None and (isinstance(action_space, Discrete) or num_bins < 2):
        raise ValueError(
            f"`num_bins` must be at least 2, of a bounded Box, got {num_bins} of {action_space}; try null."
        )
    if isinstance(action_space, Discrete) and not action_space.shape:
        return lambda logits: Categorical(logits=logits)
    if isinstance(action_space, Discrete):
        return _of_parts(MultiCategorical, *action_space.shape, action_space.num_values)  # type: ignore[call-arg]
    action_dim = _action_dim(action_space)
    if num_bins is not None:
        return _of_parts(Discretized, action_dim, num_bins)
    low, high = float(action_space.low), float(action_space.high)
    return lambda parameters: TanhNormal(loc=parameters[0], scale=parameters[1], low=low, high=high)


def _of_parts(kind: type[MultiCategorical], num_parts: int, num_values: int) -> Callable[[Array], MultiCategorical]:
    return lambda logits: kind(logits=logits.reshape(*logits.shape[:-1], num_parts, num_values))


def _action_dim(action_space: Box) -> int:
    bounded = abs(action_space.low) < float("inf") and abs(action_space.high) < float("inf")
    if len(action_space.shape) != 1 or not bounded:
        raise ValueError(
            f"`action_space` must be Discrete or a bounded Box of rank 1, got {action_space}; flatten or clip them."
        )
    return action_space.shape[0]
