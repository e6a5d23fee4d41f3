"""Anchor states against numbers made by hand, sums over pairs of turns, and the estimators that they extend."""

from functools import partial, wraps

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops import credit
from jaxagents.ops import gigpo as gigpo_module
from jaxagents.types import EpisodeView


def of_episodes(estimator):
    """Returns the estimator as a function of episodes."""
    return wraps(estimator)(lambda episode, **options: estimator(EpisodeView(episode=episode), **options))


gigpo = jax.jit(of_episodes(gigpo_module.gigpo), static_argnames=("axis_name", "standardize"))
anchor_sizes = jax.jit(gigpo_module.anchor_sizes)


def per_turn(episode, advantage):
    """Returns `[B, T]`, after checking that all sampled tokens of a turn have the same advantage, and others none."""
    advantage = np.asarray(advantage)
    np.testing.assert_array_equal(advantage, np.where(episode.action_mask, advantage[..., 1:2], 0.0))
    return advantage[..., 1]


@pytest.fixture(scope="module")
def two_rows(make_episode):
    """Two episodes of three turns in one group; the second is over after two. Both meet states 7 and 9, one meets 8."""
    fingerprint = jnp.asarray([[7, 8, 9], [7, 9, 8]], jnp.uint32)
    return make_episode([[0, 0, 1], [0, 0, 0]], [[1, 2, 1], [3, 1, 0]], fingerprint=fingerprint)


@pytest.fixture(scope="module")
def walks(make_episode):
    """Returns random walks over few states in groups that are not contiguous, with dropped rows and silent turns."""
    generator = np.random.default_rng(0)
    rows, num_turns = 12, 5
    num_tokens = generator.integers(0, 4, size=(rows, num_turns))
    length = generator.integers(2, num_turns + 1, size=rows)
    valid = np.arange(num_turns)[None] < length[:, None]
    return make_episode(
        generator.normal(size=(rows, num_turns)),
        num_tokens * valid,
        group=generator.integers(0, 2, size=rows) * 5,
        valid=valid,
        fingerprint=jnp.asarray(generator.integers(0, 6, size=(rows, num_turns)) + 4294967290, jnp.uint32),
        keep=jnp.asarray(generator.random(rows) < 0.8),
    )


def partners(episode):
    """Returns bool `[B * T, B * T]`, by the definition: both count and are of one group and state."""
    count = np.asarray(episode.action_mask).any(-1) & episode.valid
    count = np.asarray(count & episode.keep[:, None]).reshape(-1)
    group = np.repeat(np.asarray(episode.group), episode.reward.shape[1])
    state = np.asarray(episode.fingerprint).reshape(-1)
    return np.outer(count, count) & (group[:, None] == group) & (state[:, None] == state)


def test_two_episodes_of_three_turns_by_hand(two_rows):
    # Returns to go 1/4, 1/2, 1 and 0, 0. State 7: 1/4 against 0; state 9: 1 against 0; state 8 was met once.
    of_turn = np.array([[1 / 8, 0, 1 / 2], [-1 / 8, -1 / 2, 0]])
    of_episode = np.array([[1 / 2] * 3, [-1 / 2, -1 / 2, 0]])
    actual = gigpo(two_rows, discount=0.5)
    assert actual.target is None
    np.testing.assert_allclose(per_turn(two_rows, actual.advantage), of_episode + of_turn, rtol=1e-6)
    weighted = gigpo(two_rows, discount=0.5, episode_weight=0.5, step_weight=2.0).advantage
    np.testing.assert_allclose(per_turn(two_rows, weighted), of_episode / 2 + of_turn * 2, rtol=1e-6)


def test_standardized_by_hand(two_rows):
    # Two different numbers are one standard deviation from their mean; a state that was met once stays at zero.
    actual = per_turn(two_rows, gigpo(two_rows, standardize=True).advantage)
    np.testing.assert_allclose(actual, [[2, 1, 2], [-2, -2, 0]], rtol=1e-4)
    actual = per_turn(two_rows, gigpo(two_rows, discount=0.5, standardize=True, epsilon=0.5).advantage)
    np.testing.assert_allclose(actual, [[0.5 + 0.2, 0.5, 1.0], [-0.5 - 0.2, -1.0, 0]], rtol=1e-5)


def test_a_state_met_twice_in_one_episode_is_an_anchor(make_episode):
    episode = make_episode([[0, 3, 6]], [[1, 1, 1]], fingerprint=jnp.asarray([[5, 5, 5]], jnp.uint32))
    # Returns to go 9, 9 and 6 around 8; an episode alone in its group has no advantage of its own.
    actual = per_turn(episode, gigpo(episode, discount=1.0).advantage)
    np.testing.assert_allclose(actual, [[1, 1, -2]], rtol=1e-6)


def test_the_same_fingerprint_in_two_groups_is_two_states(two_rows):
    apart = two_rows.replace(group=jnp.asarray([3, 8]))
    np.testing.assert_array_equal(gigpo(apart).advantage, 0.0)
    np.testing.assert_array_equal(anchor_sizes(apart), [[1, 1, 1], [1, 1, 0]])
    np.testing.assert_array_equal(anchor_sizes(two_rows), [[2, 1, 2], [2, 2, 0]])


@pytest.mark.parametrize("standardize", [False, True])
def test_agrees_with_sums_over_all_pairs_of_turns(walks, standardize):
    pair = partners(walks)
    assert {1, 2, 3} <= set(pair.sum(1).tolist())
    np.testing.assert_array_equal(anchor_sizes(walks).reshape(-1), pair.sum(1))
    reward = np.where(walks.valid, walks.reward, 0.0)
    returns = np.stack([reward[:, t:] @ 0.9 ** np.arange(5 - t) for t in range(5)], axis=1).reshape(-1)
    count = np.maximum(pair.sum(1), 1)
    difference = np.where(pair.any(1), returns - pair @ returns / count, 0.0)
    if standardize:
        difference = difference / (np.sqrt(pair @ difference**2 / count) + 1e-3)
    actual = gigpo(walks, discount=0.9, episode_weight=0.0, standardize=standardize, epsilon=1e-3).advantage
    np.testing.assert_allclose(per_turn(walks, actual).reshape(-1), difference, rtol=1e-4, atol=1e-5)


def test_without_step_advantages_it_is_grpo(walks):
    actual = gigpo(walks, step_weight=0.0, standardize=True).advantage
    np.testing.assert_allclose(actual, of_episodes(credit.grpo)(walks).advantage, rtol=1e-5, atol=1e-6)
    actual = gigpo(walks, step_weight=0.0).advantage
    np.testing.assert_allclose(actual, of_episodes(credit.dr_grpo)(walks).advantage, rtol=1e-5, atol=1e-6)


def test_states_that_never_repeat_add_nothing(walks):
    apart = walks.replace(fingerprint=jnp.arange(walks.reward.size, dtype=jnp.uint32).reshape(walks.reward.shape))
    np.testing.assert_array_equal(gigpo(apart, episode_weight=0.0).advantage, 0.0)


@pytest.mark.parametrize("standardize", [False, True])
def test_equal_returns_have_exactly_no_advantage(make_episode, standardize):
    # Returns to go are equal within each of two states.
    fingerprint = jnp.asarray([[1, 2]] * 7, jnp.uint32)
    episode = make_episode([[0.3, 0.1]] * 7, [[1, 1]] * 7, fingerprint=fingerprint)
    np.testing.assert_array_equal(gigpo(episode, standardize=standardize).advantage, 0.0)


def test_the_order_of_rows_and_the_names_of_groups_do_not_matter(walks):
    order = np.random.default_rng(1).permutation(12)
    shuffled = jax.tree.map(lambda leaf: leaf[order], walks).replace(group=7 - walks.group[order])
    expected = gigpo(walks).advantage[order]
    np.testing.assert_allclose(gigpo(shuffled).advantage, expected, rtol=1e-5, atol=1e-6)


def test_dropped_rows_and_silent_turns_are_as_if_they_were_not_there(walks):
    keep = np.asarray(walks.keep)
    rest = jax.tree.map(lambda leaf: leaf[keep], walks)
    actual = gigpo(walks).advantage
    np.testing.assert_allclose(actual[keep], gigpo(rest).advantage, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(actual[~keep], 0.0)
    off = ~np.asarray(walks.valid) | (anchor_sizes(walks) == 0)
    junk = walks.replace(fingerprint=jnp.where(off, jnp.uint32(1), walks.fingerprint))
    np.testing.assert_array_equal(gigpo(junk).advantage, actual)


@pytest.mark.slow
def test_jit_and_vmap_change_nothing_and_numbers_do_not_recompile(walks):
    fresh = jax.jit(
        lambda *args: of_episodes(gigpo_module.gigpo)(args[0], discount=args[1], step_weight=args[2]).advantage
    )
    for numbers in ((0.9, 1.0), (0.5, 0.7)):
        actual = fresh(walks, *numbers)
    assert fresh._cache_size() == 1
    expected = of_episodes(gigpo_module.gigpo)(walks, discount=0.5, step_weight=0.7).advantage
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    other = walks.replace(group=walks.group * 0)
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), walks, other)
    stacked = jax.vmap(partial(of_episodes(gigpo_module.gigpo), discount=0.5, step_weight=0.7))(both).advantage
    np.testing.assert_allclose(stacked[0], expected, rtol=1e-5, atol=1e-6)
    alone = of_episodes(gigpo_module.gigpo)(other, discount=0.5, step_weight=0.7).advantage
    np.testing.assert_allclose(stacked[1], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.exhaustive
def test_no_gradient_flows_through(walks):
    slope = jax.grad(lambda reward: jnp.sum(of_episodes(gigpo_module.gigpo)(walks.replace(reward=reward)).advantage))(
        walks.reward
    )
    np.testing.assert_array_equal(slope, 0.0)
