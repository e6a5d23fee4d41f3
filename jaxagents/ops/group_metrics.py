"""Metrics of groups of episodes of the same task."""

import math

import jax.numpy as jnp

from jaxagents.ops.episodes import (
    acting_seats,
    difference_from_group,
    group_deviation,
    kept_rows,
    same_group,
    seat_returns,
)
from jaxagents.ops.gigpo import anchor_sizes
from jaxagents.types import Array, Episode, Mean


def group_metrics(episode: Episode) -> dict[str, Mean]:
    """Computes how much the episodes of a group differ and how often they reach the same states.

    Args:
        episode: B episodes of T turns.

    Returns:
        `group_return_deviation`, the standard deviation of returns within a group, in games for every seat (it falls
        first when a policy collapses), `equal_return_rate`, the share of episodes in groups where it is zero, from
        which group-relative credit learns nothing, and `repeated_state_rate`, the share of turns in a state in which
        another turn of the group acted, too.

    References:
        Wang et al. (2025), "RAGEN: Understanding Self-Evolution in LLM Agents via Multi-Turn Reinforcement Learning"
        (the deviation).
        Feng et al. (2025), "Group-in-Group Policy Optimization for LLM Agent Training" (repeated states).
    """
    same, counted = same_group(episode), kept_rows(episode)[:, None] & acting_seats(episode)
    difference, _ = difference_from_group(seat_returns(episode), same)
    deviation = jnp.where(counted, group_deviation(difference, same), 0.0)
    size = anchor_sizes(episode)
    num_counted = jnp.sum(counted, dtype=jnp.float32)
    return {
        "group_return_deviation": Mean(total=jnp.sum(deviation), count=num_counted),
        "equal_return_rate": Mean(total=jnp.sum(counted & (deviation <= 1e-6), dtype=jnp.float32), count=num_counted),
        "repeated_state_rate": Mean(
            total=jnp.sum(size > 1, dtype=jnp.float32), count=jnp.sum(size > 0, dtype=jnp.float32)
        ),
    }


def pass_at_k(num_correct: Array, *, num_samples: int, k: int) -> Array:
    """Computes an unbiased estimate of the probability that one of k samples succeeds, from c successes of n samples.

    `1 - C(n - c, k) / C(n, k)`.

    Args:
        num_correct: c, integers `[...]`.
        num_samples: n, number of samples.
        k: number from 1 to n.

    Returns:
        float32 `[...]`.

    Raises:
        ValueError: k is out of range.

    References:
        Chen et al. (2021), "Evaluating Large Language Models Trained on Code", eq. 1.

    Examples:
        >>> import jax.numpy as jnp
        >>> pass_at_k(jnp.array([0, 1, 4]), num_samples=4, k=2).tolist()
        [0.0, 0.5, 1.0]
    """
    if not 1 <= k <= num_samples:
        raise ValueError(f"`k` must be from 1 to the {num_samples} samples of a task, got {k}.")
    # Every possible number of successes.
    table = [1.0 - math.comb(num_samples - c, k) / math.comb(num_samples, k) for c in range(num_samples + 1)]
    return jnp.asarray(table, jnp.float32)[num_correct]


def majority_success(answer: Array, votes: Array, success: Array) -> Array:
    """Computes whether the most frequent answer of each group is right; for ties, the mean over the tied answers.

    Args:
        answer: integers `[n, G, A]`, G answers to each of n tasks, equal if all A entries are.
        votes: bool `[n, G]`, whether there is an answer.
        success: bool or float32 `[n, G]`, whether it is right.

    Returns:
        float32 `[n]`, zero if there are no votes.

    References:
        Wang et al. (2023), "Self-Consistency Improves Chain of Thought Reasoning in Language Models".
    """
    same = jnp.all(answer[:, :, None] == answer[:, None, :], axis=-1) & votes[:, None, :]
    count = jnp.where(votes, jnp.sum(same, axis=2), 0)
    wins = votes & (count == jnp.max(count, axis=1, keepdims=True))
    return jnp.sum(wins * success, axis=1) / jnp.maximum(jnp.sum(wins, axis=1), 1)


def distinct_successes(history: Array, valid: Array, success: Array) -> Array:
    """Counts the different ways in which the episodes of each group succeed.

    Two episodes went the same way if they have the same length and acted in the same states, in whatever words.

    Args:
        history: integers `[n, G, T]`, fingerprints of the states in which G episodes of each of n tasks acted.
        valid: bool `[n, G, T]`, the turns that took place.
        success: bool `[n, G]`.

    Returns:
        float32 `[n]`, at most G.
    """
    seen = jnp.where(valid, history, 0)
    same = jnp.all((seen[:, :, None] == seen[:, None]) & (valid[:, :, None] == valid[:, None]), axis=-1)
    earlier = jnp.tril(jnp.ones(success.shape[1:] * 2, bool), -1)
    again = jnp.any(same & earlier[None] & success[:, None, :], axis=2)
    return jnp.sum(success & ~again, axis=1, dtype=jnp.float32)
