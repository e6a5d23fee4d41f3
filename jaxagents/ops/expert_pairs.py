"""Pairs of an expert's episodes and the policy's failures, to learn what the policy cannot do yet."""

import jax.numpy as jnp

from jaxagents.ops.checks import within_groups
from jaxagents.ops.episodes import episode_return, same_group
from jaxagents.ops.pairs import expert_against_own
from jaxagents.types import Array, Demonstrated, Episode, Pairs


def expert_against_failures(batch: Demonstrated) -> Pairs:
    """Prefers the expert's episode of a task to the policy's failed episodes of it.

    Args:
        batch: n tasks with G episodes of the policy each.

    Returns:
        `n + n G` rows, the demonstrations first. The policy's successes have no pair, and are desirable. If the expert
        failed as well, its episode is not preferred to anything.

    References:
        Song et al. (2024), "Trial and Error: Exploration-Based Trajectory Optimization for LLM Agents" (ETO), section
        3.2: pairs of a failure and the expert's trajectory, where the reward of the latter is larger.
    """
    pairs = expert_against_own(batch)
    success = pairs.episode.success
    better = success[pairs.pair] & ~success  # Rows without a pair have the index of the last row.
    return pairs.replace(pair=jnp.where(better, pairs.pair, -1), desirable=success)


@within_groups
def agreeing_steps(episode: Episode, *, threshold: Array | float = 0.01) -> Pairs:
    """Prefers successes to failures that continued from the same state, if the scores of their first steps agree.

    Args:
        episode: rows that continue from the same state in groups, see `language.ipr`. For those that continue from the
            beginning, only the outcome decides.
        threshold: difference by which the score of the preferred step must be higher.

    Returns:
        At most one pair per failure: with the success of its group whose step has the highest score, the first of equal
            ones, regardless of who played it. Successes are desirable.

    References:
        Xiong et al. (2024), "Watch Every Step! LLM Agent Learning via Iterative Step-Level Process Refinement" (IPR),
        section 3.3.
    """
    score, same = episode_return(episode), same_group(episode)[:, :, 0]
    wins = same & episode.success[None, :]
    best = jnp.argmax(jnp.where(wins, score[None, :], -jnp.inf), axis=1).astype(jnp.int32)
    whole = jnp.any(episode.action_mask[:, 0], axis=1)
    agrees = whole | (score[best] - score > threshold)
    counted = jnp.diagonal(same)
    compared = counted & ~episode.success & jnp.any(wins, axis=1) & agrees
    return Pairs(episode=episode, pair=jnp.where(compared, best, -1), desirable=counted & episode.success)
