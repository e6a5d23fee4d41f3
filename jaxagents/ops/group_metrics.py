"""What tells whether groups of episodes have anything to compare."""

import jax.numpy as jnp

from jaxagents.ops.anchors import anchor_sizes
from jaxagents.ops.episodes import (
    acting_seats,
    difference_from_group,
    group_deviation,
    kept_rows,
    same_group,
    seat_returns,
)
from jaxagents.types import Episode, Mean, Metrics


def group_metrics(episode: Episode) -> Metrics:
    """Computes how much the episodes of a group differ and how often they meet.

    Args:
        episode: B episodes of T turns.

    Returns:
        `group_return_deviation`, the standard deviation of returns within a group, in games of those of every seat (it
        falls first when a policy collapses), and `repeated_state_rate`, the share of turns whose state another turn of
        the group acted in, too.

    References:
        Wang et al. (2025), "RAGEN: Understanding Self-Evolution in LLM Agents via Multi-Turn Reinforcement Learning"
        (the deviation).
        Feng et al. (2025), "Group-in-Group Policy Optimization for LLM Agent Training" (repeated states).
    """
    same, counted = same_group(episode), kept_rows(episode)[:, None] & acting_seats(episode)
    difference, _ = difference_from_group(seat_returns(episode), same)
    deviation = jnp.where(counted, group_deviation(difference, same), 0.0)
    size = anchor_sizes(episode)
    return {
        "group_return_deviation": Mean(total=jnp.sum(deviation), count=jnp.sum(counted, dtype=jnp.float32)),
        "repeated_state_rate": Mean(
            total=jnp.sum(size > 1, dtype=jnp.float32), count=jnp.sum(size > 0, dtype=jnp.float32)
        ),
    }
