"""Sums and masks over episodes of text: which tokens and rows count, turns and their tokens, returns."""

import jax
import jax.numpy as jnp

from jaxagents.ops.returns import discounted_returns
from jaxagents.ops.seats import num_seats, own_return_to_go
from jaxagents.types import Array, Episode


def kept_rows(episode: Episode) -> Array:
    """Returns bool `[B]`, False for rows that count nowhere: `keep`, all True without it."""
    return jnp.ones_like(episode.success) if episode.keep is None else episode.keep


def credited_tokens(episode: Episode) -> Array:
    """Returns bool `[B, L]`, the sampled tokens of the rows that are kept."""
    return episode.action_mask & kept_rows(episode)[:, None]


def episode_return(episode: Episode, discount: Array | float = 1.0) -> Array:
    """Computes `sum_t discount^t reward_t` over the turns that took place.

    Args:
        episode: B episodes of T turns.
        discount: per turn, in [0, 1].

    Returns:
        float32 `[B]`.
    """
    turn = jnp.arange(episode.reward.shape[1], dtype=jnp.float32)
    weight = jnp.where(episode.valid, jnp.power(discount, turn)[None], 0.0)
    return jnp.sum(jnp.where(episode.valid, episode.reward, 0.0) * weight, axis=1)


def return_to_go(episode: Episode, discount: Array | float = 1.0) -> Array:
    """Computes `sum_{k >= t} discount^(k - t) reward_k` over the turns that took place, in games the own ones.

    Args:
        episode: B episodes of T turns.
        discount: per turn, in [0, 1].

    Returns:
        float32 `[B, T]`.
    """
    if num_seats(episode) > 1:
        return own_return_to_go(episode, discount)
    reward = jnp.where(episode.valid, episode.reward, 0.0).T
    endless = jnp.zeros_like(reward, dtype=bool)
    return discounted_returns(reward, endless, endless, jnp.zeros_like(reward), discount=discount).T


def turn_of_token(per_turn: Array, turn: Array) -> Array:
    """Hands the entry of every turn to the tokens of that turn; tokens of the prompt get zero.

    Args:
        per_turn: `[B, T]`.
        turn: int32 `[B, L]`, -1 for the prompt.

    Returns:
        `[B, L]`, of the dtype of `per_turn`.
    """
    taken = jnp.take_along_axis(per_turn, jnp.maximum(turn, 0), axis=1)
    return jnp.where(turn >= 0, taken, jnp.zeros_like(taken))


def sum_per_turn(per_token: Array, turn: Array, *, num_turns: int) -> Array:
    """Sums the entries of the tokens of every turn; tokens of the prompt are left out.

    Args:
        per_token: `[B, L]`.
        turn: int32 `[B, L]`, -1 for the prompt.
        num_turns: T.

    Returns:
        `[B, T]`.
    """
    of_turn = turn[:, None, :] == jnp.arange(num_turns)[None, :, None]
    return jnp.sum(jnp.where(of_turn, per_token[:, None, :], 0), axis=2)


def last_action_token_mask(episode: Episode) -> Array:
    """Returns bool `[B, L]`, the last token of every turn that the policy sampled. Turns are in order along L."""
    never = episode.reward.shape[1]
    turn = jnp.where(episode.action_mask, episode.turn, never)
    next_turn = jax.lax.cummin(turn, axis=1, reverse=True)[:, 1:]
    next_turn = jnp.pad(next_turn, ((0, 0), (0, 1)), constant_values=never)
    return episode.action_mask & (next_turn != episode.turn)


def first_action_token_mask(episode: Episode) -> Array:
    """Returns bool `[B, L]`, the first token of every turn that the policy sampled. Turns are in order along L."""
    turn = jnp.where(episode.action_mask, episode.turn, -1)
    previous_turn = jnp.pad(jax.lax.cummax(turn, axis=1)[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    return episode.action_mask & (previous_turn != episode.turn)


def acting_turns(episode: Episode) -> Array:
    """Returns bool `[B, T]`, the turns that took place and in which the policy sampled a token."""
    num_turns = episode.reward.shape[1]
    count = sum_per_turn(episode.action_mask.astype(jnp.int32), episode.turn, num_turns=num_turns)
    return episode.valid & (count > 0)


def reward_of_acting_turns(episode: Episode) -> Array:
    """Moves the reward of a turn without a sampled token to the latest turn before it that has one.

    Args:
        episode: B episodes of T turns.

    Returns:
        float32 `[B, T]`, zero where nothing was sampled. Reward before the first sampled token is left out: nothing
        that the policy did led to it.
    """
    turns = jnp.arange(episode.reward.shape[1])
    latest = jax.lax.cummax(jnp.where(acting_turns(episode), turns[None], -1), axis=1)
    reward = jnp.where(episode.valid, episode.reward, 0.0)
    return jnp.sum(jnp.where(latest[:, None, :] == turns[None, :, None], reward[:, None, :], 0.0), axis=2)


def same_group(episode: Episode) -> Array:
    """Returns bool `[B, B]`, True where the row of the second axis is kept and of the group of that of the first."""
    return (episode.group[:, None] == episode.group[None, :]) & kept_rows(episode)[None, :]


def difference_from_group(score: Array, same: Array) -> tuple[Array, Array]:
    """Computes `score_i - mean_j score_j` over the rows j of the group of row i.

    The mean of pairwise differences, which is exactly zero where all scores are equal.

    Args:
        score: `[B]`.
        same: bool `[B, B]`, see `same_group`.

    Returns:
        The difference and the number of rows of the group, both float32 `[B]`; the difference is zero where that
        number is.
    """
    count = jnp.sum(same, axis=1, dtype=jnp.float32)
    total = jnp.sum(jnp.where(same, score[:, None] - score[None, :], 0.0), axis=1)
    return total / jnp.maximum(count, 1.0), count


def group_deviation(difference: Array, same: Array) -> Array:
    """Computes the population standard deviation within the group of every row.

    Args:
        difference: `[B]`, see `difference_from_group`.
        same: bool `[B, B]`, see `same_group`.

    Returns:
        float32 `[B]`, zero for groups of one.
    """
    count = jnp.sum(same, axis=1, dtype=jnp.float32)
    square = jnp.sum(jnp.where(same, jnp.square(difference)[None, :], 0.0), axis=1)
    return jnp.sqrt(square / jnp.maximum(count, 1.0))
