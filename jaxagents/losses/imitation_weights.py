"""Weights of imitation by the outcome of an episode, for the slot `aggregation` of supervised learners.

RISE (Qu et al., 2024) weights attempts by the exponential of their reward; A3T (Yang et al., 2024) subtracts failures.
"""

import jax.numpy as jnp

from jaxagents.losses.aggregation import sequence_mean, token_mean
from jaxagents.types import Array, TokenView


def reward_weighted(
    view: TokenView,
    *,
    axis_name: str | None = None,
    temperature: Array | float = 0.4,
    last_turn: bool = False,
    each_turn: bool = False,
) -> Array:
    """Computes `exp(r / temperature) / n` over the n episodes, with r = 1 for a success and 0 for a failure.

    Args:
        view: view of B episodes.
        axis_name: mapped device axis.
        temperature: positive number; with 0.4, a success has 12 times the weight of a failure.
        last_turn: whether to learn only the last turn, which is the attempt that was rewarded.
        each_turn: whether every turn is a separate attempt, n in total, with r = 1 in the last turn of a success.

    Returns:
        float32 `[B, T, S]`; tokens of an episode, or of an attempt, share its weight.

    References:
        Qu et al. (2024), "Recursive Introspection: Teaching Language Model Agents How to Self-Improve" (RISE), eq. 4;
        cmu-mind/RISE@4a2806e, workflow_convert.py:94-146 (`each_turn`).
    """
    last = jnp.max(jnp.where(view.mask, view.turn, -1), axis=(1, 2), keepdims=True)
    right = view.success
    if last_turn:
        view = view.replace(mask=view.mask & (view.turn == last))
    if each_turn:
        view, right = view.replace(sequence=view.turn, num_sequences=view.mask.shape[1]), right & (view.turn == last)
    return jnp.exp(right / temperature) * sequence_mean(view, axis_name=axis_name)


def contrastive(
    view: TokenView,
    *,
    axis_name: str | None = None,
    group_size: int,
    failure: Array | float = -1.0,
) -> Array:
    """Computes `R / (K + 1) / n / l` for all tokens of an episode: R = 1 for the K successes of one of n groups.

    The group's failures share `R_f = failure` among them; groups without a success do not count. Log-probabilities of
    episodes are sums over their tokens; l is the mean number of tokens of an episode.

    Args:
        view: view of B episodes in groups of the same task.
        axis_name: mapped device axis.
        group_size: number of episodes in a group.
        failure: R_f; 0 gives rejection sampling.

    Returns:
        float32 `[B, T, S]`.

    References:
        Yang et al. (2024), "ReAct Meets ActRe: When Language Agents Enjoy Training Data Autonomy" (A3T), eq. 3 to 5.
    """
    num_successes = view.group_success * group_size
    num_failures = jnp.maximum(group_size - num_successes, 1.0)
    of_episode = jnp.where(view.success, 1.0, failure / num_failures) / (num_successes + 1.0)
    return of_episode * (num_successes > 0.0) * group_size * token_mean(view, axis_name=axis_name)
