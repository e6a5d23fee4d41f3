"""Group filters against choices made by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops import group_filters
from jaxagents.ops.resample_on_correct import resample_on_correct
from jaxagents.types import EpisodeView

# Returns and groups of unequal sizes: standard deviations 1 (group 5), 0 (2), 2 (9), 0 (4, of one), 0.5 (0).
RETURNS = np.array([0.0, 3.0, 1.0, 2.0, 3.0, 5.0, 7.0, 3.0, 4.0, 5.0])
GROUP = np.array([5, 2, 9, 5, 2, 9, 4, 2, 0, 0])


def of_episodes(keep):
    """Returns the filter as a function of episodes."""
    return lambda episode, **options: keep(EpisodeView(episode=episode), **options)


informative_groups = of_episodes(group_filters.informative_groups)
top_variance = of_episodes(group_filters.top_variance)


def chosen(keep):
    """Returns the groups whose rows are kept, after checking that groups are kept whole."""
    for group in set(GROUP):
        assert len(set(np.asarray(keep)[group == GROUP].tolist())) == 1
    return set(GROUP[np.asarray(keep)].tolist())


@pytest.fixture(scope="module")
def episode(make_episode):
    return make_episode(RETURNS[:, None], np.ones((10, 1)), group=GROUP)


def test_informative_groups_are_those_with_unequal_returns(episode):
    assert chosen(informative_groups(episode)) == {5, 9, 0}
    assert chosen(informative_groups(episode, tolerance=1.5)) == {5, 9}


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [
        (0.2, {9}),
        (0.4, {9, 5}),
        (0.6, {9, 5, 0}),
        # Groups 2 and 4 rank last: they have nothing to tell, however many may stay.
        (0.8, {9, 5, 0}),
        (1.0, {9, 5, 0}),
        # Rounded down, but never nothing.
        (0.59, {9, 5}),
        (0.01, {9}),
    ],
)
def test_top_variance_by_hand(episode, fraction, expected):
    assert chosen(top_variance(episode, fraction=fraction)) == expected


def test_ties_in_variance_go_to_the_group_that_comes_first(make_episode):
    episode = make_episode([[1.0], [0.0], [3.0], [1.0], [2.0], [0.0]], np.ones((6, 1)), group=[7, 3, 7, 3, 3, 3])
    tied = episode.replace(reward=jnp.asarray([[0.0], [5.0], [2.0], [7.0], [7.0], [5.0]]))
    keep = partial(top_variance, fraction=0.5)
    # Deviations 1 and sqrt(1/2), then 1 and 1.
    np.testing.assert_array_equal(keep(episode), [True, False, True, False, False, False])
    np.testing.assert_array_equal(keep(tied), [True, False, True, False, False, False])
    np.testing.assert_array_equal(keep(tied.replace(group=10 - tied.group)), keep(tied))


def test_nothing_varies_and_nothing_is_kept(make_episode):
    episode = make_episode([[0.1]] * 6, np.ones((6, 1)), group=[0, 0, 0, 1, 1, 1])
    assert not top_variance(episode).any()


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [2, 5])
def test_the_share_is_of_the_groups_of_all_devices(make_episode, num_devices):
    """Deviations 0.5, 3, 0 and 1, ..., so that devices of their own would choose others."""
    apart = np.array([1.0, 6.0, 0.0, 2.0, 2.0, 8.0, 4.0, 0.0, 0.0, 2.0])
    returns, group = np.stack([0.0 * apart, apart], axis=1).reshape(20, 1), np.repeat(np.arange(10), 2)
    episode = make_episode(returns, np.ones((20, 1)), group=group)
    share = jax.tree.map(lambda leaf: leaf.reshape(num_devices, -1, *leaf.shape[1:]), episode)
    filters = jax.vmap(partial(top_variance, fraction=0.4, axis_name="devices"), axis_name="devices")
    # The four largest: 8, 6, 4, and of the three of 2 the one that comes first.
    expected = np.isin(group, [5, 1, 6, 3])
    np.testing.assert_array_equal(filters(share).reshape(-1), expected)
    np.testing.assert_array_equal(top_variance(episode, fraction=0.4), expected)


def test_filters_compose(episode):
    first = episode.replace(keep=jnp.asarray(GROUP != 9))
    assert chosen(informative_groups(first)) == {5, 0}
    # Half of the four groups that are left.
    assert chosen(top_variance(first, fraction=0.5)) == {5, 0}


def test_dropped_rows_do_not_make_a_group_informative(episode):
    rest = episode.replace(keep=jnp.arange(10) != 3)
    keep = informative_groups(rest)
    np.testing.assert_array_equal(keep, np.isin(GROUP, [9, 0]))


def test_nothing_left_is_nothing_kept(episode):
    none = episode.replace(keep=jnp.zeros(10, bool))
    for keep in (informative_groups, top_variance):
        assert not keep(none).any()


@pytest.mark.parametrize("keep", [informative_groups, partial(top_variance, fraction=0.4)])
def test_jit_and_the_order_of_rows_change_nothing(episode, keep):
    order = np.array([3, 9, 0, 7, 5, 1, 8, 2, 6, 4])
    shuffled = jax.tree.map(lambda leaf: leaf[order], episode)
    np.testing.assert_array_equal(jax.jit(keep)(shuffled), keep(episode)[order])


# Resample-on-Correct keeps four of eight, with numbers of the authors' code (microsoft/rStar@ecbfb94 roc.py:40-74).
RIGHT = [1, 0, 1, 1, 0, 1, 1, 1]
# Errors of three calls each, an answer in the fourth turn; the fifth row answers at once, which counts as a half.
ERRORS = [
    [0, 1, 0, 0],
    [1, 1, 1, 0],
    [0, 0, 0, 0],
    [1, 1, 0, 0],
    [0, 0, 0, 0],
    [0, 0, 0, 0],
    [1, 0, 0, 0],
    [0, 0, 1, 0],
]


@pytest.mark.parametrize(
    ("right", "options", "expected"),
    [
        # Two of eight failed: round(2 * 4 / 8) = 1, at least two; of the successes, rows 2 and 5 made no mistake.
        (RIGHT, {}, [1, 2, 4, 5]),
        (RIGHT, {"min_failures": 0, "min_successes": 0}, [0, 1, 2, 5]),  # Equal shares of mistakes: the first.
        # One success: round(0.5) = 0, at least as many as there are; then three failures, the first ones.
        ([0, 0, 0, 0, 0, 1, 0, 0], {}, [0, 1, 2, 5]),
        ([0] * 8, {}, [0, 1, 2, 3]),
        ([1] * 8, {}, [0, 2, 5, 6]),  # One error each: rows 0 and 6 before row 7; row 4 made no call.
        (RIGHT, {"num_kept": 8}, list(range(8))),
    ],
)
def test_resample_on_correct_by_hand(make_episode, right, options, expected):
    tokens = np.ones((8, 4))
    tokens[4, 1:] = 0
    reward = np.zeros((8, 4))
    reward[:, 3], reward[4, 0] = right, right[4]
    episode = make_episode(reward, tokens, extras={"errors": jnp.asarray(ERRORS, jnp.float32)})
    keep = jax.jit(partial(of_episodes(resample_on_correct), **{"num_kept": 4, "errors": "errors"} | options))(episode)
    assert np.flatnonzero(keep).tolist() == expected


def test_resample_on_correct_in_several_groups_and_by_what_was_not_understood(make_episode):
    valid = np.ones((6, 2), bool)
    valid[0, 0] = valid[3, 1] = False
    reward = [[0, 1]] * 6
    episode = make_episode(reward, np.ones((6, 2)), group=[0, 0, 0, 1, 1, 1], action_valid=jnp.asarray(valid))
    keep = of_episodes(resample_on_correct)(episode, num_kept=2, min_failures=0)
    assert keep.tolist() == [False, True, True, False, True, True]
    dropped = episode.replace(keep=jnp.array([True, False, True, True, True, True]))
    assert of_episodes(resample_on_correct)(dropped, num_kept=2, min_failures=0).tolist() == [1, 0, 1, 0, 1, 1]


def test_resample_on_correct_refuses(episode):
    with pytest.raises(ValueError, match=r"`num_kept` must be at least `min_failures` \+ `min_successes`, got 3 and 2"):
        of_episodes(resample_on_correct)(episode, num_kept=3)
    with pytest.raises(ValueError, match="`errors` must be an entry of `episode.extras`, got 'bad'; there is none"):
        of_episodes(resample_on_correct)(episode, errors="bad")
