"""Rewards of thoughts and of the form of what is said, against numbers made by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.format_rewards import mean_format
from jaxagents.ops.thought_rewards import self_certainty, thought_length
from jaxagents.types import EpisodeView, Layout, TokenStatistics

LAYOUT = Layout(prompt=1, observation=1, thought=4, action=2, num_turns=2, context_turns=2)


@pytest.fixture(scope="module")
def view(make_episode):
    """Row 0 thinks two tokens, then none; row 1 thinks four, and takes no second turn."""
    episode = make_episode([[1.0, 2.0], [3.0, 0.0]], [[4, 2], [6, 0]], slot=8, layout=LAYOUT)
    place = jnp.arange(8)[None, None]
    thinks = (place >= 1) & (place <= jnp.asarray([[2, 0], [4, 0]])[..., None])
    entropy = jnp.broadcast_to(jnp.arange(8) / 10.0, (2, 2, 8))
    policy = TokenStatistics(log_prob=None, entropy=entropy, value=None)
    return EpisodeView(episode=episode.replace(thought_mask=thinks), policy=policy)


def bump(length, low, first, last, high):
    """UI-AGILE@a8f7658, reward.py:508-533."""
    rise = lambda x: (1 - np.cos(x * np.pi)) / 2  # noqa: E731
    if first < length <= last:
        return 1.0
    if low < length <= first:
        return rise((length - low) / (first - low))
    if last < length < high:
        return 1 - rise((length - last) / (high - last))
    return 0.0


def test_certainty_is_the_distance_from_uniform(view):
    given = jax.jit(partial(self_certainty, coefficient=0.5, num_tokens=8.0))(view)
    # Mean entropies of 0.15 and 0.25 nats; no thought, and no turn, add nothing.
    expected = [[1.0 + 0.5 * (np.log(8) - 0.15), 2.0], [3.0 + 0.5 * (np.log(8) - 0.25), 0.0]]
    np.testing.assert_allclose(given, expected, rtol=1e-6)


@pytest.mark.parametrize("limits", [(0, 2, 4, 6), (1, 3, 3.5, 5), (2, 8, 9, 10), (0, 1, 1.5, 4)])
def test_lengths_are_paid_as_released(view, limits):
    names = dict(zip(("low", "from_length", "to_length", "high"), map(float, limits)))
    given = jax.jit(partial(thought_length, **names))(view)
    # The second thought fills all of its room.
    expected = [[1.0 + 0.8 * bump(2, *limits) + 0.2, 2.0 + 0.8 * bump(0, *limits)], [3.0 + 0.8 * bump(4, *limits), 0.0]]
    np.testing.assert_allclose(given, expected, rtol=1e-6)


def test_turns_that_earned_too_little_get_nothing(view):
    given = thought_length(view, low=0.0, from_length=1.0, to_length=4.0, high=6.0, above=2.5)
    np.testing.assert_allclose(given, [[1.0, 2.0], [3.8, 0.0]], rtol=1e-6)


def test_the_form_of_all_turns_is_paid_with_the_last_one(view):
    valid = jnp.asarray([[True, False], [True, True]])
    given = jax.jit(partial(mean_format, coefficient=0.5))(
        view.replace(episode=view.episode.replace(action_valid=valid))
    )
    np.testing.assert_allclose(given, [[1.0, 2.0], [3.5, 0.0]])
    none = view.replace(episode=view.episode.replace(action_valid=jnp.zeros((2, 2), bool)))
    np.testing.assert_allclose(mean_format(none), [[1.0, 1.0], [2.0, 0.0]])
