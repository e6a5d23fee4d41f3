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
    """Computes generalised advantage estimates with truncation told apart from termination.

    `delta_t = r_t + discount_t (1 - terminated_t) V(s'_t) - V(s_t)`,
    `A_t = delta_t + discount_t trace_decay (1 - ended_t) A_{t+1}`, where `ended = terminated or truncated` and `s'_t`
    is the true successor. The trace is cut where an episode ends; only termination removes the bootstrap.

    Args:
        reward: `[T, ...]`.
        value: `V(s_t)`, `[T, ...]`.
        next_value: `V(s'_t)` of the true successors, `[T, ...]`.
        terminated: bool `[T, ...]`.
        truncated: bool `[T, ...]`.
        discount: scalar or `[T, ...]`; a negative one turns the successor's value into that of the opponent to move
            (zero-sum games with alternating turns).
        trace_decay: scalar, the lambda of the paper, in [0, 1].

    Returns:
        Advantages, `[T, ...]`; `advantage + value` is the lambda-return.

    References:
        Schulman et al. (2016), "High-Dimensional Continuous Control Using Generalized Advantage Estimation", eq. 16.
    """
    delta = reward + discount * jnp.where(terminated, 0.0, next_value) - value
    decay = jnp.where(terminated | truncated, 0.0, discount * trace_decay)

    def step(advantage: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        delta_t, decay_t = inputs
        advantage = delta_t + decay_t * advantage
        return advantage, advantage

    _, advantage = jax.lax.scan(step, jnp.zeros_like(delta[0]), (delta, decay), reverse=True, unroll=16)
    return advantage


def normalize_advantage(
    advantage: Array, mask: Array | None = None, *, epsilon: float = 1e-8, axis_name: str | None = None
) -> Array:
    """Computes `(A - mean) / (std + epsilon)` over all elements, those of other devices included.

    Args:
        advantage: any shape.
        mask: bool, same shape, True = counts; None counts all. Masked-out elements return 0.
        epsilon: keeps equal advantages at zero.
        axis_name: mapped device axis to reduce over.

    Returns:
        Normalised advantages, same shape.
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
