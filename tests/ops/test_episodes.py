"""Sums and masks over episodes of text against numbers made by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops import episodes

# Row 0 says two and then one token, row 1 one and then nothing. Slots: observation, three places.
NUM_TOKENS = [[2, 1], [1, 0]]


@pytest.fixture(scope="module")
def episode(make_episode):
    return make_episode([[1.0, 10.0], [5.0, 0.0]], NUM_TOKENS)


def test_first_and_last_sampled_token_of_a_turn(episode):
    #            o  a  a  _    o  a  _  _
    first = [[[0, 1, 0, 0], [0, 1, 0, 0]], [[0, 1, 0, 0], [0, 0, 0, 0]]]
    np.testing.assert_array_equal(episodes.first_action_token_mask(episode), np.array(first, bool))
    last = [[[0, 0, 1, 0], [0, 1, 0, 0]], [[0, 1, 0, 0], [0, 0, 0, 0]]]
    np.testing.assert_array_equal(episodes.last_action_token_mask(episode), np.array(last, bool))


def test_last_sampled_token_may_be_the_last_of_the_turn(make_episode):
    episode = make_episode([[0.0, 0.0]], [[3, 3]])
    np.testing.assert_array_equal(np.argwhere(episodes.last_action_token_mask(episode)[0]), [[0, 3], [1, 3]])
    np.testing.assert_array_equal(np.argwhere(episodes.first_action_token_mask(episode)[0]), [[0, 1], [1, 1]])


def test_nothing_sampled_has_no_first_or_last(make_episode):
    episode = make_episode([[1.0, 2.0]], [[0, 0]], valid=[[True, True]])
    for mask in (episodes.first_action_token_mask, episodes.last_action_token_mask, episodes.acting_turns):
        assert not mask(episode).any()


def test_turns_to_tokens(episode):
    per_token = episodes.to_tokens_of_turn(jnp.array([[7.0, -2.0], [3.0, 4.0]]), episode)
    np.testing.assert_array_equal(per_token, [[[7] * 4, [-2] * 4], [[3] * 4, [4] * 4]])


def test_return_by_hand(episode):
    np.testing.assert_allclose(episodes.episode_return(episode), [11.0, 5.0])
    np.testing.assert_allclose(episodes.episode_return(episode, 0.5), [6.0, 5.0])
    np.testing.assert_allclose(jax.jit(episodes.episode_return)(episode, jnp.float32(0.0)), [1.0, 5.0])


def test_turns_that_did_not_happen_have_no_reward(episode):
    broken = episode.replace(reward=episode.reward.at[1, 1].set(jnp.nan))
    np.testing.assert_allclose(episodes.episode_return(broken, 0.5), [6.0, 5.0])
    np.testing.assert_allclose(episodes.reward_of_acting_turns(broken), episode.reward)


def test_reward_of_silent_turns_goes_to_the_turn_before(make_episode):
    episode = make_episode([[1.0, 2.0, 4.0, 8.0]], [[0, 1, 0, 1]], valid=[[True] * 4])
    np.testing.assert_array_equal(episodes.acting_turns(episode), [[False, True, False, True]])
    np.testing.assert_allclose(episodes.reward_of_acting_turns(episode), [[0.0, 6.0, 0.0, 8.0]])


def test_dropped_rows_count_nowhere(make_episode):
    episode = make_episode([[1.0]] * 3, [[1]] * 3, group=[4, 4, 7], keep=jnp.array([True, False, True]))
    np.testing.assert_array_equal(episodes.credited_tokens(episode).sum(axis=(1, 2)), [1, 0, 1])
    # The dropped row is in nobody's group, but is told what its group is.
    expected = np.array([[1, 0, 0], [1, 0, 0], [0, 0, 1]], bool)
    np.testing.assert_array_equal(episodes.same_group(episode)[:, :, 0], expected)


def test_difference_and_deviation_by_hand():
    # Groups {0, 2, 4} with scores 1, 3, 8 and {1, 3} with scores 5, 5.
    group = jnp.array([0, 1, 0, 1, 0])
    same = (group[:, None] == group[None, :])[:, :, None]
    difference, count = episodes.difference_from_group(jnp.array([1.0, 5.0, 3.0, 5.0, 8.0])[:, None], same)
    np.testing.assert_allclose(difference[:, 0], [-3.0, 0.0, -1.0, 0.0, 4.0], rtol=1e-6)
    np.testing.assert_array_equal(count[:, 0], [3, 2, 3, 2, 3])
    deviation = np.sqrt((9 + 1 + 16) / 3)
    np.testing.assert_allclose(
        episodes.group_deviation(difference, same)[:, 0], [deviation, 0.0, deviation, 0.0, deviation], rtol=1e-6
    )


def test_equal_scores_differ_by_exactly_zero():
    difference, _ = episodes.difference_from_group(jnp.full((7, 1), 0.1), jnp.ones((7, 7, 1), bool))
    np.testing.assert_array_equal(difference, 0.0)
