"""Choices of groups of episodes to learn from: `(view, *, axis_name, ...) -> bool [B]`, True = keep.

Rows that an earlier filter dropped (`keep`) are not counted and stay dropped. All rows of a group are on the same
device; which groups are kept does not depend on the number of devices over which the batch is spread. In games, every
seat is compared with the same seat of the group's other episodes.
"""

import jax.numpy as jnp

from jaxagents.ops.episodes import difference_from_group, group_deviation, kept_rows, same_group, seat_returns
from jaxagents.ops.rows import first_row, rows_of_all_devices
from jaxagents.types import Array, EpisodeView


def informative_groups(view: EpisodeView, *, axis_name: str | None = None, tolerance: Array | float = 1e-6) -> Array:
    """Keeps groups in which the returns of some seat differ: others have no group-relative advantage.

    Args:
        view: view of B episodes.
        axis_name: not used; whether a group is informative depends on its own rows only.
        tolerance: difference up to which returns count as equal; it exceeds rounding errors of sums.

    Returns:
        bool `[B]`.

    References:
        Yu et al. (2025), "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", eq. 11.

    Deviation: the paper samples until the batch is full of such groups; here, the batch becomes smaller.
    """
    returns, same = seat_returns(view.episode)[None], same_group(view.episode)
    largest = jnp.max(jnp.where(same, returns, -jnp.inf), axis=1)
    smallest = jnp.min(jnp.where(same, returns, jnp.inf), axis=1)
    return kept_rows(view.episode) & jnp.any(largest - smallest > tolerance, axis=1)


def top_variance(view: EpisodeView, *, axis_name: str | None = None, fraction: Array | float = 0.25) -> Array:
    """Keeps the groups whose returns have the largest standard deviation, and none whose returns are all equal.

    Args:
        view: view of B episodes; in games, the deviation is the mean over the seats.
        axis_name: mapped device axis, over whose groups the fraction is taken.
        fraction: fraction of the groups that are kept, in (0, 1]; their number is rounded down, but at least 1. The
            first ones are kept if deviations are equal.

    Returns:
        bool `[B]`.

    References:
        Wang et al. (2025), "RAGEN: Understanding Self-Evolution in LLM Agents via Multi-Turn Reinforcement Learning"
        (StarPO-S; 0.25).
    """
    kept, same = kept_rows(view.episode), same_group(view.episode)
    difference, _ = difference_from_group(seat_returns(view.episode), same)
    # A group is represented by its first row.
    group, index = jnp.any(same, axis=2), jnp.arange(same.shape[0])
    first = jnp.argmax(group, axis=1)
    deviation = jnp.mean(group_deviation(difference, same), axis=1)[first]
    place = first + first_row(index.shape[0], axis_name)
    speaks, other, before = rows_of_all_devices((kept & (first == index), deviation, place), axis_name)
    ahead = (other[None, :] > deviation[:, None]) | (
        (other[None, :] == deviation[:, None]) & (before[None, :] < place[:, None])
    )
    rank = jnp.sum(speaks[None, :] & ahead, axis=1)
    allowed = jnp.floor(fraction * jnp.sum(speaks))
    return informative_groups(view) & (rank < jnp.maximum(allowed, 1.0))
