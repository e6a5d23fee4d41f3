"""PopArt (van Hasselt et al., 2016): values in units of the returns, preserved when these units change."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.types import ActorCritic, Array, Carry, Params, PolicyInput

_SCALE_BOUNDS = 1e-4, 1e6


def with_value_scale(actor_critic: ActorCritic) -> ActorCritic:
    """Makes the values of an actor-critic `mean + scale v`, where v is the output of its network.

    Their gradient is divided by `scale^2`, so that the gradient of a squared error is that of the same error in units
    of the scale, whatever these units are.

    Args:
        actor_critic: actor-critic with one linear layer of values, `params["critic"]["head"]`.

    Returns:
        The actor-critic; its parameters are `{"network", "returns"}`, the latter a mean and a mean square, initially 0
        and 1.

    Raises:
        ValueError: there is no such layer.
    """
    if "head" not in dict(jax.eval_shape(actor_critic.init, jax.random.key(0))).get("critic", {}):
        raise ValueError("`popart_rate` must be null for a policy without a linear layer of values; try policy=mlp.")

    def init(key: Array) -> Params:
        return {"network": actor_critic.init(key), "returns": {"mean": jnp.zeros(()), "square": jnp.ones(())}}

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, Any, Array]:
        carry, distribution, value = actor_critic.apply(params["network"], carry, inputs)
        mean, scale = jax.lax.stop_gradient(_units(params["returns"]))
        value = mean + scale * value
        share = scale**-2
        return carry, distribution, share * value + jax.lax.stop_gradient((1.0 - share) * value)

    return ActorCritic(init, actor_critic.initial_carry, apply, actor_critic.draw_noise)


def rescale_values(params: Params, target: Array, rate: Array | float, axis_name: str | None = None) -> Params:
    """Moves the units of the values towards those of targets, and adjusts their linear layer so that no value changes.

    Args:
        params: parameters of `with_value_scale`.
        target: float32 `[...]`, targets of the values.
        rate: beta, fraction by which mean and mean square move. Paper: 3e-4 per short rollout.
        axis_name: mapped device axis to average over.

    Returns:
        The parameters.

    References:
        Van Hasselt et al. (2016), Learning values across many orders of magnitude, equations 6 to 8 and proposition 1;
        Hessel et al. (2019), Multi-task deep reinforcement learning with PopArt.
    """
    seen = {"mean": jnp.mean(target), "square": jnp.mean(jnp.square(target))}
    seen = seen if axis_name is None else jax.lax.pmean(seen, axis_name)
    returns = jax.tree.map(lambda old, new: old + rate * (new - old), params["returns"], seen)
    (old_mean, old_scale), (mean, scale) = _units(params["returns"]), _units(returns)

    def move(path: tuple[Any, ...], leaf: Array) -> Array:
        is_bias = path[-1].key == "bias"
        return (old_scale * leaf + (old_mean - mean if is_bias else 0.0)) / scale

    critic = params["network"]["critic"]
    critic = {**critic, "head": jax.tree_util.tree_map_with_path(move, critic["head"])}
    return {"network": {**params["network"], "critic": critic}, "returns": returns}


def _units(returns: Params) -> tuple[Array, Array]:
    variance = returns["square"] - jnp.square(returns["mean"])
    return returns["mean"], jnp.clip(jnp.sqrt(jnp.maximum(variance, 0.0)), *_SCALE_BOUNDS)
