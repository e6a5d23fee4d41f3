"""Changes of the rewards of episodes of text: `(episode, *, ...) -> Episode`. Turns that did not happen stay as is."""

import jax.numpy as jnp

from jaxagents.ops.episodes import sum_per_turn
from jaxagents.types import Array, Episode


def invalid_action_penalty(episode: Episode, *, penalty: Array | float = 0.1) -> Episode:
    """Subtracts `penalty` from the reward of every turn whose action could not be parsed or was not legal.

    Args:
        episode: B episodes of T turns.
        penalty: not negative, in units of the reward.

    Returns:
        The episodes with new rewards.

    References:
        Feng et al. (2025), "Group-in-Group Policy Optimization for LLM Agent Training" (0.1).
    """
    return _subtract(episode, jnp.where(episode.action_valid, 0.0, penalty))


def length_penalty(episode: Episode, *, penalty: Array | float = 0.001) -> Episode:
    """Subtracts `penalty` times the number of sampled tokens of a turn from its reward.

    Args:
        episode: B episodes of T turns.
        penalty: not negative, in units of the reward per token.

    Returns:
        The episodes with new rewards.
    """
    return _subtract(episode, penalty * _sampled_tokens(episode))


def soft_overlong_penalty(
    episode: Episode,
    *,
    max_tokens: Array | float,
    buffer_tokens: Array | float,
    penalty: Array | float = 1.0,
) -> Episode:
    """Subtracts a penalty that grows linearly over the last `buffer_tokens` of what a turn may say.

    `penalty * clip((tokens - (max_tokens - buffer_tokens)) / buffer_tokens, 0, 1)`.

    Args:
        episode: B episodes of T turns.
        max_tokens: sampled tokens of a turn from which on all of the penalty is due.
        buffer_tokens: positive, how far below it begins.
        penalty: the largest, in units of the reward.

    Returns:
        The episodes with new rewards.

    References:
        Yu et al. (2025), "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", eq. 13.

    Deviation: lengths are those of turns, whose budgets the dialogue bounds; the paper has one turn.
    """
    excess = _sampled_tokens(episode) - (max_tokens - buffer_tokens)
    return _subtract(episode, penalty * jnp.clip(excess / buffer_tokens, 0.0, 1.0))


def self_correction_bonus(episode: Episode, *, coefficient: Array | float = 10.0) -> Episode:
    """Adds `coefficient (reward_t - reward_{t - 1})` to the reward of every turn t but the first.

    Args:
        episode: B episodes of T turns, attempts at the same problem.
        coefficient: alpha.

    Returns:
        The episodes with new rewards.

    References:
        Kumar et al. (2024), "Training Language Models to Self-Correct via Reinforcement Learning", section 5.2 (10).
    """
    before = jnp.pad(episode.reward, ((0, 0), (1, 0)))[:, :-1]
    first = jnp.arange(episode.reward.shape[1])[None] == 0
    return _subtract(episode, jnp.where(first, 0.0, coefficient * (before - episode.reward)))


def only_turn(episode: Episode, *, turn: int) -> Episode:
    """Keeps the reward of one turn and sets those of all others to zero.

    Args:
        episode: B episodes of T turns.
        turn: counted from 0.

    Returns:
        The episodes with new rewards.

    Raises:
        ValueError: episodes do not have so many turns.

    References:
        Kumar et al. (2024), "Training Language Models to Self-Correct via Reinforcement Learning", eq. 3 (the second).
    """
    num_turns = episode.reward.shape[1]
    if not 0 <= turn < num_turns:
        raise ValueError(f"`turn` must be in [0, {num_turns}), the turns of an episode, got {turn}.")
    other = jnp.arange(num_turns)[None] != turn
    return _subtract(episode, jnp.where(other, episode.reward, 0.0))


def _sampled_tokens(episode: Episode) -> Array:
    num_turns = episode.reward.shape[1]
    return sum_per_turn(episode.action_mask.astype(jnp.float32), episode.turn, num_turns=num_turns)


def _subtract(episode: Episode, penalty: Array) -> Episode:
    return episode.replace(reward=episode.reward - jnp.where(episode.valid, penalty, 0.0))
