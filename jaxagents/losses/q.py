"""Per-element temporal differences and losses of action values. No gradient flows to the targets.

`discount` is that of the bootstrap: `gamma` of a one-step and `gamma^m` of an m-step target, zero where terminated.
"""

import jax
import jax.numpy as jnp

from jaxagents.types import Array


def select_action(q: Array, action: Array) -> Array:
    """Returns `q[..., action]`: float `[..., A]` and int `[...]` give float `[...]`."""
    return jnp.take_along_axis(q, action[..., None], axis=-1)[..., 0]


def mask_q(q: Array, action_mask: Array | None) -> Array:
    """Returns `q` with the lowest finite value where an action is forbidden.

    Args:
        q: float `[..., A]`.
        action_mask: bool `[..., A]`, True = allowed; None when every action is.
    """
    return q if action_mask is None else jnp.where(action_mask, q, jnp.finfo(q.dtype).min)


def q_target(
    reward: Array, discount: Array, next_q: Array, next_q_selector: Array, *, next_action_mask: Array | None = None
) -> Array:
    """Computes `reward + discount max_a next_q(a)`; arguments are those of `double_q_target`."""
    del next_q_selector
    return double_q_target(reward, discount, next_q, next_q, next_action_mask=next_action_mask)


def double_q_target(
    reward: Array, discount: Array, next_q: Array, next_q_selector: Array, *, next_action_mask: Array | None = None
) -> Array:
    """Computes `reward + discount next_q(argmax_a next_q_selector(a))`, see `double_q_learning_error`."""
    next_action = jnp.argmax(mask_q(next_q_selector, next_action_mask), axis=-1)
    return reward + discount * select_action(next_q, next_action)


def q_learning_error(
    q: Array, action: Array, reward: Array, discount: Array, next_q: Array, *, next_action_mask: Array | None = None
) -> Array:
    """Computes the error `reward + discount max_a next_q(a) - q(action)` of Q-learning.

    Args:
        q: float `[..., A]`.
        action: int `[...]`.
        reward: float `[...]`, one reward or the sum of several.
        discount: float `[...]`.
        next_q: float `[..., A]`, of the target network.
        next_action_mask: bool `[..., A]`, True = allowed in the successor; None when every action is.

    Returns:
        float `[...]`.

    References:
        Mnih et al. (2015), algorithm 1.
    """
    return double_q_learning_error(q, action, reward, discount, next_q, next_q, next_action_mask=next_action_mask)


def double_q_learning_error(
    q: Array,
    action: Array,
    reward: Array,
    discount: Array,
    next_q: Array,
    next_q_selector: Array,
    *,
    next_action_mask: Array | None = None,
) -> Array:
    """Computes the error `reward + discount next_q(argmax_a next_q_selector(a)) - q(action)` of double Q-learning.

    Args:
        q: float `[..., A]`.
        action: int `[...]`.
        reward: float `[...]`, one reward or the sum of several.
        discount: float `[...]`.
        next_q: float `[..., A]`, of the target network.
        next_q_selector: float `[..., A]`, of the online network.
        next_action_mask: bool `[..., A]`, True = allowed in the successor; None when every action is.

    Returns:
        float `[...]`.

    References:
        Van Hasselt, Guez and Silver (2016), equation 4.
    """
    target = double_q_target(reward, discount, next_q, next_q_selector, next_action_mask=next_action_mask)
    return jax.lax.stop_gradient(target) - select_action(q, action)


def soft_q_target(reward: Array, discount: Array, next_q: Array, next_log_prob: Array, temperature: Array) -> Array:
    """Computes `reward + discount (min_i next_q_i - temperature next_log_prob)`.

    Args:
        reward: float `[...]`, one reward or the sum of several.
        discount: float `[...]`.
        next_q: float `[2, ...]`, of the target networks at an action of the policy.
        next_log_prob: float `[...]`, of that action.
        temperature: float `[]`, value of one nat of entropy in units of the reward.

    Returns:
        float `[...]`, without gradient.

    References:
        Haarnoja et al. (2018b), equation 6.
        Fujimoto, van Hoof and Meger (2018), equation 10.
    """
    next_value = jnp.min(next_q, axis=0) - temperature * next_log_prob
    return jax.lax.stop_gradient(reward + discount * next_value)


def sac_critic_loss(q: Array, target: Array) -> Array:
    """Computes `0.5 sum_i (q_i - target)^2`.

    Args:
        q: float `[2, ...]`.
        target: float `[...]`.

    Returns:
        float `[...]`.

    References:
        Haarnoja et al. (2018b), equation 5.
    """
    return 0.5 * jnp.sum(jnp.square(q - jax.lax.stop_gradient(target)[None]), axis=0)


def sac_actor_loss(q: Array, log_prob: Array, temperature: Array) -> Array:
    """Computes `temperature log_prob - min_i q_i` at a reparameterised action of the policy.

    Args:
        q: float `[2, ...]`; gradient flows through it to the action.
        log_prob: float `[...]`.
        temperature: float `[]`; no gradient flows to it.

    Returns:
        float `[...]`.

    References:
        Haarnoja et al. (2018b), equation 9.
    """
    return jax.lax.stop_gradient(temperature) * log_prob - jnp.min(q, axis=0)


def sac_temperature_loss(log_temperature: Array, log_prob: Array, target_entropy: Array | float) -> Array:
    """Computes `-temperature (log_prob + target_entropy)`, which raises the temperature of a too certain policy.

    Args:
        log_temperature: float `[]`.
        log_prob: float `[...]`, of actions of the policy; no gradient flows to it.
        target_entropy: in nats.

    Returns:
        float `[...]`.

    References:
        Haarnoja et al. (2018b), equation 18.
    """
    return -jnp.exp(log_temperature) * jax.lax.stop_gradient(log_prob + target_entropy)
