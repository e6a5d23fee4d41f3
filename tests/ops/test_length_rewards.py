"""Rewards of lengths against numbers made by hand."""

import jax.numpy as jnp
import numpy as np

from jaxagents.ops.length_rewards import cosine_length, group_length
from jaxagents.types import EpisodeView


def test_a_cosine_of_the_length_by_hand(make_episode):
    """Lengths 3 of two turns, 6 and 2 of at most 4: shares of 3/4, 1 and 1/2 of the way."""
    won = jnp.array([True, True, False, False])
    episode = make_episode([[5.0, 1.0]] * 4, [[2, 1], [3, 3], [2, 0], [3, 1]], success=won)
    reward = cosine_length(EpisodeView(episode=episode), max_tokens=4.0)
    near = (1.0 - np.sqrt(0.5)) / 2.0
    np.testing.assert_allclose(reward[0], [0.0, 0.1 + 0.9 * near], rtol=1e-5)
    np.testing.assert_allclose(reward[1], [0.0, 0.1], rtol=1e-5)
    np.testing.assert_allclose(reward[2], [-0.1 - 0.9 * 0.5, 1.0], rtol=1e-5)  # The second turn did not take place.
    np.testing.assert_allclose(reward[3], [0.0, -0.1], rtol=1e-5)


def test_lengths_are_compared_within_groups(make_episode):
    """Lengths 1, 2, 3, 1 of one task, and 2, 2 of another one."""
    won = jnp.array([True, True, True, False, True, False])
    episode = make_episode([[1.0]] * 6, [[1], [2], [3], [1], [2], [2]], group=[0, 0, 0, 0, 1, 1], success=won)
    reward = group_length(EpisodeView(episode=episode), coefficient=2.0)[:, 0]
    np.testing.assert_allclose(reward, [2.0, 1.0, 0.0, 1.0, 1.0, 1.0], atol=1e-6)


def test_long_failures_lose_and_dropped_rows_are_not_compared_with(make_episode):
    won, keep = jnp.array([True, False, True]), jnp.array([True, True, False])
    episode = make_episode([[0.0]] * 3, [[1], [2], [3]], success=won, keep=keep)
    np.testing.assert_allclose(group_length(EpisodeView(episode=episode))[:2, 0], [0.5, -0.5], atol=1e-6)
