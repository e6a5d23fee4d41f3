"""Changes of advantages by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops import credit_shaping
from jaxagents.ops.entropy_credit import entropy_aware
from jaxagents.ops.observation_credit import weigh_observations
from jaxagents.types import EpisodeView, TokenStatistics

ADVANTAGE = jnp.array([[[0.0, 2.0, -3.0, 0.0]], [[0.0, -1.0, 8.0, 0.5]]])


@pytest.fixture(scope="module")
def view(make_episode):
    """Two episodes of one turn of two and three tokens, of which the first is a thought."""
    episode = make_episode([[1.0], [0.0]], [[2], [3]])
    return EpisodeView(episode=episode.replace(thought_mask=episode.action_mask.at[:, :, 2:].set(False)))


def test_controlled_rows_get_their_advantage_and_others_keep_theirs(view):
    np.testing.assert_array_equal(credit_shaping.controlled(view, ADVANTAGE), ADVANTAGE)
    marked = view.replace(episode=view.episode.replace(control=jnp.array([False, True])))
    actual = credit_shaping.controlled(marked, ADVANTAGE, value=0.5)
    np.testing.assert_array_equal(actual, [ADVANTAGE[0], [[0.5] * 4]])


def test_weighted_parts(view):
    actual = credit_shaping.weighted_parts(view, ADVANTAGE, thought=0.0, action=2.0)
    np.testing.assert_array_equal(actual, [[[0, 0, -6, 0]], [[0, 0, 16, 1]]])


def test_uncertain_tokens_count_more(view):
    # Entropies of the five sampled tokens: 1, 3; 2, 0, 4. Their mean is 2, their deviation the root of 2.
    entropy = jnp.array([[[9.0, 1.0, 3.0, 9.0]], [[9.0, 2.0, 0.0, 4.0]]])
    judged = view.replace(policy=TokenStatistics(entropy=entropy))
    r = 0.5 / np.sqrt(2.0)
    expected = [[2.0 * (1 - r), -3.0 * (1 + r)], [-1.0, 8.0 * (1 - 2 * r), 0.5 * (1 + 2 * r)]]
    actual = np.asarray(entropy_aware(judged, ADVANTAGE, coefficient=0.5))
    np.testing.assert_allclose(actual[0, 0, 1:3], expected[0], rtol=1e-5)
    np.testing.assert_allclose(actual[1, 0, 1:], expected[1], rtol=1e-5)
    even = judged.replace(policy=TokenStatistics(entropy=jnp.full_like(entropy, 0.7)))
    np.testing.assert_allclose(entropy_aware(even, ADVANTAGE), ADVANTAGE, rtol=1e-6)

    def total(entropy):
        return jnp.sum(entropy_aware(view.replace(policy=TokenStatistics(entropy=entropy)), ADVANTAGE))

    np.testing.assert_array_equal(jax.grad(total)(entropy), 0.0)


def test_observations_weigh_what_they_are_told(view):
    actual = weigh_observations(view, ADVANTAGE + 1.0, num_tokens=2, weight=0.5)
    np.testing.assert_array_equal(actual, [[[0.5, 1.5, -2.0, 1.0]], [[0.5, 0.0, 9.0, 1.5]]])


def test_what_a_limit_cut_is_not_learned(view):
    np.testing.assert_array_equal(credit_shaping.without_truncated(view, ADVANTAGE), ADVANTAGE)
    cut = view.replace(episode=view.episode.replace(truncated=jnp.array([[False], [True]])))
    np.testing.assert_array_equal(credit_shaping.without_truncated(cut, ADVANTAGE), [ADVANTAGE[0], [[0.0] * 4]])


def test_uncertain_turns_are_kept_within_their_group(make_episode):
    """Mean entropies of turns: 2 and 5, 2, none; 0.7 twice, in another group, beside a row that is dropped."""
    episode = make_episode(np.zeros((4, 2)), [[2, 1], [1, 0], [1, 1], [1, 1]], group=[0, 0, 1, 1])
    episode = episode.replace(keep=jnp.array([True, True, True, False]))
    entropy = jnp.full(episode.tokens.shape, 9.0)
    entropy = entropy.at[0, 0, 1].set(1.0).at[0, 0, 2].set(3.0).at[0, 1, 1].set(5.0).at[1, 0, 1].set(2.0)
    entropy = entropy.at[2, :, 1].set(0.7)
    judged = EpisodeView(episode=episode, policy=TokenStatistics(entropy=entropy))
    advantage = jnp.where(episode.action_mask, 2.0, 0.0)

    @jax.jit
    def kept(share):
        changed = credit_shaping.uncertain_turns(judged, advantage, share=share)
        return jnp.any(changed != 0.0, axis=2).astype(jnp.int32)

    # Of three turns and of two: the first one of equal entropies comes first.
    for share, expected in {
        0.1: [[0, 1], [0, 0], [1, 0]],
        0.5: [[1, 1], [0, 0], [1, 0]],
        0.67: [[1, 1], [1, 0], [1, 1]],
        1.0: [[1, 1], [1, 0], [1, 1]],
    }.items():
        np.testing.assert_array_equal(kept(share)[:3], expected)
    whole = credit_shaping.uncertain_turns(judged, advantage, share=1.0)
    np.testing.assert_array_equal(whole[:3], advantage[:3])


def test_turns_after_which_a_part_is_reported_have_no_advantage(view):
    marked = view.replace(episode=view.episode.replace(extras={"refused": jnp.array([[1.0], [0.0]])}))
    actual = credit_shaping.without_part(marked, ADVANTAGE, part="refused")
    np.testing.assert_array_equal(actual, [[[0.0] * 4], ADVANTAGE[1]])
    with pytest.raises(ValueError, match="`part` must be an entry of `episode.extras`, got 'late'; there is refused"):
        credit_shaping.without_part(marked, ADVANTAGE, part="late")


def test_one_seat_alone_learns(view):
    seats = jnp.broadcast_to(jnp.asarray([[[0]], [[1]]]), ADVANTAGE.shape)
    marked = view.replace(episode=view.episode.replace(agent=seats))
    np.testing.assert_array_equal(credit_shaping.only_seat(marked, ADVANTAGE, seat=1), [[[0.0] * 4], ADVANTAGE[1]])
