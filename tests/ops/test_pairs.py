"""Pairs of episodes against choices made by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.pairs import best_against_others, best_against_worst, expert_against_own, success_against_failure
from jaxagents.types import Demonstrated

# Group 3 has returns 1, 0, 2, 0; group 7 has equal ones; group 5 is of one episode.
RETURNS, GROUP = np.array([1.0, 4.0, 0.0, 2.0, 4.0, 0.0, 9.0]), np.array([3, 7, 3, 3, 7, 3, 5])


def test_the_best_of_a_group_is_preferred_to_its_worst(make_episode):
    pairs = best_against_worst(make_episode(RETURNS[:, None], np.ones((7, 1)), group=GROUP))
    np.testing.assert_array_equal(pairs.pair, [-1, -1, 3, -1, -1, -1, -1])
    # The mean of group 3 is 0.75.
    np.testing.assert_array_equal(pairs.desirable, [True, False, False, True, False, False, False])


def test_the_best_of_a_group_is_preferred_to_all_that_are_behind(make_episode):
    pairs = best_against_others(make_episode(RETURNS[:, None], np.ones((7, 1)), group=GROUP))
    np.testing.assert_array_equal(pairs.pair, [3, -1, 3, -1, -1, 3, -1])
    np.testing.assert_array_equal(pairs.desirable, [False, True, False, True, True, False, True])


def test_rows_that_are_close_to_the_best_or_dropped_are_not_compared(make_episode):
    keep = jnp.array([True, True, True, True, True, False, True])
    pairs = best_against_others(make_episode(RETURNS[:, None], np.ones((7, 1)), group=GROUP, keep=keep), tolerance=1.5)
    np.testing.assert_array_equal(pairs.pair, [-1, -1, 3, -1, -1, -1, -1])
    np.testing.assert_array_equal(pairs.desirable, [True, True, False, True, True, False, True])


def test_successes_are_preferred_to_failures_in_rotation(make_episode):
    success = np.array([True, False, False, True, False, False, True])
    # Group 3 has successes 0 and 3, and failures 2 and 5; group 7 has no success.
    episode = make_episode(RETURNS[:, None], np.ones((7, 1)), group=GROUP, success=jnp.asarray(success))
    pairs = success_against_failure(episode)
    np.testing.assert_array_equal(pairs.pair, [-1, -1, 0, -1, -1, 3, -1])
    np.testing.assert_array_equal(pairs.desirable, success)


def test_rotation_begins_anew_where_failures_outnumber_successes(make_episode):
    success = jnp.asarray([False, False, True, False, True])
    pairs = success_against_failure(make_episode(np.zeros((5, 1)), np.ones((5, 1)), success=success))
    np.testing.assert_array_equal(pairs.pair, [2, 4, -1, 2, -1])


def test_demonstrations_are_preferred_to_all_own_episodes_of_their_task(make_episode):
    shown = make_episode(np.full((2, 1), 5.0), np.ones((2, 1)), group=[0, 1])
    own = make_episode(np.arange(6.0)[:, None], np.ones((6, 1)), group=[0, 0, 0, 1, 1, 1], bootstrap_value=jnp.ones(6))
    pairs = expert_against_own(Demonstrated(own=own, demonstration=shown))
    np.testing.assert_array_equal(pairs.pair, [-1, -1, 0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(pairs.desirable, [True] * 2 + [False] * 6)
    np.testing.assert_array_equal(pairs.episode.reward[:, 0], [5, 5, 0, 1, 2, 3, 4, 5])


@pytest.mark.exhaustive
def test_seats_of_a_game_are_rows_of_their_own(make_episode):
    """Three games of one deal: the first seat moves in the first turn and wins 1, -1 and 2, the other one loses that;
    it has no turn in the third game."""
    agent = np.broadcast_to(np.array([0, 1])[None, :, None], (3, 2, 4))
    reward = np.array([[1.0, -1.0], [-1.0, 1.0], [2.0, 0.0]])
    episode = make_episode(
        reward, [[2, 1], [2, 1], [1, 0]], agent=jnp.asarray(agent), seat_return=jnp.array([[1.0, -1], [-1, 1], [2, -2]])
    )
    pairs = success_against_failure(episode)
    # The lost game of the first seat is compared to its first won one, that of the other seat to its only one.
    np.testing.assert_array_equal(pairs.pair, [-1, 0, -1, 4, -1, -1])
    np.testing.assert_array_equal(pairs.desirable, [True, False, True, False, True, False])
    # A row has the tokens of its seat.
    sampled = np.sum(pairs.episode.action_mask, axis=2)
    np.testing.assert_array_equal(sampled, [[2, 0], [2, 0], [1, 0], [0, 1], [0, 1], [0, 0]])
    np.testing.assert_array_equal(best_against_worst(episode).pair, [-1, 2, -1, 4, -1, -1])
