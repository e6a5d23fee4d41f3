"""Advantage estimation over time-first arrays."""

import jax
import jax.numpy as jnp

from jaxagents.types import Array


def generalized_advantage(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    *,
    discount: Array | float,
    trace_decay: Array | float,
) -> Array:
    """Computes generalised advantage estimates that distinguish truncation from termination.

    `delta_t = r_t + discount_t (1 - terminated_t) V(s'_t) - V(s_t)`,
    `A_t = delta_t + discount_t trace_decay (1 - ended_t) A_{t+1}`, where `ended = terminated or truncated` and `s'_t`
    is the true successor. The trace is cut where an episode ends; only termination removes the bootstrap.

    Args:
        reward: `[T, ...]`.
        value: `V(s_t)`, `[T, ...]`.
        next_value: `V(s'_t)` of the true successors, `[T, ...]`.
        terminated: bool `[T, ...]`.
        truncated: bool `[T, ...]`.
        discount: scalar or `[T, ...]`; if negative, the successor's value is that of the opponent, who moves next
            (zero-sum games with alternating turns).
        trace_decay: scalar, the lambda of the paper, in [0, 1].

    Returns:
        Advantages, `[T, ...]`; `advantage + value` is the lambda-return.

    References:
        Schulman et al. (2016), "High-Dimensional Continuous Control Using Generalized Advantage Estimation", eq. 16.

    Examples:
        >>> import jax.numpy as jnp
        >>> reward, value, end = jnp.array([0.0, 1.0]), jnp.array([0.5, 0.5]), jnp.array([False, True])
        >>> next_value = jnp.array([0.5, 9.0])  # The last state is terminal: its value does not count.
        >>> generalized_advantage(reward, value, next_value, end, ~end & False, discount=1.0, trace_decay=0.5).tolist()
        [0.25, 0.5]
    """
    delta = reward + discount * jnp.where(terminated, 0.0, next_value) - value
    decay = jnp.where(terminated | truncated, 0.0, discount * trace_decay)

    def step(advantage: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        delta_t, decay_t = inputs
        advantage = delta_t + decay_t * advantage
        return advantage, advantage

    _, advantage = jax.lax.scan(step, jnp.zeros_like(delta[0]), (delta, decay), reverse=True, unroll=16)
    return advantage


def vtrace(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    ratio: Array,
    *,
    discount: Array | float,
    trace_decay: Array | float,
    clip_ratio: Array | float = 1.0,
    clip_advantage_ratio: Array | float | None = 1.0,
) -> tuple[Array, Array]:
    """Computes V-trace: advantages and values of a policy from steps of another policy.

    With `rho_t = min(clip_ratio, ratio_t)` and `c_t = trace_decay min(1, ratio_t)`, the error of a value is
    `e_t = rho_t (r_t + discount_t V(s'_t) - V(s_t)) + discount_t c_t e_{t+1}` within an episode, and its target
    `v_t = V(s_t) + e_t`. The advantage is
    `min(clip_advantage_ratio, ratio_t) (r_t + discount_t ((1 - trace_decay) V(s'_t) + trace_decay v_{t+1}) - V(s_t))`,
    where `v_{t+1} = V(s'_t)` at truncations, and at the end of the sequence.

    Args:
        reward: `[T, ...]`.
        value: `V(s_t)`, `[T, ...]`.
        next_value: `V(s'_t)` of the true successors, `[T, ...]`.
        terminated: bool `[T, ...]`.
        truncated: bool `[T, ...]`.
        ratio: `[T, ...]`, probability of the action under the policy to be evaluated, divided by that under the acting
            policy.
        discount: scalar or `[T, ...]`; negative if the opponent values the successor.
        trace_decay: scalar in [0, 1]; 1 in the paper.
        clip_ratio: rho-bar, positive; determines the policy whose values are estimated.
        clip_advantage_ratio: largest ratio in the policy gradient, positive; None for losses that multiply by the ratio
            themselves.

    Returns:
        Advantages and value targets, each `[T, ...]`, without gradient.

    References:
        Espeholt et al. (2018), "IMPALA", equation 1, remark 1 and section 4.2.
    """
    discount = jnp.where(terminated, 0.0, discount)
    ended = terminated | truncated
    errors = jnp.minimum(clip_ratio, ratio) * (reward + discount * next_value - value)
    decay = jnp.where(ended, 0.0, discount * trace_decay * jnp.minimum(1.0, ratio))

    def step(error: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        own, decay_t = inputs
        error = own + decay_t * error
        return error, error

    _, errors = jax.lax.scan(step, jnp.zeros_like(errors[0]), (errors, decay), reverse=True, unroll=16)
    target = value + errors
    # The correction of the successor's value, which is unknown at ends.
    following = jnp.concatenate([errors[1:] + value[1:] - next_value[:-1], jnp.zeros_like(errors[:1])])
    successor = next_value + jnp.where(ended, 0.0, trace_decay * following)
    advantage = reward + discount * successor - value
    if clip_advantage_ratio is not None:
        advantage = jnp.minimum(clip_advantage_ratio, ratio) * advantage
    return jax.lax.stop_gradient((advantage, target))


def normalize_advantage(
    advantage: Array, mask: Array | None = None, *, epsilon: float = 1e-8, axis_name: str | None = None
) -> Array:
    """Computes `(A - mean) / (std + epsilon)` over all elements, including those on other devices.

    Args:
        advantage: any shape.
        mask: bool, same shape, True for elements that count; None: all. Masked-out elements become 0.
        epsilon: small positive number, with which equal advantages become zero.
        axis_name: mapped device axis to reduce over.

    Returns:
        Normalised advantages, same shape.

    Examples:
        >>> import jax.numpy as jnp
        >>> normalize_advantage(jnp.array([1.0, 3.0, 7.0]), jnp.array([True, True, False])).tolist()
        [-1.0, 1.0, 0.0]
    """
    weight = jnp.ones_like(advantage) if mask is None else mask.astype(advantage.dtype)
    count, total = jnp.sum(weight), jnp.sum(weight * advantage)
    if axis_name is not None:
        count, total = jax.lax.psum((count, total), axis_name)
    mean = total / jnp.maximum(count, 1.0)
    centred = weight * (advantage - mean)
    square = jnp.sum(jnp.square(centred))
    if axis_name is not None:
        square = jax.lax.psum(square, axis_name)
    return centred / (jnp.sqrt(square / jnp.maximum(count, 1.0)) + epsilon)
