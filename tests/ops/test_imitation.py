"""Which episodes are imitated, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.imitation import best_of_group, successful, turning_points
from jaxagents.types import EpisodeView

RETURNS = np.array([0.0, 1.0, 1.0, -2.0, -3.0, -2.0])
GROUP = np.array([4, 4, 4, 1, 1, 1])


@pytest.fixture(scope="module")
def episode(make_episode):
    return make_episode(RETURNS[:, None], np.ones((6, 1)), group=GROUP)


def test_successes_are_chosen_where_rows_are_kept(episode):
    success = jnp.array([False, True, True, False, True, False])
    view = EpisodeView(episode=episode.replace(success=success))
    assert successful(view).tolist() == success.tolist()
    dropped = view.replace(episode=view.episode.replace(keep=jnp.array([True, False, True, True, True, True])))
    assert successful(dropped).tolist() == [False, False, True, False, True, False]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, [0, 1, 0, 1, 0, 0]),  # The first of equals, and the best of failures, too.
        (2, [0, 1, 1, 1, 0, 1]),
        (3, [1, 1, 1, 1, 1, 1]),
    ],
)
def test_best_of_group_by_hand(episode, count, expected):
    view = EpisodeView(episode=episode)
    assert best_of_group(view, count=count).tolist() == [bool(x) for x in expected]
    assert jax.jit(best_of_group)(view, count=count).tolist() == [bool(x) for x in expected]


def test_a_dropped_row_is_neither_chosen_nor_in_the_way(episode):
    kept = episode.replace(keep=jnp.array([True, False, True, False, True, True]))
    assert best_of_group(EpisodeView(episode=kept)).tolist() == [False, False, True, False, False, True]


def test_turning_points_win_where_the_episode_before_lost(make_episode):
    """Groups 2 (lost, won, won, lost, won), 5 (won, lost) and 1 (won): a group does not look at the one before."""
    success = jnp.array([False, True, True, False, True, True, False, True])
    episode = make_episode(np.zeros((8, 1)), np.ones((8, 1)), group=[2, 2, 2, 2, 2, 5, 5, 1], success=success)
    chosen = turning_points(EpisodeView(episode=episode))
    assert chosen.tolist() == [False, True, False, False, True, True, False, True]
    dropped = episode.replace(keep=jnp.arange(8) != 4)
    assert turning_points(EpisodeView(episode=dropped)).tolist()[4] is False
