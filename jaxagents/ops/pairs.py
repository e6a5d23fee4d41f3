"""Which episodes are preferred to which: `(batch) -> Pairs`, what preference learning asks of a batch."""

import jax
import jax.numpy as jnp

from jaxagents.ops.episodes import difference_from_group, episode_return, same_group
from jaxagents.ops.seats import num_seats
from jaxagents.types import Array, Demonstrated, Episode, Pairs


def expert_against_own(batch: Demonstrated) -> Pairs:
    """Prefers the expert's episode of a task to all of the policy's own.

    Args:
        batch: n tasks with G own episodes each.

    Returns:
        `n + n G` rows, the demonstrations first; the same rows on every device.
    """
    num_shown, num_own = batch.demonstration.success.shape[0], batch.own.success.shape[0]
    shown = jnp.repeat(jnp.arange(num_shown, dtype=jnp.int32), num_own // num_shown)
    both = [episode.replace(bootstrap_value=None) for episode in (batch.demonstration, batch.own)]
    return Pairs(
        episode=jax.tree.map(lambda one, other: jnp.concatenate([one, other]), *both),
        pair=jnp.concatenate([jnp.full(num_shown, -1, jnp.int32), shown]),
        desirable=jnp.arange(num_shown + num_own) < num_shown,
    )


def best_against_worst(episode: Episode, *, tolerance: Array | float = 1e-6) -> Pairs:
    """Prefers the episode of the largest return of a group to that of the smallest; the first ones of equals.

    Args:
        episode: B episodes of one seat in groups of the same task.
        tolerance: groups whose returns are closer than this to each other give no pair.

    Returns:
        B rows, a pair per group at most; those above the mean of their group are desirable.

    Raises:
        ValueError: the episodes are of several seats, whose returns must not be added up.
    """
    _require_one_seat(episode)
    returns, same = episode_return(episode), same_group(episode)[:, :, 0]
    best = jnp.argmax(jnp.where(same, returns[None, :], -jnp.inf), axis=1).astype(jnp.int32)
    worst = jnp.argmin(jnp.where(same, returns[None, :], jnp.inf), axis=1)
    apart = returns[best] - returns[worst] > tolerance
    compared = apart & (worst == jnp.arange(returns.shape[0]))
    difference, _ = difference_from_group(returns[:, None], same[:, :, None])
    return Pairs(episode=episode, pair=jnp.where(compared, best, -1), desirable=difference[:, 0] > tolerance)


def success_against_failure(episode: Episode) -> Pairs:
    """Prefers successes to failures of the same group: the k-th failure is compared to the k-th success, in rotation.

    Args:
        episode: B episodes of one seat in groups of the same task.

    Returns:
        B rows; successes are desirable, and failures of groups without success have no pair.

    Raises:
        ValueError: the episodes are of several seats, who do not succeed together.
    """
    _require_one_seat(episode)
    same, success = same_group(episode)[:, :, 0], episode.success
    index = jnp.arange(success.shape[0])
    wins = same & success[None, :]
    num_wins = jnp.sum(wins, axis=1)
    failures_before = jnp.sum(same & ~success[None, :] & (index[None, :] < index[:, None]), axis=1)
    # The success of a group that has as many successes before it as the rotation asks for.
    wanted = failures_before % jnp.maximum(num_wins, 1)
    chosen = jnp.argmax(wins & (jnp.cumsum(wins, axis=1) - 1 == wanted[:, None]), axis=1).astype(jnp.int32)
    return Pairs(episode=episode, pair=jnp.where(~success & (num_wins > 0), chosen, -1), desirable=success)


def _require_one_seat(episode: Episode) -> None:
    if num_seats(episode) > 1:
        raise ValueError(
            f"`pairs` must be of episodes of one seat, got {num_seats(episode)} seats; "
            "try a world for one, or a game against an opponent of its own."
        )
