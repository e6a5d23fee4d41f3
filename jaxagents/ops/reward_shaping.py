"""Changed rewards of text episodes: `(view, *, axis_name, ...) -> reward [B, T]`. Absent turns are unchanged."""

import jax.numpy as jnp

from jaxagents.ops.episodes import require_one_seat
from jaxagents.ops.seats import seat_of_turn
from jaxagents.types import Array, Episode, EpisodeView


def invalid_action_penalty(view: EpisodeView, *, axis_name: str | None = None, penalty: Array | float = 0.1) -> Array:
    """Subtracts `penalty` from the reward of every turn whose action could not be parsed or was not legal.

    Args:
        view: view of B episodes of T turns.
        axis_name: not used.
        penalty: non-negative number, in units of the reward.

    Returns:
        The rewards.

    References:
        Feng et al. (2025), "Group-in-Group Policy Optimization for LLM Agent Training" (0.1).
    """
    return _subtract(view.episode, jnp.where(view.episode.action_valid, 0.0, penalty))


def soft_overlong_penalty(
    view: EpisodeView,
    *,
    axis_name: str | None = None,
    max_tokens: Array | float,
    buffer_tokens: Array | float,
    penalty: Array | float = 1.0,
) -> Array:
    """Subtracts a penalty that grows linearly over the last `buffer_tokens` tokens allowed in a turn.

    `penalty * clip((tokens - (max_tokens - buffer_tokens)) / buffer_tokens, 0, 1)`.

    Args:
        view: view of B episodes of T turns.
        axis_name: not used.
        max_tokens: number of sampled tokens in a turn from which the full penalty applies.
        buffer_tokens: number of tokens below `max_tokens` at which the penalty begins, positive.
        penalty: largest penalty, in units of the reward.

    Returns:
        The rewards.

    References:
        Yu et al. (2025), "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", eq. 13.

    Deviation: lengths are those of turns, which the dialogue limits; the paper has one turn.
    """
    excess = _sampled_tokens(view.episode) - (max_tokens - buffer_tokens)
    return _subtract(view.episode, penalty * jnp.clip(excess / buffer_tokens, 0.0, 1.0))


def self_correction_bonus(
    view: EpisodeView, *, axis_name: str | None = None, coefficient: Array | float = 10.0
) -> Array:
    """Adds `coefficient (reward_t - reward_{t - 1})` to the reward of every turn t except the first.

    Args:
        view: view of B episodes of T turns, attempts at the same problem.
        axis_name: not used.
        coefficient: alpha, weight of the bonus.

    Returns:
        The rewards.

    Raises:
        ValueError: the episodes are of a game with several seats.

    References:
        Kumar et al. (2024), "Training Language Models to Self-Correct via Reinforcement Learning", section 5.2 (10).
    """
    episode = view.episode
    require_one_seat(episode, "self_correction_bonus")
    before = jnp.pad(episode.reward, ((0, 0), (1, 0)))[:, :-1]
    first = jnp.arange(episode.reward.shape[1])[None] == 0
    return _subtract(episode, jnp.where(first, 0.0, coefficient * (before - episode.reward)))


def only_turn(view: EpisodeView, *, axis_name: str | None = None, turn: int) -> Array:
    """Keeps the reward of one turn and sets all others to zero.

    Args:
        view: view of B episodes of T turns.
        axis_name: not used.
        turn: index of the turn, from 0.

    Returns:
        The rewards.

    Raises:
        ValueError: episodes do not have that many turns.

    References:
        Kumar et al. (2024), "Training Language Models to Self-Correct via Reinforcement Learning", eq. 3 (the second).
    """
    episode = view.episode
    num_turns = episode.reward.shape[1]
    if not 0 <= turn < num_turns:
        raise ValueError(f"`turn` must be in [0, {num_turns}), the turns of an episode, got {turn}.")
    other = jnp.arange(num_turns)[None] != turn
    return _subtract(episode, jnp.where(other, episode.reward, 0.0))


def at_the_end(view: EpisodeView, *, axis_name: str | None = None) -> Array:
    """Moves all rewards of an episode to its last turn.

    Args:
        view: view of B episodes of T turns.
        axis_name: not used.

    Returns:
        The rewards; their sum is unchanged.

    Raises:
        ValueError: the episodes are of a game with several seats.
    """
    episode = view.episode
    require_one_seat(episode, "at_the_end")
    turns = jnp.arange(episode.reward.shape[1])[None]
    is_last = turns == jnp.max(jnp.where(episode.valid, turns, -1), axis=1, keepdims=True)
    total = jnp.sum(jnp.where(episode.valid, episode.reward, 0.0), axis=1, keepdims=True)
    return _subtract(episode, jnp.where(is_last, episode.reward - total, episode.reward))


def score_reached(view: EpisodeView, *, axis_name: str | None = None) -> Array:
    """Rewards every turn with the total earned so far, which is the score of the state that the turn leads to.

    `r'_t = sum_{k <= t} r_k`, and 0 for a turn whose action could not be parsed or was not legal.

    Args:
        view: view of B episodes of T turns, whose rewards are changes of a score.
        axis_name: not used.

    Returns:
        The rewards.

    Raises:
        ValueError: the episodes are of a game with several seats.

    References:
        Lu et al. (2025), "WebGen-Agent", section 3.3 (scores of the website after every edit, 0 after an error).
    """
    episode = view.episode
    require_one_seat(episode, "score_reached")
    reached = jnp.cumsum(jnp.where(episode.valid, episode.reward, 0.0), axis=1)
    return jnp.where(episode.valid, jnp.where(episode.action_valid, reached, 0.0), episode.reward)


def seat_handicap(view: EpisodeView, *, axis_name: str | None = None, amount: Array | float) -> Array:
    """Makes seat 0 of a game pay seat 1, in the last turn of each.

    Best responses and equilibria are unchanged; the values of the two seats change.

    Args:
        view: view of B games of T turns.
        axis_name: not used.
        amount: payment, in units of the reward.

    Returns:
        The rewards.
    """
    episode = view.episode
    seat, turns = seat_of_turn(episode), jnp.arange(episode.reward.shape[1])[None]
    paid = jnp.zeros_like(episode.reward)
    for number, sign in ((0, 1.0), (1, -1.0)):
        own = episode.valid & (seat == number)
        is_last = own & (turns == jnp.max(jnp.where(own, turns, -1), axis=1, keepdims=True))
        paid = paid + jnp.where(is_last, sign * amount, 0.0)
    return _subtract(episode, paid)


def _sampled_tokens(episode: Episode) -> Array:
    return jnp.sum(episode.action_mask, axis=2, dtype=jnp.float32)


def _subtract(episode: Episode, penalty: Array) -> Array:
    return episode.reward - jnp.where(episode.valid, penalty, 0.0)
