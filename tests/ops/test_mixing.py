"""Weights of own episodes and demonstrations in one batch, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.mixing import communicated, guided, mixed
from jaxagents.types import EpisodeView


def test_each_part_is_a_mean_over_its_own_tokens(make_episode):
    """Six own tokens of two rows, two demonstrated ones: shares of 3/4 and 1/4."""
    episode = make_episode([[1.0], [0.0], [1.0]], [[3], [3], [2]], control=jnp.array([False, False, True]))
    advantage = jnp.where(episode.action_mask, jnp.array([2.0, -1.0, 7.0])[:, None, None], 0.0)
    actual = np.asarray(jax.jit(mixed)(EpisodeView(episode=episode), advantage, weight=0.25))
    np.testing.assert_allclose(actual[:2, 0, 1], [0.75 / 0.75 * 2.0, 0.75 / 0.75 * -1.0], rtol=1e-6)
    np.testing.assert_allclose(actual[2, 0, 1], 0.25 / 0.25, rtol=1e-6)
    # The mean over all eight tokens of -A log p is what was asked for, for any log p.
    log_prob = np.log(np.array([[0.5], [0.25], [0.125]]))
    own = -(3 * 2.0 * np.log(0.5) + 3 * -1.0 * np.log(0.25)) / 6
    for weight in (0.0, 0.3, 1.0):
        loss = np.asarray(mixed(EpisodeView(episode=episode), advantage, weight=weight))[:, 0] * -log_prob
        total = np.sum(loss * np.asarray(episode.action_mask[:, 0])) / 8
        np.testing.assert_allclose(total, (1 - weight) * own - weight * np.log(0.125), rtol=1e-5)


def test_tokens_are_counted_over_devices(make_episode):
    """One device has three own tokens, the other one a single demonstrated one."""
    control = jnp.array([False, True])
    episodes = [make_episode([[1.0]], [[size]], control=control[i : i + 1]) for i, size in enumerate((3, 1))]
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), *episodes)
    ones = jnp.ones((2, 1, 1, 4))
    actual = jax.vmap(lambda e, a: mixed(EpisodeView(episode=e), a, axis_name="d", weight=0.5), axis_name="d")(
        both, ones
    )
    np.testing.assert_allclose(actual[:, 0, 0, 1], [0.5 / 0.75, 0.5 / 0.25], rtol=1e-6)


def test_batches_without_demonstrations_are_refused(make_episode):
    episode = make_episode([[1.0]], [[1]])
    with pytest.raises(ValueError, match="try learner=demonstrated"):
        mixed(EpisodeView(episode=episode), jnp.ones((1, 1, 4)))


def test_a_teacher_is_heard_where_an_own_answer_was_wrong(make_episode):
    """Two tasks, of which the first has a wrong answer of two tokens and a right one of three; the second none wrong.

    Eleven tokens count: own ones 2 + 3 + 2 = 7, of right answers and of the teacher's for the first task 3 + 2 + 3 = 8.
    """
    shown = jnp.array([False, False, False, True, True])
    episode = make_episode([[0.0], [1.0], [1.0], [1.0], [1.0]], [[2], [3], [2], [3], [1]], control=shown)
    episode = episode.replace(
        success=jnp.array([False, True, True, True, True]), fingerprint=jnp.array([[5], [5], [6], [5], [6]], jnp.uint32)
    )
    advantage = jnp.where(episode.action_mask, jnp.array([-1.0, 0.5, 2.0, 7.0, 7.0])[:, None, None], 0.0)
    actual = np.asarray(jax.jit(communicated)(EpisodeView(episode=episode), advantage, weight=0.3))
    wanted = 0.3 * 11 / 8
    expected = [-11 / 7, 11 / 7 * 0.5 + wanted, 11 / 7 * 2.0 + wanted, wanted, 0.0]
    np.testing.assert_allclose(actual[:, 0, 1], expected, rtol=1e-6)


def test_communicated_needs_a_teacher(make_episode):
    with pytest.raises(ValueError, match="try learner=demonstrated"):
        communicated(EpisodeView(episode=make_episode([[1.0]], [[1]])), jnp.ones((1, 1, 4)))


def test_thoughts_are_shown_and_actions_are_not(make_episode):
    """Two own answers of three and two tokens, one shown row of four, the first three of which are a thought.

    Nine tokens count, five of them own and three shown thoughts.
    """
    shown = jnp.array([False, False, True])
    episode = make_episode([[0.0], [1.0], [1.0]], [[3], [2], [4]], slot=5, control=shown)
    order = jnp.cumsum(episode.action_mask, axis=2)
    episode = episode.replace(thought_mask=episode.action_mask & (order <= jnp.array([1, 1, 3])[:, None, None]))
    advantage = jnp.where(episode.action_mask, jnp.array([-1.0, 2.0, 7.0])[:, None, None], 0.0)
    actual = np.asarray(jax.jit(guided)(EpisodeView(episode=episode), advantage, weight=0.5))
    sampled = [actual[row][np.asarray(episode.action_mask[row])] for row in range(3)]
    np.testing.assert_allclose(sampled[0], [-9 / 5] * 3, rtol=1e-6)
    np.testing.assert_allclose(sampled[1], [18 / 5] * 2, rtol=1e-6)
    np.testing.assert_allclose(sampled[2], [0.5 * 9 / 3] * 3 + [0.0], rtol=1e-6)
    # The mean over all nine tokens of -A log p is what was asked for, for any log p.
    log_prob = np.log([0.5, 0.25, 0.125])
    loss = sum(-np.sum(tokens) * value for tokens, value in zip(sampled, log_prob)) / 9
    own = -(-1.0 * 3 * log_prob[0] + 2.0 * 2 * log_prob[1]) / 5
    np.testing.assert_allclose(loss, own - 0.5 * log_prob[2], rtol=1e-6)


def test_guided_needs_somebody_who_shows(make_episode):
    with pytest.raises(ValueError, match="try learner=demonstrated"):
        guided(EpisodeView(episode=make_episode([[1.0]], [[1]])), jnp.ones((1, 1, 4)))
