"""What groups have to compare, by hand."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.group_metrics import distinct_successes, group_metrics, majority_success, pass_at_k


@pytest.fixture(scope="module")
def metrics_of():
    return jax.jit(lambda episode: {name: mean.value for name, mean in group_metrics(episode).items()})


def test_by_hand(make_episode, metrics_of):
    # Standard deviations 1 and 0 of two and one episodes; states 4 and 5 are met by both of the first group.
    fingerprint = jnp.asarray([[4, 5, 6], [5, 4, 0], [4, 7, 0]], jnp.uint32)
    episode = make_episode(
        [[0, 0, 2], [0, 0, 0], [1, 1, 0]], [[1, 1, 1], [2, 1, 0], [1, 1, 0]], group=[0, 0, 1], fingerprint=fingerprint
    )
    actual = metrics_of(episode)
    np.testing.assert_allclose(actual["group_return_deviation"], 2 / 3, rtol=1e-6)
    np.testing.assert_allclose(actual["repeated_state_rate"], 4 / 7, rtol=1e-6)
    alone = metrics_of(episode.replace(keep=jnp.asarray([True, False, True])))
    np.testing.assert_allclose(alone["group_return_deviation"], 0.0)
    np.testing.assert_allclose(alone["repeated_state_rate"], 0.0)


def test_pass_at_k_by_hand_and_by_counting():
    # 2 of 4 right: one of 1, two, three drawn without replacement.
    for k, expected in ((1, 1 / 2), (2, 1 - 1 / 6), (3, 1.0), (4, 1.0)):
        np.testing.assert_allclose(pass_at_k(jnp.array(2), num_samples=4, k=k), expected, rtol=1e-6)
    for correct, k in itertools.product(range(6), range(1, 6)):
        draws = list(itertools.combinations([True] * correct + [False] * (5 - correct), k))
        expected = np.mean([any(draw) for draw in draws])
        np.testing.assert_allclose(pass_at_k(jnp.array(correct), num_samples=5, k=k), expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="`k` must be from 1 to the 4 samples of a task, got 5."):
        pass_at_k(jnp.array(2), num_samples=4, k=5)


def test_majorities_by_hand():
    answer = jnp.array([[7, 7, 3, 3, 3], [1, 1, 2, 2, 4], [5, 5, 5, 5, 5]])[..., None]
    votes = jnp.array([[True] * 5, [True] * 5, [False] * 5]).at[0, 4].set(False).at[0, 3].set(False)
    success = jnp.array([[True, True, False, False, False], [True, True, False, False, False], [True] * 5])
    # Who does not vote does not count: 7 has two votes and 3 one. Two answers are level. Nobody votes.
    np.testing.assert_allclose(majority_success(answer, votes, success), [1.0, 0.5, 0.0])
    # Answers of several tokens are the same where all tokens are.
    pairs = jnp.array([[[1, 2], [1, 3], [1, 2]]])
    ones = jnp.ones((1, 3), bool)
    np.testing.assert_allclose(majority_success(pairs, ones, jnp.array([[False, True, False]])), [0.0])


def test_distinct_successes_by_hand():
    history = jnp.array(
        [[[7, 1], [7, 2], [7, 1], [7, 3], [7, 9]], [[8, 5], [8, 5], [8, 0], [8, 0], [8, 4]]], jnp.uint32
    )
    valid = jnp.ones((2, 5, 2), bool).at[1, 2, 1].set(False).at[0, 4, 1].set(False)
    success = jnp.array([[True, True, True, False, True], [False, True, True, True, False]])
    # By way of 1 twice, of 2, and at once: three. Of 5 once rightly, at once, and of a state that is called 0: three.
    np.testing.assert_array_equal(jax.jit(distinct_successes)(history, valid, success), [3.0, 3.0])
    np.testing.assert_array_equal(distinct_successes(history, valid, success & False), [0.0, 0.0])
