"""Pairs of an expert's episodes and the policy's failures: what it could not do yet."""

import jax.numpy as jnp

from jaxagents.ops.pairs import expert_against_own
from jaxagents.types import Demonstrated, Pairs


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
