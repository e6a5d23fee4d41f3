"""Weights of the losses of tokens against numbers made by hand, on one device and on several."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.losses import aggregation
from jaxagents.ops.episodes import mean_log_ratio
from jaxagents.types import TokenView

# Rows with 4, 1, 0 and 3 tokens.
MASK = jnp.arange(5)[None] < jnp.array([4, 1, 0, 3])[:, None]


def of_mask(aggregate):
    """Returns the aggregation as a function of the mask `[B, L]` of episodes of one turn."""

    def weigh(mask, **options):
        nothing = jnp.zeros(mask[:, None].shape, jnp.int32)
        view = TokenView(mask=mask[:, None], turn=nothing, sequence=nothing, behavior_log_prob=0.0 * nothing)
        return aggregate(view, **options)[:, 0]

    return weigh


token_mean, sequence_mean, turn_mean, constant = map(
    of_mask, (aggregation.token_mean, aggregation.sequence_mean, aggregation.turn_mean, aggregation.constant)
)
ALL = [token_mean, sequence_mean, turn_mean, partial(constant, max_tokens=10)]


@pytest.mark.parametrize(
    ("aggregate", "per_row"),
    [
        (token_mean, [1 / 8, 1 / 8, 0, 1 / 8]),
        (sequence_mean, [1 / 12, 1 / 3, 0, 1 / 9]),
        (turn_mean, [1 / 12, 1 / 3, 0, 1 / 9]),  # Of one turn each.
        (partial(constant, max_tokens=10), [1 / 40, 1 / 40, 0, 1 / 40]),
        # By default the length of the row.
        (constant, [1 / 20, 1 / 20, 0, 1 / 20]),
    ],
)
def test_by_hand(aggregate, per_row):
    expected = np.where(MASK, np.array(per_row)[:, None], 0.0)
    np.testing.assert_allclose(aggregate(MASK), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(aggregate)(MASK), expected, rtol=1e-6)


@pytest.mark.parametrize("aggregate", [token_mean, sequence_mean, turn_mean])
def test_means_have_weights_of_sum_one(aggregate):
    np.testing.assert_allclose(jnp.sum(aggregate(MASK)), 1.0, rtol=1e-6)


@pytest.mark.parametrize("aggregate", ALL)
@pytest.mark.parametrize("num_devices", [2, 4])
def test_the_mean_over_devices_is_the_loss_of_the_whole(aggregate, num_devices):
    # Devices with unequal numbers of tokens, with four of them one without any.
    per_token = jnp.asarray(np.random.default_rng(0).normal(size=MASK.shape), jnp.float32)
    expected = jnp.sum(aggregate(MASK) * per_token)

    def device_loss(mask, per_token):
        return jax.lax.pmean(jnp.sum(aggregate(mask, axis_name="device") * per_token), "device")

    parts = (leaf.reshape(num_devices, -1, 5) for leaf in (MASK, per_token))
    np.testing.assert_allclose(jax.vmap(device_loss, axis_name="device")(*parts), expected, rtol=1e-5)


@pytest.mark.parametrize("aggregate", ALL)
def test_nothing_that_counts_weighs_nothing(aggregate):
    np.testing.assert_array_equal(aggregate(jnp.zeros((3, 4), bool)), 0.0)


def test_one_token_on_many_devices_weighs_as_on_one():
    # The mean count over devices is then below one.
    mask = jnp.zeros((4, 1, 3), bool).at[2, 0, 1].set(True)
    for aggregate in (token_mean, sequence_mean, turn_mean):
        weights = jax.vmap(partial(aggregate, axis_name="device"), axis_name="device")(mask)
        np.testing.assert_allclose(weights, 4.0 * mask)


def test_a_sequence_is_what_an_agent_says_in_all_of_its_turns():
    # Two agents take turns 0 1 0; agent 0 says 1 + 2 tokens, agent 1 one of two that count.
    mask = jnp.array([[[True, False], [True, False], [True, True]]])
    view = TokenView(
        mask=mask,
        turn=jnp.zeros(mask.shape, jnp.int32),
        sequence=jnp.broadcast_to(jnp.array([0, 1, 0])[None, :, None], mask.shape),
        behavior_log_prob=jnp.zeros(mask.shape),
        num_sequences=2,
    )
    np.testing.assert_allclose(aggregation.sequence_mean(view), [[[1 / 6, 0], [1 / 2, 0], [1 / 6, 1 / 6]]], rtol=1e-6)
    log_prob = jnp.array([[[3.0, 9.0], [5.0, 9.0], [0.0, 6.0]]])
    np.testing.assert_allclose(mean_log_ratio(view, log_prob), [[[3, 3], [5, 5], [3, 3]]], rtol=1e-6)


def test_turns_of_an_episode_weigh_the_same_by_hand():
    # Turns of 1 and 3 tokens, and one that did not take place; one turn of 2 tokens; a row that counts nowhere.
    mask = jnp.arange(3)[None, None] < jnp.array([[1, 3, 0], [0, 2, 0], [0, 0, 0]])[:, :, None]
    nothing = jnp.zeros(mask.shape, jnp.int32)
    view = TokenView(mask=mask, turn=nothing, sequence=nothing, behavior_log_prob=0.0 * nothing)
    expected = mask * np.array([[1 / 4, 1 / 12, 0], [0, 1 / 4, 0], [0, 0, 0]])[:, :, None]
    np.testing.assert_allclose(aggregation.turn_mean(view), expected, rtol=1e-6)
    # Two agents: the first one has turns of 1 and 2 tokens, the other one a turn of 1.
    spoken = jnp.array([[[True, False], [True, False], [True, True]]])
    sequence = jnp.broadcast_to(jnp.array([0, 1, 0])[None, :, None], spoken.shape)
    zeros = jnp.zeros(spoken.shape)
    view = TokenView(mask=spoken, turn=0 * sequence, sequence=sequence, behavior_log_prob=zeros, num_sequences=2)
    shares = 1 / np.array([[[4, np.inf], [2, np.inf], [8, 8]]])
    np.testing.assert_allclose(aggregation.turn_mean(view), shares, rtol=1e-6)
