"""Rewards for the format of actions: `(view, *, axis_name, ...) -> reward [B, T]`."""

import jax.numpy as jnp

from jaxagents.ops.episodes import require_one_seat
from jaxagents.types import Array, EpisodeView


def mean_format(view: EpisodeView, *, axis_name: str | None = None, coefficient: Array | float = 1.0) -> Array:
    """Adds `coefficient mean_t (1 if the action of turn t was understood and allowed, else -1)` to the last turn.

    Args:
        view: view of B episodes of T turns.
        axis_name: not used.
        coefficient: coefficient, in units of the reward.

    Returns:
        The rewards.

    Raises:
        ValueError: the episodes are of a game with several seats.

    References:
        Gu et al. (2025), "Mobile-R1: Towards Interactive Reinforcement Learning for VLM-Based Mobile Agent via
        Task-Level Rewards", section 3.3.
    """
    episode = view.episode
    require_one_seat(episode, "mean_format")
    turns = jnp.arange(episode.reward.shape[1])[None]
    is_last = episode.valid & (turns == jnp.max(jnp.where(episode.valid, turns, -1), axis=1, keepdims=True))
    signs = jnp.where(episode.valid, jnp.where(episode.action_valid, 1.0, -1.0), 0.0)
    mean = jnp.sum(signs, axis=1, keepdims=True) / jnp.maximum(jnp.sum(episode.valid, axis=1, keepdims=True), 1)
    return episode.reward + jnp.where(is_last, coefficient * mean, 0.0)
