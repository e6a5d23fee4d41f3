"""Seats of games: rewards of a seat reach the turn that earned them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.episodes import return_to_go
from jaxagents.ops.seats import num_seats, own_return_to_go, reward_until_next_turn, seat_of_turn


@pytest.mark.parametrize(
    ("reward", "seat", "valid", "expected"),
    [
        # The last move pays both: the loser's last turn gets the loss.
        ([[0, 0], [0, 0], [2, -2]], [0, 1, 0], [1, 1, 1], [0, -2, 2]),
        # Rewards on the way go to the turn before them of their seat; seat 1 had none when 7 came.
        ([[1, 7], [3, 5], [10, 20]], [0, 1, 0], [1, 1, 1], [4, 25, 10]),
        # Two turns in a row of a seat.
        ([[1, 0], [2, 4], [8, 16]], [0, 0, 1], [1, 1, 1], [1, 10, 16]),
        # What did not take place counts nowhere.
        ([[1, -1], [2, -2], [9, 9]], [0, 1, 0], [1, 1, 0], [3, -2, 0]),
    ],
)
def test_reward_until_next_turn(reward, seat, valid, expected):
    inputs = jnp.asarray(reward, jnp.float32), jnp.asarray(seat, jnp.int32), jnp.asarray(valid, bool)
    np.testing.assert_array_equal(reward_until_next_turn(*inputs), expected)
    batched = jax.jit(jax.vmap(reward_until_next_turn))(*(leaf[None] for leaf in inputs))
    np.testing.assert_array_equal(batched, [expected])


def make_game(make_episode):
    """Seats 0 1 0 1 take turns, the last turn of the second row did not take place; 3 tokens a slot, one sampled."""
    seats = np.asarray([[0, 1, 0, 1], [1, 0, 1, 0]])
    return make_episode(
        reward=[[1, 2, 4, 8], [1, 2, 4, 0]],
        num_tokens=[[1, 1, 1, 1], [1, 1, 1, 0]],
        slot=3,
        agent=jnp.asarray(np.repeat(seats[:, :, None], 3, axis=2), jnp.int32),
        seat_return=jnp.asarray([[5.0, 10.0], [2.0, 5.0]]),
    )


def test_returns_to_go_are_of_the_own_seat(make_episode):
    episode = make_game(make_episode)
    assert num_seats(episode) == 2
    np.testing.assert_array_equal(seat_of_turn(episode), [[0, 1, 0, 1], [1, 0, 1, 0]])
    np.testing.assert_array_equal(own_return_to_go(episode), [[5, 10, 4, 8], [5, 2, 4, 0]])
    np.testing.assert_array_equal(own_return_to_go(episode, 0.5), [[3, 6, 4, 8], [3, 2, 4, 0]])
    np.testing.assert_array_equal(return_to_go(episode), own_return_to_go(episode))


def test_without_seats_returns_to_go_are_of_all_turns(make_episode):
    episode = make_episode(reward=[[1, 2, 4]], num_tokens=[[1, 1, 1]])
    assert num_seats(episode) == 1
    np.testing.assert_array_equal(return_to_go(episode), [[7, 6, 4]])
    np.testing.assert_array_equal(own_return_to_go(episode), return_to_go(episode))
