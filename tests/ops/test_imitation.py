"""Which episodes are imitated, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.imitation import best_of_group, successful, top_share, turning_points
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


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.1, [1, 0, 0, 0, 0, 0, 0, 0]),  # At least one.
        (0.3, [1, 0, 0, 0, 1, 0, 0, 0]),  # Two of seven: the first success of either task.
        (0.6, [1, 1, 0, 0, 1, 1, 0, 0]),  # Then the second ones.
        (0.75, [1, 1, 1, 0, 1, 1, 0, 0]),  # The third one of the first task: the other task has no more.
        (0.9, [1, 1, 1, 1, 1, 1, 0, 0]),  # Failures when there is nothing better.
        (1.0, [1, 1, 1, 1, 1, 1, 1, 0]),
    ],
)
def test_top_share_by_hand(make_episode, share, expected):
    """The first task has three successes, the second one two, a failure, and a success that is not kept."""
    returns, group = np.array([1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0]), [4, 4, 4, 4, 1, 1, 1, 1]
    episode = make_episode(returns[:, None], np.ones((8, 1)), group=group).replace(keep=jnp.arange(8) < 7)
    view = EpisodeView(episode=episode)
    assert top_share(view, share=share).tolist() == [bool(x) for x in expected]
    assert jax.jit(top_share)(view, share=share).tolist() == [bool(x) for x in expected]


def test_top_share_is_of_the_episodes_of_all_devices(make_episode):
    """The second device has the better episodes; ties go to the tasks of the first one."""
    returns = np.array([[0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]])
    of_devices = [make_episode(row[:, None], np.ones((4, 1)), group=[0, 0, 1, 1]) for row in returns]
    episode = jax.tree.map(lambda *leaves: jnp.stack(leaves), *of_devices)
    chosen = jax.vmap(lambda one: top_share(EpisodeView(episode=one), axis_name="d", share=0.375), axis_name="d")(
        episode
    )
    assert chosen.tolist() == [[False, True, False, False], [True, False, True, False]]


def test_turning_points_win_where_the_episode_before_lost(make_episode):
    """Groups 2 (lost, won, won, lost, won), 5 (won, lost) and 1 (won): a group does not look at the one before."""
    success = jnp.array([False, True, True, False, True, True, False, True])
    episode = make_episode(np.zeros((8, 1)), np.ones((8, 1)), group=[2, 2, 2, 2, 2, 5, 5, 1], success=success)
    chosen = turning_points(EpisodeView(episode=episode))
    assert chosen.tolist() == [False, True, False, False, True, True, False, True]
    dropped = episode.replace(keep=jnp.arange(8) != 4)
    assert turning_points(EpisodeView(episode=dropped)).tolist()[4] is False
