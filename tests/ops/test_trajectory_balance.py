"""Credit of trajectory balance, by hand and against the gradient of the loss itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.trajectory_balance import trajectory_balance
from jaxagents.types import EpisodeView, TokenStatistics


def _view(make_episode, log_prob):
    """Returns three episodes with returns 1, 0, 1, the first token of which is a thought; the third is alone."""
    episode = make_episode([[1.0], [0.0], [1.0]], [[2], [1], [2]], group=[0, 0, 1])
    thoughts = jnp.zeros_like(episode.action_mask).at[:, :, 1].set(True) & episode.action_mask
    return EpisodeView(episode=episode.replace(thought_mask=thoughts), policy=TokenStatistics(log_prob=log_prob))


def test_credit_of_two_trajectories_of_a_task(make_episode):
    """zeta is 0.5 (-2) - 1 - 1 / 0.25 = -6 and 0.5 (-4) = -2, their mean is -4; alone, zeta is its mean."""
    log_prob = jnp.zeros((3, 1, 4)).at[:, 0, 1].set(jnp.array([-2.0, -4.0, -9.0])).at[:, 0, 2].set(-1.0)
    credit = jax.jit(trajectory_balance)(_view(make_episode, log_prob), temperature=0.25, thought_weight=0.5)
    np.testing.assert_allclose(credit.advantage[0, 0], [0.0, 2.0, 4.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(credit.advantage[1, 0], [0.0, -2.0, 0.0, 0.0], rtol=1e-6)
    np.testing.assert_array_equal(credit.advantage[2], 0.0)
    assert credit.target is None


def test_credit_is_the_gradient_of_the_variance(make_episode):
    """`d mean (zeta - mean)^2 / d log_prob = -A / number of rows`, of tokens that were sampled."""
    log_prob = -jnp.arange(1.0, 13.0).reshape(3, 1, 4) / 7.0
    view = _view(make_episode, log_prob)
    view = view.replace(episode=view.episode.replace(group=jnp.zeros(3, jnp.int32)))
    weight = jnp.where(view.episode.thought_mask, 0.4, 1.0) * view.episode.action_mask

    def variance(log_prob):
        zeta = jnp.sum(weight * log_prob, axis=(1, 2)) - jnp.array([1.0, 0.0, 1.0]) / 0.1
        return jnp.mean(jnp.square(zeta - jnp.mean(zeta)))

    credit = trajectory_balance(view, temperature=0.1, thought_weight=0.4)
    np.testing.assert_allclose(credit.advantage, -3.0 * jax.grad(variance)(log_prob), rtol=1e-5, atol=1e-6)
    through = jax.grad(
        lambda x: jnp.sum(trajectory_balance(view.replace(policy=TokenStatistics(log_prob=x))).advantage)
    )
    np.testing.assert_array_equal(through(log_prob), 0.0)


def test_balanced_trajectories_have_no_credit(make_episode):
    """Probabilities in proportion to e^1 and e^0, also where the first was sampled more often."""
    log_prob = jnp.zeros((3, 1, 4)).at[:, 0, 1].set(jnp.array([-1.0, -2.0, -1.0]))
    credit = trajectory_balance(_view(make_episode, log_prob), temperature=1.0)
    np.testing.assert_allclose(credit.advantage, 0.0, atol=1e-6)


def test_games_of_several_seats_are_refused(make_episode):
    episode = make_episode([[1.0], [0.0], [1.0]], [[2], [1], [2]], group=[0, 0, 1])
    view = EpisodeView(episode=episode.replace(seat_return=jnp.ones((3, 2))), policy=TokenStatistics())
    with pytest.raises(ValueError, match="one seat for trajectory_balance"):
        trajectory_balance(view)
