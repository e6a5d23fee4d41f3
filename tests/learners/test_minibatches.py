"""Minibatches: who is in them, and that devices agree on it."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from jaxagents.learners.minibatches import block_size, random_order, shuffled_minibatches

KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("num_sequences", "num_envs", "num_minibatches", "expected"),
    [
        (8, 3, 4, 8),  # The sequences of one environment divide.
        (8, 3, 1, 8),
        (1, 8, 4, 4),  # Whole rollouts: four environments together.
        (3, 8, 2, 6),
        (6, 4, 4, 24),
    ],
)
def test_block_size_by_hand(num_sequences, num_envs, num_minibatches, expected):
    assert block_size(num_sequences, num_envs, num_minibatches) == expected


@pytest.mark.parametrize(
    ("num_sequences", "num_envs", "num_minibatches", "nearest"),
    [(8, 6, 5, "4 or 6"), (1, 6, 4, "2 or 3"), (3, 3, 2, "1 or 3")],
)
def test_indivisible_minibatches_are_refused_with_ones_that_work(num_sequences, num_envs, num_minibatches, nearest):
    items = f"{num_sequences} sequences of an environment or the {num_envs} environments"
    items = f"{num_envs} environments or episodes" if num_sequences == 1 else items
    message = f"`num_minibatches` must divide the {items} of a device, got {num_minibatches}; try {nearest}."
    with pytest.raises(ValueError, match=message):
        block_size(num_sequences, num_envs, num_minibatches)


@pytest.mark.parametrize(
    ("num_sequences", "num_envs", "num_minibatches", "num_epochs"),
    [(1, 1, 1, 2), (6, 2, 3, 2), (1, 6, 3, 1), (2, 4, 4, 3)],
)
def test_every_epoch_visits_every_item_once_and_every_minibatch_a_share_of_every_block(
    num_sequences, num_envs, num_minibatches, num_epochs
):
    num_items, block = num_sequences * num_envs, block_size(num_sequences, num_envs, num_minibatches)
    index = jax.jit(shuffled_minibatches, static_argnums=(1, 2), static_argnames=("num_epochs", "num_minibatches"))(
        KEY, num_items, block, num_epochs=num_epochs, num_minibatches=num_minibatches
    )
    assert index.shape == (num_epochs * num_minibatches, num_items // num_minibatches) and index.dtype == jnp.int32
    for epoch in np.asarray(index).reshape(num_epochs, -1):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(num_items))
    for minibatch in np.asarray(index):
        shares = np.bincount(minibatch // block, minlength=num_items // block)
        np.testing.assert_array_equal(shares, block // num_minibatches)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 30))
@settings(max_examples=200, deadline=None)
def test_block_size_divides_the_items_and_the_suggestions_work(num_sequences, num_envs, num_minibatches):
    try:
        block = block_size(num_sequences, num_envs, num_minibatches)
        assert (num_sequences * num_envs) % block == 0 and block % num_minibatches == 0
    except ValueError as error:
        for suggestion in re.findall(r"\d+", str(error).split("try")[1]):
            assert block_size(num_sequences, num_envs, int(suggestion))


def as_sets(index):
    return [frozenset(row) for row in np.asarray(index).tolist()]


def test_shuffles_differ_between_epochs_blocks_and_keys():
    draw = jax.jit(lambda key: shuffled_minibatches(key, 64, 16, num_epochs=2, num_minibatches=2))
    index = np.asarray(draw(KEY)).reshape(2, 2, 4, 8)  # Epoch, minibatch, block, share.
    members = [frozenset((index[epoch, 0, block] % 16).tolist()) for epoch in range(2) for block in range(4)]
    assert len(set(members)) == 8
    assert as_sets(draw(KEY)) == as_sets(draw(jax.random.key(0)))
    assert as_sets(draw(KEY)) != as_sets(draw(jax.random.key(1)))


@pytest.mark.parametrize(("num_sequences", "num_envs", "num_minibatches"), [(8, 4, 4), (1, 8, 2)])
def test_shards_of_two_devices_make_up_the_minibatches_of_one(num_sequences, num_envs, num_minibatches):
    num_items = num_sequences * num_envs
    block = block_size(num_sequences, num_envs, num_minibatches)
    assert block_size(num_sequences, num_envs // 2, num_minibatches) == block
    draw = partial(shuffled_minibatches, KEY, block=block, num_epochs=2, num_minibatches=num_minibatches)
    whole = jax.jit(lambda: draw(num_items=num_items))()
    # The first block is a traced number on devices.
    shard = jax.jit(lambda first: draw(num_items=num_items // 2, first_block=first))
    first, second = shard(0), shard(num_items // 2 // block)
    together = np.concatenate([first, np.asarray(second) + num_items // 2], axis=1)
    assert as_sets(together) == as_sets(whole)
    assert as_sets(first) != as_sets(second)


@pytest.mark.parametrize("num_items", [1, 2, 3, 16, 17, 2**16, 2**16 + 1])
def test_random_order_is_a_permutation(num_items):
    order = jax.jit(random_order, static_argnums=1)(KEY, num_items)
    assert order.dtype == jnp.int32
    np.testing.assert_array_equal(np.sort(order), np.arange(num_items))


def test_all_orders_are_equally_likely():
    orders = jax.jit(jax.vmap(lambda key: random_order(key, 3)))(jax.random.split(KEY, 6_000))
    _, counts = np.unique(np.asarray(orders) @ [9, 3, 1], return_counts=True)
    assert counts.size == 6 and stats.chisquare(counts).pvalue > 1e-3
