"""A policy with a model of the world in a latent space of its own, in which a search can plan (MuZero)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxagents.networks.heads import CategoricalHead, ValueHead
from jaxagents.networks.torsos import make_torso
from jaxagents.ops.distributions import Categorical
from jaxagents.types import Array, Carry, Discrete, Params, PolicyInput, PyTree


class LatentModel(NamedTuple):
    """A feed-forward `Policy` of discrete actions that can foresee what follows; leading axes are free.

    Attributes:
        init: see `Policy`.
        initial_carry: see `Policy`.
        apply: see `Policy`; the prior of the observation, without a search.
        represent: `(params, observation [..., *shape]) -> latent [..., D]`.
        step: `(params, latent [..., D], action [...]) -> (latent [..., D], reward [...])`.
        predict: `(params, latent [..., D]) -> (logits [..., A], value [...])`.
        draw_noise: None.
    """

    init: Callable[[Array], Params]
    initial_carry: Callable[[tuple[int, ...]], Carry]
    apply: Callable[[Params, Carry, PolicyInput], tuple[Carry, Any]]
    represent: Callable[[Params, PyTree], Array]
    step: Callable[[Params, Array, Array], tuple[Array, Array]]
    predict: Callable[[Params, Array], tuple[Array, Array]]
    draw_noise: Callable[[Array, int], PyTree] | None = None


def make_latent_model(
    observation_space: PyTree, action_space: Discrete, *, encoder: nn.Module, dynamics: nn.Module
) -> LatentModel:
    """Makes representation, dynamics and prediction functions over one latent space.

    Args:
        observation_space: of one agent.
        action_space: of A actions.
        encoder: observation `[..., *shape]` -> features `[..., D]`.
        dynamics: features and one-hot action `[..., D + A]` -> features `[..., D]`, of which the reward is linear.

    Returns:
        The model; parameters `{"encoder", "dynamics", "reward", "policy", "value"}`. Latents are in [0, 1].

    Raises:
        ValueError: the actions are not discrete, or the dynamics give features of another size.

    References:
        Schrittwieser et al. (2020), Mastering Atari, Go, chess and shogi by planning with a learned model, section 3
        and appendix G.
    """
    if not isinstance(action_space, Discrete) or action_space.shape:
        raise ValueError(f"`action_space` must be Discrete for a tree search, got {action_space}; try `algorithm=sac`.")
    torso = make_torso(observation_space, encoder)
    policy_head, value_head, reward_head = CategoricalHead(action_space.num_values), ValueHead(), ValueHead()

    def joined(latent: Array, action: Array) -> Array:
        return jnp.concatenate([latent, jax.nn.one_hot(action, action_space.num_values)], axis=-1)

    def init(key: Array) -> Params:
        keys = jax.random.split(key, 5)
        encoder_params, features = torso.init(keys[0])
        moved = joined(features, jnp.zeros(features.shape[:-1], jnp.int32))
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

    def predict(params: Params, latent: Array) -> tuple[Array, Array]:
        return policy_head.apply(params["policy"], latent), value_head.apply(params["value"], latent)

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, Any]:
        logits, _ = predict(params, represent(params, inputs.observation))
        return carry, Categorical(logits=logits).mask(inputs.action_mask)

    return LatentModel(init, lambda batch_shape: (), apply, represent, step, predict)


def _to_unit(features: Array) -> Array:
    """Scales every row to [0, 1]."""
    low, high = jnp.min(features, axis=-1, keepdims=True), jnp.max(features, axis=-1, keepdims=True)
    return (features - low) / jnp.maximum(high - low, 1e-5)
