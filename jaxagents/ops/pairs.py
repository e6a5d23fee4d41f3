"""Preferences between episodes: `(batch) -> Pairs`, what preference learning needs from a batch."""

import jax
import jax.numpy as jnp

from jaxagents.ops.checks import within_groups
from jaxagents.ops.episodes import (
    acting_seats,
    difference_from_group,
    episode_return,
    kept_rows,
    same_group,
    seat_returns,
)
from jaxagents.ops.seats import num_seats
from jaxagents.types import Array, Demonstrated, Episode, Pairs


def expert_against_own(batch: Demonstrated) -> Pairs:
    """Prefers the expert's episode of a task to all of the policy's episodes.

    Args:
        batch: n tasks with G episodes of the policy each.

    Returns:
        `n + n G` rows, the demonstrations first; the same rows on every device.
    """
    num_expert, num_own = batch.demonstration.success.shape[0], batch.own.success.shape[0]
    expert = jnp.repeat(jnp.arange(num_expert, dtype=jnp.int32), num_own // num_expert)
    both = [episode.replace(bootstrap_value=None) for episode in (batch.demonstration, batch.own)]
    return Pairs(
        episode=jax.tree.map(lambda one, other: jnp.concatenate([one, other]), *both),
        pair=jnp.concatenate([jnp.full(num_expert, -1, jnp.int32), expert]),
        desirable=jnp.arange(num_expert + num_own) < num_expert,
    )


@within_groups
def best_against_worst(episode: Episode, *, tolerance: Array | float = 1e-6) -> Pairs:
    """Prefers the episode with the largest return of a group to that with the smallest; the first ones of equals.

    Args:
        episode: B episodes in groups of the same task; in games, every one of the P seats is a separate row.
        tolerance: difference of the returns below which a group gives no pair.

    Returns:
        P B rows, those of the first seat first, with at most one pair per group and seat; rows above the mean of their
        group are desirable.
    """
    rows, returns, same = _rows_of_seats(episode)
    best = jnp.argmax(jnp.where(same, returns[None, :], -jnp.inf), axis=1).astype(jnp.int32)
    worst = jnp.argmin(jnp.where(same, returns[None, :], jnp.inf), axis=1)
    apart = returns[best] - returns[worst] > tolerance
    compared = apart & (worst == jnp.arange(returns.shape[0]))
    difference, _ = difference_from_group(returns[:, None], same[:, :, None])
    return Pairs(episode=rows, pair=jnp.where(compared, best, -1), desirable=difference[:, 0] > tolerance)


@within_groups
def best_against_others(episode: Episode, *, tolerance: Array | float = 1e-6) -> Pairs:
    """Prefers the row with the largest return of a group to each other row; the first one of equals.

    Args:
        episode: B episodes in groups of the same task, or turns in groups of the same state (`language.stepwise`); in
            games, every one of the P seats is a separate row.
        tolerance: difference below which a row is not compared with the best one, but is desirable, too.

    Returns:
        P B rows, those of the first seat first.

    References:
        Li et al. (2025), "Iterative Tool Usage Exploration for Multimodal Agents via Step-wise Preference Tuning"
        (SPORT), section 4.3.

    Deviation: the paper's verifier names one best candidate; here, candidates with the same score are not compared.
    """
    rows, returns, same = _rows_of_seats(episode)
    best = jnp.argmax(jnp.where(same, returns[None, :], -jnp.inf), axis=1).astype(jnp.int32)
    counted = jnp.diagonal(same)
    behind = returns[best] - returns > tolerance
    return Pairs(episode=rows, pair=jnp.where(counted & behind, best, -1), desirable=counted & ~behind)


@within_groups
def success_against_failure(episode: Episode) -> Pairs:
    """Prefers successes to failures of the same group: the k-th failure is paired with the k-th success, in rotation.

    Args:
        episode: B episodes in groups of the same task; in games, every one of the P seats is a separate row, which
            succeeds if its return is positive.

    Returns:
        P B rows, those of the first seat first; successes are desirable, and failures in groups without a success have
        no pair.
    """
    rows, _, same = _rows_of_seats(episode)
    success, index = rows.success, jnp.arange(rows.success.shape[0])
    wins = same & success[None, :]
    num_wins = jnp.sum(wins, axis=1)
    failures_before = jnp.sum(same & ~success[None, :] & (index[None, :] < index[:, None]), axis=1)
    # The success with as many successes of its group before it as the rotation requires.
    wanted = failures_before % jnp.maximum(num_wins, 1)
    chosen = jnp.argmax(wins & (jnp.cumsum(wins, axis=1) - 1 == wanted[:, None]), axis=1).astype(jnp.int32)
    compared = ~success & (num_wins > 0) & jnp.diagonal(same)
    return Pairs(episode=rows, pair=jnp.where(compared, chosen, -1), desirable=success)


def _rows_of_seats(episode: Episode) -> tuple[Episode, Array, Array]:
    """Makes a separate row for every seat, in which only the seat's own tokens count as sampled.

    Args:
        episode: B episodes of P seats.

    Returns:
        `P B` rows; their returns, float32; and which rows each is compared with, bool `[P B, P B]`: rows of the same
        group and seat that are kept and in which the policy played the seat.
    """
    seats, num_rows = num_seats(episode), episode.success.shape[0]
    if seats == 1:
        return episode, episode_return(episode), same_group(episode)[:, :, 0]
    rows = jax.tree.map(lambda leaf: jnp.concatenate([leaf] * seats), episode)
    seat, returns = jnp.repeat(jnp.arange(seats), num_rows), seat_returns(episode).T.reshape(-1)
    same = (rows.group[:, None] == rows.group[None, :]) & (seat[:, None] == seat[None, :])
    counted = kept_rows(rows) & acting_seats(episode).T.reshape(-1)
    own = rows.action_mask & (rows.agent == seat[:, None, None])
    return rows.replace(action_mask=own, success=returns > 0.0), returns, same & counted[None, :]
