"""Weights of the losses of tokens against numbers made by hand, on one device and on several."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.losses import aggregation

# Rows with 4, 1, 0 and 3 tokens.
MASK = jnp.arange(5)[None] < jnp.array([4, 1, 0, 3])[:, None]
ALL = [aggregation.token_mean, aggregation.sequence_mean, partial(aggregation.constant, max_tokens=10)]


@pytest.mark.parametrize(
    ("aggregate", "per_row"),
    [
        (aggregation.token_mean, [1 / 8, 1 / 8, 0, 1 / 8]),
        (aggregation.sequence_mean, [1 / 12, 1 / 3, 0, 1 / 9]),
        (partial(aggregation.constant, max_tokens=10), [1 / 40, 1 / 40, 0, 1 / 40]),
        # By default the length of the row.
        (aggregation.constant, [1 / 20, 1 / 20, 0, 1 / 20]),
    ],
)
def test_by_hand(aggregate, per_row):
    expected = np.where(MASK, np.array(per_row)[:, None], 0.0)
    np.testing.assert_allclose(aggregate(MASK), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(aggregate)(MASK), expected, rtol=1e-6)


@pytest.mark.parametrize("aggregate", [aggregation.token_mean, aggregation.sequence_mean])
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
    for aggregate in (aggregation.token_mean, aggregation.sequence_mean):
        weights = jax.vmap(partial(aggregate, axis_name="device"), axis_name="device")(mask)
        np.testing.assert_allclose(weights, 4.0 * mask)
