"""Which groups of episodes to learn from: `(episode, *, ...) -> bool [B]`, True = keep.

Put the result into `keep`; rows that an earlier filter dropped there count for nothing and stay dropped.
Groups lie on one device as a whole, and each device filters its own.
"""

import jax.numpy as jnp

from jaxagents.ops.episodes import (
    difference_from_group,
    episode_return,
    group_deviation,
    kept_rows,
    same_group,
)
from jaxagents.types import Array, Episode


def keep_all(episode: Episode) -> Array:
    """Keeps every group."""
    return kept_rows(episode)


def informative_groups(episode: Episode, *, tolerance: Array | float = 1e-6) -> Array:
    """Keeps groups whose returns are not all equal: the others have no group-relative advantage.

    Args:
        episode: B episodes.
        tolerance: returns closer than this to each other are equal; rounding errors of sums are below it.

    Returns:
        bool `[B]`.

    References:
        Yu et al. (2025), "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", eq. 11.

    Deviation: the paper samples until the batch is full of such groups; here the batch gets smaller.
    """
    returns, same = episode_return(episode), same_group(episode)
    largest = jnp.max(jnp.where(same, returns[None, :], -jnp.inf), axis=1)
    smallest = jnp.min(jnp.where(same, returns[None, :], jnp.inf), axis=1)
    return kept_rows(episode) & (largest - smallest > tolerance)


def top_variance(episode: Episode, *, fraction: Array | float = 0.25) -> Array:
    """Keeps the share of groups whose returns have the largest standard deviation, none whose returns are all equal.

    Args:
        episode: B episodes.
        fraction: of the groups, in (0, 1]; their number is rounded down, but at least 1. Ties go to the groups that
            come first.

    Returns:
        bool `[B]`.

    References:
        Wang et al. (2025), "RAGEN: Understanding Self-Evolution in LLM Agents via Multi-Turn Reinforcement Learning"
        (StarPO-S; 0.25).
    """
    kept, same = kept_rows(episode), same_group(episode)
    difference, _ = difference_from_group(episode_return(episode), same)
    # A group is spoken for by its first row.
    index = jnp.arange(same.shape[0])
    first = jnp.argmax(same, axis=1)
    deviation = group_deviation(difference, same)[first]
    speaks = kept & (first == index)
    ahead = (deviation[None, :] > deviation[:, None]) | (
        (deviation[None, :] == deviation[:, None]) & (index[None, :] < first[:, None])
    )
    rank = jnp.sum(speaks[None, :] & ahead, axis=1)
    allowed = jnp.floor(fraction * jnp.sum(speaks))
    return informative_groups(episode) & (rank < jnp.maximum(allowed, 1.0))
