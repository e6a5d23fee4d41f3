"""A policy with a model of the world in its own latent space, in which a search can plan (MuZero)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxagents.networks.heads import CategoricalHead, TanhNormalHead, ValueHead
from jaxagents.networks.torsos import make_torso
from jaxagents.ops.distributions import Categorical, TanhNormal, is_bounded
from jaxagents.types import Array, Box, Carry, Discrete, Params, PolicyInput, PyTree


class LatentModel(NamedTuple):
    """A feed-forward `Policy` that can predict what follows; leading axes are free.

    Attributes:
        init: see `Policy`.
        initial_carry: see `Policy`.
        apply: see `Policy`; the prior for an observation, without a search.
        represent: `(params, observation [..., *shape]) -> latent [..., D]`.
        step: `(params, latent [..., D], action [...]) -> (latent [..., D], reward [...])`; continuous actions are
            unsquashed.
        predict: `(params, latent [..., D]) -> (distribution [...], value [...])`.
        draw_noise: None.
    """

    init: Callable[[Array], Params]
    initial_carry: Callable[[tuple[int, ...]], Carry]
    apply: Callable[[Params, Carry, PolicyInput], tuple[Carry, Any]]
    represent: Callable[[Params, PyTree], Array]
    step: Callable[[Params, Array, Array], tuple[Array, Array]]
    predict: Callable[[Params, Array], tuple[Any, Array]]
    draw_noise: Callable[[Array, int], PyTree] | None = None


def make_latent_model(
    observation_space: PyTree,
    action_space: Discrete | Box,
    *,
    encoder: nn.Module,
    dynamics: nn.Module,
    min_scale: float = 0.05,
) -> LatentModel:
    """Makes representation, dynamics and prediction functions over one latent space.

    Args:
        observation_space: observation space of one agent.
        action_space: space of A actions, or of a bounded vector of A numbers, of which a search samples some.
        encoder: observation `[..., *shape]` -> features `[..., D]`.
        dynamics: features and action `[..., D + A]`, one-hot or squashed to [-1, 1], -> features `[..., D]`, in which
            the reward is linear.
        min_scale: least scale of a continuous action before squashing, without which the samples of a search soon
            coincide.

    Returns:
        The model, with parameters `{"encoder", "dynamics", "reward", "policy", "value"}`. Latents are in [0, 1].

    Raises:
        ValueError: the actions are neither discrete nor a bounded vector, or the dynamics give features of a different
            size.

    References:
        Schrittwieser et al. (2020), Mastering Atari, Go, chess and shogi by planning with a learned model, section 3
        and appendix G; Hubert et al. (2021), Learning and planning in complex action spaces, section 5.
    """
    torso = make_torso(observation_space, encoder)
    policy_head, to_distribution, encode = _actions_of(action_space, min_scale)
    value_head, reward_head = ValueHead(), ValueHead()

    def joined(latent: Array, action: Array) -> Array:
        return jnp.concatenate([latent, encode(action)], axis=-1)

    def init(key: Array) -> Params:
        keys = jax.random.split(key, 5)
        encoder_params, features = torso.init(keys[0])
        moved = joined(features, jnp.zeros((*features.shape[:-1], *action_space.shape), action_space.dtype))
        dynamics_params = dynamics.init(keys[1], moved)
        following = jax.eval_shape(dynamics.apply, dynamics_params, moved)
        if following.shape != features.shape:
            raise ValueError(
                f"`dynamics` must give features of the size of the encoder's, got {following.shape[-1]} and "
                f"{features.shape[-1]}; try the same last layer."
            )
        return {
            "encoder": encoder_params,
            "dynamics": dynamics_params,
            "reward": reward_head.init(keys[2], features),
            "policy": policy_head.init(keys[3], features),
            "value": value_head.init(keys[4], features),
        }

    def represent(params: Params, observation: PyTree) -> Array:
        return _to_unit(encoder.apply(params["encoder"]["encoder"], observation))

    def step(params: Params, latent: Array, action: Array) -> tuple[Array, Array]:
        following = dynamics.apply(params["dynamics"], joined(latent, action))
        return _to_unit(following), reward_head.apply(params["reward"], following)

    def predict(params: Params, latent: Array) -> tuple[Any, Array]:
        distribution = to_distribution(policy_head.apply(params["policy"], latent))
        return distribution, value_head.apply(params["value"], latent)

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, Any]:
        distribution, _ = predict(params, represent(params, inputs.observation))
        return carry, distribution.mask(inputs.action_mask)

    return LatentModel(init, lambda batch_shape: (), apply, represent, step, predict)


def _actions_of(space: Discrete | Box, min_scale: float) -> tuple[nn.Module, Callable[[Any], Any], Any]:
    """Returns the head of a policy, a function from its outputs to a distribution, and the dynamics' action inputs."""
    if isinstance(space, Discrete) and not space.shape:
        num_values = space.num_values
        return (
            CategoricalHead(num_values),
            lambda logits: Categorical(logits=logits),
            lambda action: jax.nn.one_hot(action, num_values),
        )
    if not isinstance(space, Box) or not is_bounded(space) or len(space.shape) != 1:
        raise ValueError(
            f"`action_space` must be Discrete or a bounded Box of rank 1 for a tree search, got {space}; try "
            "`algorithm=ppo`."
        )
    head = TanhNormalHead(space.shape[0], state_dependent_scale=True, min_scale=min_scale)
    bounds = {"low": float(space.low), "high": float(space.high)}
    return head, lambda parts: TanhNormal(loc=parts[0], scale=parts[1], **bounds), jnp.tanh


def _to_unit(features: Array) -> Array:
    """Scales every row to [0, 1]."""
    low, high = jnp.min(features, axis=-1, keepdims=True), jnp.max(features, axis=-1, keepdims=True)
    return (features - low) / jnp.maximum(high - low, 1e-5)
