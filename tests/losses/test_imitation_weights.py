"""Weights of imitation against numbers made by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.losses.imitation_weights import contrastive, reward_weighted
from jaxagents.types import TokenView

# Two groups of three episodes of up to two turns of two tokens: two successes and a failure; nothing but failures.
MASK = jnp.array(
    [[[1, 1], [1, 1]], [[1, 0], [0, 0]], [[1, 1], [1, 0]], [[1, 1], [0, 0]], [[1, 0], [0, 0]], [[0, 0]] * 2]
)
SUCCESS = jnp.array([True, True, False, False, False, False])
SHARE = jnp.array([2 / 3] * 3 + [0.0] * 3)


def view_of(mask=MASK, success=SUCCESS, share=SHARE):
    def of_rows(leaf):
        return jnp.broadcast_to(leaf[:, None, None], mask.shape)

    nothing = jnp.zeros(mask.shape, jnp.int32)
    turn = nothing + jnp.arange(2)[None, :, None]
    return TokenView(
        mask=mask.astype(bool),
        turn=turn,
        sequence=nothing,
        behavior_log_prob=0.0 * nothing,
        success=of_rows(success),
        group_success=of_rows(share),
    )


@pytest.mark.parametrize(
    ("weigh", "per_row"),
    [
        # exp(1 / 0.5) for a success, 1 for a failure, a mean over the five episodes that say something.
        (partial(reward_weighted, temperature=0.5), [np.e**2 / 5 / 4, np.e**2 / 5, 1 / 15, 1 / 10, 1 / 5, 0]),
        # R / (K + 1) = 1 / 3, times three episodes of a group, over eleven tokens.
        (partial(contrastive, group_size=3), [1 / 11, 1 / 11, -1 / 11, 0, 0, 0]),
        (partial(contrastive, group_size=3, failure=0.0), [1 / 11, 1 / 11, 0, 0, 0, 0]),
    ],
)
def test_by_hand(weigh, per_row):
    expected = np.where(MASK, np.array(per_row)[:, None, None], 0.0)
    np.testing.assert_allclose(weigh(view_of()), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(weigh)(view_of()), expected, rtol=1e-6)


def test_the_failures_of_a_group_weigh_as_much_as_one():
    share = jnp.array([1 / 3] * 3 + [0.0] * 3)
    weight = contrastive(view_of(success=jnp.arange(6) == 0, share=share), group_size=3)
    np.testing.assert_allclose(weight[:3, 0, 0] * 11 / 3, [1 / 2, -1 / 4, -1 / 4], rtol=1e-6)


def test_the_last_turn_alone():
    weight = reward_weighted(view_of(), temperature=0.4, last_turn=True)
    last = MASK & jnp.array([[0, 1], [1, 0], [0, 1], [1, 0], [1, 0], [0, 0]])[..., None]
    np.testing.assert_array_equal(weight != 0.0, last.astype(bool))
    np.testing.assert_allclose(weight[0, 1, 0] / weight[3, 0, 0], np.exp(2.5), rtol=1e-5)


def test_every_attempt_by_its_own_reward():
    """Seven turns are attempts; of the two successes the last turn is right, exp(1 / 0.5), all others are wrong."""
    weight = reward_weighted(view_of(), temperature=0.5, each_turn=True)
    per_turn = np.array([[1 / 2, np.e**2 / 2], [np.e**2, 0], [1 / 2, 1], [1 / 2, 0], [1, 0], [0, 0]]) / 7
    np.testing.assert_allclose(weight, np.where(MASK, per_turn[..., None], 0.0), rtol=1e-6)
