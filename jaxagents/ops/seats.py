"""Seats of turn-based games: which seat took a turn, what the turn earned it, and the total of each seat.

Episodes of games have a `seat_return`; others have a single seat.
"""

import jax
import jax.numpy as jnp

from jaxagents.types import Array, Episode


def reward_until_next_turn(reward: Array, seat: Array, valid: Array) -> Array:
    """Computes what every turn earned for its seat: all rewards of that seat up to its next turn.

    `out_t = sum_{k=t}^{n(t) - 1} reward_k[seat_t]`, where `n(t)` is the next turn of the same seat, or the end. Rewards
    of a seat before its first turn belong to no turn.

    Args:
        reward: float32 `[T, P]`, rewards of all seats in every turn.
        seat: int32 `[T]`, seat that took the turn.
        valid: bool `[T]`, whether the turn took place.

    Returns:
        float32 `[T]`, zero if there was no turn.
    """

    def step(pending: Array, inputs: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        reward, seat, valid = inputs
        own = (jnp.arange(reward.shape[0]) == seat) & valid
        pending = pending + jnp.where(valid, reward, 0.0)
        return jnp.where(own, 0.0, pending), jnp.sum(jnp.where(own, pending, 0.0))

    _, earned = jax.lax.scan(step, jnp.zeros(reward.shape[1:]), (reward, seat, valid), reverse=True)
    return earned


def num_seats(episode: Episode) -> int:
    """Returns P, the number of seats in the game; 1 for episodes that are not games."""
    return 1 if episode.seat_return is None else episode.seat_return.shape[1]


def seat_of_turn(episode: Episode) -> Array:
    """Returns int32 `[B, T]`, the seat that took each turn; 0 if there was no turn."""
    if num_seats(episode) == 1:
        return jnp.zeros(episode.reward.shape, jnp.int32)
    return jnp.max(jnp.where(episode.token_mask, episode.agent, 0), axis=2).astype(jnp.int32)


def own_return_to_go(episode: Episode, discount: Array | float = 1.0) -> Array:
    """Computes the return to go of every turn over the later turns of the same seat.

    `G_t = sum_{k >= t, seat_k = seat_t} discount^(own turns between) reward_k`.

    Args:
        episode: B episodes of T turns.
        discount: per own turn, in [0, 1].

    Returns:
        float32 `[B, T]`, zero if there was no turn.
    """
    seats = jnp.arange(num_seats(episode))

    def step(following: Array, inputs: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        reward, seat, valid = inputs
        own = (seats[None] == seat[:, None]) & valid[:, None]
        following = jnp.where(own, reward[:, None] + discount * following, following)
        return following, jnp.sum(jnp.where(own, following, 0.0), axis=1)

    initial = jnp.zeros((episode.reward.shape[0], seats.shape[0]))
    inputs = episode.reward.T, seat_of_turn(episode).T, episode.valid.T
    return jax.lax.scan(step, initial, inputs, reverse=True)[1].T
