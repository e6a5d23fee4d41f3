"""Sums over sequences of tokens: all that an agent says in an episode, in all of its turns."""

import jax
import jax.numpy as jnp

from jaxagents.types import Array, TokenView


def sum_of_sequences(view: TokenView, per_token: Array) -> Array:
    """Sums over the tokens of every sequence that count.

    Args:
        view: of rows that hold whole sequences.
        per_token: `[B, T, S]`.

    Returns:
        `[B, T, S]`, the sum of the sequence that the token belongs to.
    """
    counted = jnp.where(view.mask, per_token, 0.0)
    if view.num_sequences == 1:
        return jnp.broadcast_to(jnp.sum(counted, axis=(1, 2), keepdims=True), counted.shape)
    result = jnp.zeros_like(counted)
    for number in range(view.num_sequences):
        of_this = view.sequence == number
        total = jnp.sum(jnp.where(of_this, counted, 0.0), axis=(1, 2), keepdims=True)
        result = jnp.where(of_this, total, result)
    return result


def mean_log_ratio(view: TokenView, log_prob: Array) -> Array:
    """Computes the mean of `log_prob - behavior_log_prob` over the tokens of every sequence that count, `[B, T, S]`."""
    difference = jnp.where(view.mask, log_prob - view.behavior_log_prob, 0.0)
    count = sum_of_sequences(view, view.mask.astype(jnp.float32))
    return jax.lax.stop_gradient(sum_of_sequences(view, difference) / jnp.maximum(count, 1.0))
