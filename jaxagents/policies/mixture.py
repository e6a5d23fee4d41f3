"""Policies of several squashed Gaussians, for states in which several different continuous actions may be right."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxagents.networks.heads import TanhNormalHead, ValueHead
from jaxagents.networks.initializers import orthogonal
from jaxagents.networks.torsos import make_torso
from jaxagents.ops.distributions import is_bounded
from jaxagents.ops.mixture import TanhNormalMixture
from jaxagents.types import ActorCritic, Array, Box, Carry, Params, Policy, PolicyInput, PyTree


class TanhNormalMixtureHead(nn.Module):
    """Weights, locations and scales of M normal distributions before squashing.

    Initially, the weights are nearly equal and the locations are spread evenly over `[-spread, spread]`, the same in
    every dimension, because identical components would learn identically.

    Attributes:
        num_components: M, number of components.
        action_dim: D, number of action dimensions.
        initial_scale: initial scale of every component, in units of the action before squashing.
        min_scale: lower bound of the scales, in the same units.
        spread: largest initial location.
    """

    num_components: int
    action_dim: int
    initial_scale: float = 0.5
    min_scale: float = 1e-3
    spread: float = 0.5

    @nn.compact
    def __call__(self, features: Array) -> tuple[Array, Array, Array]:
        """Computes `(logits [..., M], loc [..., M, D], scale [..., M, D])` from features `[..., F]`."""
        logits = nn.Dense(self.num_components, kernel_init=orthogonal(0.01), name="logits")(features)
        size = self.num_components * self.action_dim
        options = {"state_dependent_scale": True, "min_scale": self.min_scale, "initial_scale": self.initial_scale}
        loc, scale = TanhNormalHead(size, **options, name="components")(features)  # type: ignore[arg-type]
        shape = (*features.shape[:-1], self.num_components, self.action_dim)
        places = (
            jnp.linspace(-self.spread, self.spread, self.num_components)[:, None] if self.num_components > 1 else 0.0
        )
        return logits, loc.reshape(shape) + jnp.broadcast_to(places, shape), scale.reshape(shape)


def make_mixture_policy(
    observation_space: PyTree,
    action_space: Box,
    *,
    encoder: nn.Module,
    memory: nn.Module | None = None,
    num_components: int = 5,
    initial_scale: float = 0.5,
    min_scale: float = 1e-3,
) -> Policy:
    """Makes a policy `pi(a | s) = sum_m w_m(s) p_m(a | s)` of M squashed Gaussians.

    Args:
        observation_space: observation space of one agent.
        action_space: space of a bounded vector.
        encoder: observation `[..., *shape]` -> features `[..., F]`.
        memory: recurrent module of `networks.recurrent`; None for a feed-forward policy.
        num_components: M, number of components.
        initial_scale: initial scale of every component, before squashing.
        min_scale: lower bound of the scales.

    Returns:
        The policy. Its parameters are a dict with the keys `torso` and `head`.

    Raises:
        ValueError: the actions are not a bounded vector, or there are no components.

    References:
        Bishop (1994), Mixture density networks.
    """
    if not isinstance(action_space, Box) or not is_bounded(action_space) or len(action_space.shape) != 1:
        raise ValueError(
            f"`action_space` must be a bounded Box of rank 1 for a mixture of Gaussians, got {action_space}; try "
            "policy=mlp, or world=pendulum."
        )
    if num_components < 1:
        raise ValueError(f"`num_components` must be at least 1, got {num_components}; try 5.")
    torso = make_torso(observation_space, encoder, memory)
    head = TanhNormalMixtureHead(num_components, action_space.shape[0], initial_scale, min_scale)
    bounds = {"low": float(action_space.low), "high": float(action_space.high)}

    def init(key: Array) -> Params:
        torso_key, head_key = jax.random.split(key)
        torso_params, features = torso.init(torso_key)
        return {"torso": torso_params, "head": head.init(head_key, features)}

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, TanhNormalMixture]:
        carry, features = torso.apply(params["torso"], carry, inputs.observation, inputs.first)
        logits, loc, scale = head.apply(params["head"], features)
        return carry, TanhNormalMixture(logits=logits, loc=loc, scale=scale, **bounds).mask(inputs.action_mask)

    return Policy(init=init, initial_carry=torso.initial_carry, apply=apply)


def make_mixture_actor_critic(
    observation_space: PyTree, action_space: Box, *, encoder: nn.Module, memory: nn.Module | None = None, **options: Any
) -> ActorCritic:
    """Makes a mixture policy, and a state-value function with a separate torso.

    Args:
        observation_space: observation space of one agent.
        action_space: see `make_mixture_policy`.
        encoder: see `make_mixture_policy`; used in both torsos.
        memory: see `make_mixture_policy`; used in both torsos.
        **options: further arguments of `make_mixture_policy`.

    Returns:
        The actor-critic. Parameters: `{"actor", "critic": {"torso", "head"}}`; the carry is a pair.
    """
    policy = make_mixture_policy(observation_space, action_space, encoder=encoder, memory=memory, **options)
    torso, value_head = make_torso(observation_space, encoder, memory), ValueHead()

    def init(key: Array) -> Params:
        actor_key, torso_key, head_key = jax.random.split(key, 3)
        torso_params, features = torso.init(torso_key)
        critic = {"torso": torso_params, "head": value_head.init(head_key, features)}
        return {"actor": policy.init(actor_key), "critic": critic}

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, Any, Array]:
        actor_carry, distribution = policy.apply(params["actor"], carry[0], inputs)
        critic = params["critic"]
        critic_carry, features = torso.apply(critic["torso"], carry[1], inputs.observation, inputs.first)
        return (actor_carry, critic_carry), distribution, value_head.apply(critic["head"], features)

    return ActorCritic(
        init=init, initial_carry=lambda shape: (policy.initial_carry(shape), torso.initial_carry(shape)), apply=apply
    )
