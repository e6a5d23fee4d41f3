"""Changes of advantages by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops import credit_shaping
from jaxagents.types import EpisodeView

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
