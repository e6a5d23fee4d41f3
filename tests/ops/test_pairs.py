"""Pairs of episodes against choices made by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.pairs import best_against_worst, expert_against_own, success_against_failure
from jaxagents.types import Demonstrated

# Group 3 has returns 1, 0, 2, 0; group 7 has equal ones; group 5 is of one episode.
RETURNS, GROUP = np.array([1.0, 4.0, 0.0, 2.0, 4.0, 0.0, 9.0]), np.array([3, 7, 3, 3, 7, 3, 5])


def test_the_best_of_a_group_is_preferred_to_its_worst(make_episode):
    pairs = best_against_worst(make_episode(RETURNS[:, None], np.ones((7, 1)), group=GROUP))
    np.testing.assert_array_equal(pairs.pair, [-1, -1, 3, -1, -1, -1, -1])
    # The mean of group 3 is 0.75.
    np.testing.assert_array_equal(pairs.desirable, [True, False, False, True, False, False, False])


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


@pytest.mark.parametrize("source", [best_against_worst, success_against_failure])
def test_seats_are_refused(make_episode, source):
    episode = make_episode(RETURNS[:, None], np.ones((7, 1)), group=GROUP, seat_return=jnp.zeros((7, 2)))
    with pytest.raises(ValueError, match="`pairs` must be of episodes of one seat, got 2 seats"):
        jax.eval_shape(source, episode)
