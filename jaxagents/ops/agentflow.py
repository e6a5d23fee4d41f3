"""AgentFlow (Li et al., 2025): credit as in the released code, which compares turns instead of episodes."""

import jax.numpy as jnp

from jaxagents.ops.checks import within_groups
from jaxagents.ops.credit import Credit, to_tokens
from jaxagents.ops.episodes import (
    acting_turns,
    episode_return,
    kept_rows,
    require_one_seat,
    same_group,
    to_tokens_of_turn,
)
from jaxagents.types import Array, EpisodeView


@within_groups
def grpo_over_turns(
    view: EpisodeView, *, axis_name: str | None = None, discount: Array | float = 1.0, epsilon: Array | float = 1e-6
) -> Credit:
    """Computes `(R_i - mean) / (std + epsilon)` over the turns of the group's episodes, for all turns of episode i.

    A turn is a separate row with the return of its episode, so that `mean = sum_j T_j R_j / sum_j T_j`, with T_j the
    number of turns in which the policy acted, and the standard deviation is that of a sample of `sum_j T_j`.

    Args:
        view: view of B episodes of T turns.
        axis_name: not used; groups lie on one device.
        discount: per turn, in [0, 1].
        epsilon: number added to the standard deviation, in units of the reward.

    Returns:
        The credit, without targets; zero in groups whose returns are equal.

    Raises:
        ValueError: the episodes are of a game with several seats.

    References:
        Li et al. (2025), "In-the-Flow Agentic System Optimization for Effective Planning and Tool Use";
        lupantech/AgentFlow@b940064, agentflow/verl/daemon.py:656-694 and agentflow/verl/trainer.py:208, 273-281.

    Deviation: the credit is zero in groups of one turn, where verl uses the return itself.
    """
    episode = view.episode
    require_one_seat(episode, "a mean over turns")
    returns = episode_return(episode, discount)
    turns = jnp.sum(acting_turns(episode) & kept_rows(episode)[:, None], axis=1, dtype=jnp.float32)
    weight = jnp.where(same_group(episode)[:, :, 0], turns[None], 0.0)
    count = jnp.sum(weight, axis=1)
    difference = jnp.sum(weight * (returns[:, None] - returns[None]), axis=1) / jnp.maximum(count, 1.0)
    variance = jnp.sum(weight * jnp.square(difference)[None], axis=1) / jnp.maximum(count - 1.0, 1.0)
    advantage = difference / (jnp.sqrt(variance) + epsilon)
    spread = jnp.broadcast_to(advantage[:, None], episode.reward.shape)
    return Credit(advantage=to_tokens(episode, to_tokens_of_turn(spread, episode)))
