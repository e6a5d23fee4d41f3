"""Pairs of an expert's episodes and the policy's failures: what it could not do yet."""

import jax.numpy as jnp

from jaxagents.ops.checks import within_groups
from jaxagents.ops.episodes import episode_return, same_group
from jaxagents.ops.pairs import expert_against_own
from jaxagents.types import Array, Demonstrated, Episode, Pairs


def expert_against_failures(batch: Demonstrated) -> Pairs:
    """Prefers the expert's episode of a task to those of the policy that failed.

    Args:
        batch: n tasks with G own episodes each.

    Returns:
        `n + n G` rows, the demonstrations first. Own successes have no pair, and are desirable. An expert that failed,
        too, is preferred to nothing.

    References:
        Song et al. (2024), "Trial and Error: Exploration-Based Trajectory Optimization for LLM Agents" (ETO), section
        3.2: pairs of a failure and the expert's trajectory, where the reward of the latter is larger.
    """
    pairs = expert_against_own(batch)
    success = pairs.episode.success
    better = success[pairs.pair] & ~success  # Where there is no pair the index is that of the last row.
    return pairs.replace(pair=jnp.where(better, pairs.pair, -1), desirable=success)


@within_groups
def agreeing_steps(episode: Episode, *, threshold: Array | float = 0.01) -> Pairs:
    """Prefers successes to failures that went on from the same state, where the scores of their first steps agree.

    Args:
        episode: rows that go on from the same state in groups, see `language.ipr`. Of those that go on from the
            beginning the outcome alone decides.
        threshold: by which the score of the preferred step must be higher.

    Returns:
        A pair per failure at most: with the success of its group whose step has the highest score, the first of equals,
        whoever it is of. Successes are desirable.

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
