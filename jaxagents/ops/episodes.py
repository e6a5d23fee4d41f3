"""Sums and masks over episodes of text: which tokens and rows count, turns and their tokens, returns of seats."""

import jax
import jax.numpy as jnp

from jaxagents.ops.returns import discounted_returns
from jaxagents.ops.seats import num_seats, own_return_to_go, seat_of_turn
from jaxagents.types import Array, Episode, TokenView


def kept_rows(episode: Episode) -> Array:
    """Returns bool `[B]`, False for rows that are not counted: `keep`, or all True if it is None."""
    return jnp.ones_like(episode.success) if episode.keep is None else episode.keep


def credited_tokens(episode: Episode) -> Array:
    """Returns bool `[B, T, S]`, the sampled tokens of the rows that are kept."""
    return episode.action_mask & kept_rows(episode)[:, None, None]


def require_one_seat(episode: Episode, name: str) -> None:
    """Raises a ValueError, which says that `name` cannot distinguish seats, if the game has several seats."""
    if num_seats(episode) > 1:
        raise ValueError(
            f"`environment` must have one seat for {name}, which does not tell seats apart, got {num_seats(episode)} "
            "seats; try advantage=role_conditioned or advantage=reinforce."
        )


def episode_return(episode: Episode, discount: Array | float = 1.0) -> Array:
    """Computes `sum_t discount^t reward_t` over the turns that took place.

    Args:
        episode: B episodes of T turns, with one seat.
        discount: per turn, in [0, 1].

    Returns:
        float32 `[B]`.

    Raises:
        ValueError: the episodes are of a game with several seats; see `seat_returns`.
    """
    require_one_seat(episode, "a return per episode")
    return seat_returns(episode, discount)[:, 0]


def seat_returns(episode: Episode, discount: Array | float = 1.0) -> Array:
    """Computes `sum_k discount^k reward_k` over the seat's own turns, for every seat, k = 0, 1, ....

    Args:
        episode: B episodes of T turns.
        discount: per own turn, in [0, 1].

    Returns:
        float32 `[B, P]`, P = 1 in worlds with one seat.
    """
    own = _own_turns(episode)
    before = (jnp.cumsum(own, axis=1) - own).astype(jnp.float32)
    reward = jnp.where(own, episode.reward[:, :, None], 0.0)
    return jnp.sum(reward * jnp.power(discount, before), axis=1)


def acting_seats(episode: Episode) -> Array:
    """Returns bool `[B, P]`, the seats that the policy played; all True in worlds with one seat."""
    if num_seats(episode) == 1:
        return jnp.ones((*episode.success.shape, 1), bool)
    return jnp.any(_own_turns(episode) & acting_turns(episode)[:, :, None], axis=1)


def of_seat(per_seat: Array, episode: Episode) -> Array:
    """Assigns the entry `[B, P]` of every seat to the seat's turns, `[B, T]`."""
    return jnp.take_along_axis(per_seat, seat_of_turn(episode), axis=1)


def return_to_go(episode: Episode, discount: Array | float = 1.0) -> Array:
    """Computes `sum_{k >= t} discount^(k - t) reward_k` over the turns that took place; in games, over own turns.

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


def to_tokens_of_turn(per_turn: Array, episode: Episode) -> Array:
    """Assigns the entry `[B, T]` of every turn to the turn's tokens, `[B, T, S]`."""
    return jnp.broadcast_to(per_turn[:, :, None], episode.tokens.shape)


def last_action_token_mask(episode: Episode) -> Array:
    """Returns bool `[B, T, S]`, the last token of every turn that the policy sampled."""
    place = jnp.arange(episode.tokens.shape[2])[None, None]
    last = jnp.max(jnp.where(episode.action_mask, place, -1), axis=2, keepdims=True)
    return episode.action_mask & (place == last)


def first_action_token_mask(episode: Episode) -> Array:
    """Returns bool `[B, T, S]`, the first token of every turn that the policy sampled."""
    size = episode.tokens.shape[2]
    place = jnp.arange(size)[None, None]
    first = jnp.min(jnp.where(episode.action_mask, place, size), axis=2, keepdims=True)
    return episode.action_mask & (place == first)


def acting_turns(episode: Episode) -> Array:
    """Returns bool `[B, T]`, the turns that took place and in which the policy sampled a token."""
    return episode.valid & jnp.any(episode.action_mask, axis=2)


def reward_of_acting_turns(episode: Episode) -> Array:
    """Moves the reward of a turn without a sampled token to the latest earlier turn that has one.

    Args:
        episode: B episodes of T turns.

    Returns:
        float32 `[B, T]`, zero for turns without a sampled token. Rewards before the first sampled token are left out,
        because nothing that the policy did led to them.
    """
    turns = jnp.arange(episode.reward.shape[1])
    latest = jax.lax.cummax(jnp.where(acting_turns(episode), turns[None], -1), axis=1)
    reward = jnp.where(episode.valid, episode.reward, 0.0)
    return jnp.sum(jnp.where(latest[:, None, :] == turns[None, :, None], reward[:, None, :], 0.0), axis=2)


def same_group(episode: Episode) -> Array:
    """Returns the rows with which every seat of every row is compared.

    Args:
        episode: B episodes.

    Returns:
        bool `[B, B, P]`, True if the row on the second axis is kept, is in the same group as the row on the first axis,
        and the policy played the seat in it.
    """
    same = (episode.group[:, None] == episode.group[None, :]) & kept_rows(episode)[None, :]
    return same[:, :, None] & acting_seats(episode)[None]


def difference_from_group(score: Array, same: Array) -> tuple[Array, Array]:
    """Computes `score_i - mean_j score_j` over the rows j of the group of row i, for every seat.

    It is computed as the mean of pairwise differences, which is exactly zero if all scores are equal.

    Args:
        score: `[B, P]`.
        same: bool `[B, B, P]`, see `same_group`.

    Returns:
        The difference and the number of rows of the group, both float32 `[B, P]`; the difference is zero if that number
        is zero.
    """
    count = jnp.sum(same, axis=1, dtype=jnp.float32)
    total = jnp.sum(jnp.where(same, score[:, None] - score[None, :], 0.0), axis=1)
    return total / jnp.maximum(count, 1.0), count


def group_deviation(difference: Array, same: Array) -> Array:
    """Computes the population standard deviation within the group of every row, for every seat.

    Args:
        difference: `[B, P]`, see `difference_from_group`.
        same: bool `[B, B, P]`, see `same_group`.

    Returns:
        float32 `[B, P]`, zero for groups of one.
    """
    count = jnp.sum(same, axis=1, dtype=jnp.float32)
    square = jnp.sum(jnp.where(same, jnp.square(difference)[None], 0.0), axis=1)
    return jnp.sqrt(square / jnp.maximum(count, 1.0))


def group_success(episode: Episode) -> Array:
    """Computes the share of successes among the kept episodes of every row's group, float32 `[B]`."""
    same = (episode.group[:, None] == episode.group[None, :]) & kept_rows(episode)[None, :]
    right = jnp.sum(same & episode.success[None, :], axis=1, dtype=jnp.float32)
    return right / jnp.maximum(jnp.sum(same, axis=1, dtype=jnp.float32), 1.0)


def _own_turns(episode: Episode) -> Array:
    """Returns bool `[B, T, P]`, the turns of every seat that took place."""
    seats = jnp.arange(num_seats(episode))[None, None]
    return (seat_of_turn(episode)[:, :, None] == seats) & episode.valid[:, :, None]


def sum_of_sequences(view: TokenView, per_token: Array) -> Array:
    """Computes the sum over the tokens of every sequence that count.

    Args:
        view: view of rows that hold whole sequences.
        per_token: `[B, T, S]`.

    Returns:
        `[B, T, S]`, the sum over the sequence to which the token belongs.
    """
    counted = jnp.where(view.mask, per_token, 0.0)
    if view.num_sequences == 1:
        return jnp.broadcast_to(jnp.sum(counted, axis=(1, 2), keepdims=True), counted.shape)
    result = jnp.zeros_like(counted)
    for number in range(view.num_sequences):
        of_this = view.sequence == number
        total = jnp.sum(jnp.where(of_this, counted, 0.0), axis=(1, 2), keepdims=True)
        result = jnp.where(of_this, total, result)
    return result


def mean_log_ratio(view: TokenView, log_prob: Array) -> Array:
    """Computes the mean of `log_prob - behavior_log_prob` over the tokens of every sequence that count, `[B, T, S]`."""
    difference = jnp.where(view.mask, log_prob - view.behavior_log_prob, 0.0)
    count = sum_of_sequences(view, view.mask.astype(jnp.float32))
    return jax.lax.stop_gradient(sum_of_sequences(view, difference) / jnp.maximum(count, 1.0))
