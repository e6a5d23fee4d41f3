"""Rewards that shorten thoughts without making answers wrong: `(view, *, axis_name, ...) -> reward [B, T]`."""

import jax.numpy as jnp

from jaxagents.ops.episodes import kept_rows, require_one_seat
from jaxagents.types import Array, Episode, EpisodeView


def cosine_length(
    view: EpisodeView,
    *,
    axis_name: str | None = None,
    max_tokens: Array | float,
    right: Array | float = 1.0,
    right_long: Array | float = 0.1,
    wrong: Array | float = -1.0,
    wrong_long: Array | float = -0.1,
) -> Array:
    """Replaces an episode's rewards by one that decreases with length for successes, and increases for failures.

    With L sampled tokens and `c = (1 + cos(pi min(L / max_tokens, 1))) / 2`, it is `right_long + (right - right_long)
    c` for a success and `wrong_long + (wrong - wrong_long) c` for a failure, given in the last turn.

    Args:
        view: view of B episodes of T turns.
        axis_name: not used.
        max_tokens: length of the longest answer.
        right: reward for a success without tokens.
        right_long: reward for a success of the greatest length.
        wrong: reward for a failure without tokens.
        wrong_long: reward for a failure of the greatest length; higher than `wrong`, to make hard tasks worth thinking
            about.

    Returns:
        The rewards.

    Raises:
        ValueError: the episodes are of a game with several seats.

    References:
        Yeo et al. (2025), "Demystifying Long Chain-of-Thought Reasoning in LLMs", section 4.2.
    """
    episode = view.episode
    require_one_seat(episode, "cosine_length")
    near = 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.minimum(_length(episode) / max_tokens, 1.0)))
    worth = jnp.where(
        episode.success, right_long + (right - right_long) * near, wrong_long + (wrong - wrong_long) * near
    )
    return jnp.where(_last_turn(episode), worth[:, None], jnp.where(episode.valid, 0.0, episode.reward))


def group_length(view: EpisodeView, *, axis_name: str | None = None, coefficient: Array | float = 1.0) -> Array:
    """Adds `coefficient lambda` for a success and `coefficient min(0, lambda)` for a failure to the last turn's reward.

    `lambda = 0.5 - (L - min L) / (max L - min L)` over the lengths in the group, 0 if all are equal: the shortest
    answer to a task gets 0.5, the longest one -0.5, and a short wrong answer gets no bonus.

    Args:
        view: view of B episodes of T turns in groups of the same task.
        axis_name: not used; groups lie on one device as a whole.
        coefficient: non-negative weight, in units of the reward.

    Returns:
        The rewards.

    Raises:
        ValueError: the episodes are of a game with several seats.

    References:
        Kimi Team (2025), "Kimi k1.5: Scaling Reinforcement Learning with LLMs", section 2.3.3.
    """
    episode = view.episode
    require_one_seat(episode, "group_length")
    length = _length(episode)
    same = (episode.group[:, None] == episode.group[None, :]) & kept_rows(episode)[None, :]
    shortest = jnp.min(jnp.where(same, length[None, :], jnp.inf), axis=1)
    longest = jnp.max(jnp.where(same, length[None, :], -jnp.inf), axis=1)
    differ = longest > shortest
    share = jnp.where(differ, 0.5 - (length - shortest) / jnp.where(differ, longest - shortest, 1.0), 0.0)
    worth = coefficient * jnp.where(episode.success, share, jnp.minimum(share, 0.0))
    return episode.reward + jnp.where(_last_turn(episode), worth[:, None], 0.0)


def _length(episode: Episode) -> Array:
    return jnp.sum(episode.action_mask, axis=(1, 2), dtype=jnp.float32)


def _last_turn(episode: Episode) -> Array:
    turns = jnp.arange(episode.valid.shape[1])[None]
    return episode.valid & (turns == jnp.max(jnp.where(episode.valid, turns, -1), axis=1, keepdims=True))
