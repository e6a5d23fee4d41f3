"""Shuffled minibatches that are the same on any number of devices."""

import jax
import jax.numpy as jnp

from jaxagents.types import Array


def block_size(num_sequences: int, num_envs: int, num_minibatches: int) -> int:
    """Returns how many consecutive items are shuffled among themselves.

    Items are numbered `environment * num_sequences + sequence`. A block is the sequences of one environment where they
    divide into the minibatches, else the items of as many environments as that takes. Every minibatch takes an equal
    share of every block, so a device that owns whole blocks owns its share of every minibatch.

    Raises:
        ValueError: the items do not divide into the minibatches.
    """
    if num_sequences % num_minibatches == 0:
        return num_sequences
    if num_envs * num_sequences % num_minibatches == 0 and num_envs % num_minibatches == 0:
        return num_minibatches * num_sequences
    valid = [n for n in range(1, num_envs * num_sequences + 1) if num_sequences % n == 0 or num_envs % n == 0]
    nearest = sorted(sorted(valid, key=lambda n: abs(n - num_minibatches))[:2])
    raise ValueError(
        "`num_minibatches` must divide "
        + (
            f"the {num_envs} environments or episodes of a device"
            if num_sequences == 1
            else f"the {num_sequences} sequences of an environment or the {num_envs} environments of a device"
        )
        + f", got {num_minibatches}; try {' or '.join(map(str, nearest))}."
    )


def shuffled_minibatches(
    key: Array, num_items: int, block: int, *, num_epochs: int, num_minibatches: int, first_block: Array | int = 0
) -> Array:
    """Draws item indices of every minibatch of every epoch; each epoch visits each item once.

    Args:
        key: random key, the same on every device.
        num_items: items of this device, a multiple of `block`.
        block: see `block_size`.
        num_epochs: passes over the items.
        num_minibatches: divides `block`.
        first_block: global index of this device's first block.

    Returns:
        int32 `[num_epochs * num_minibatches, num_items // num_minibatches]`.
    """
    blocks = num_items // block

    def permutations(block_index: Array) -> Array:
        keys = jax.random.split(jax.random.fold_in(key, block_index), num_epochs)
        order = jax.vmap(lambda k: random_order(k, block))(keys)
        return order.reshape(num_epochs, num_minibatches, block // num_minibatches)

    index = jnp.arange(blocks)
    order = jax.vmap(permutations)(first_block + index) + block * index[:, None, None, None]
    return order.transpose(1, 2, 0, 3).reshape(num_epochs * num_minibatches, num_items // num_minibatches)


def minibatches_of_device(
    key: Array,
    num_sequences: int,
    num_envs: int,
    *,
    num_epochs: int,
    num_minibatches: int,
    axis_name: str | None = None,
) -> Array:
    """Draws the minibatches of this device's share of a batch, see `block_size` and `shuffled_minibatches`.

    Args:
        key: random key, the same on every device.
        num_sequences: items of an environment.
        num_envs: of this device.
        num_epochs: passes over the items.
        num_minibatches: of a pass.
        axis_name: mapped axis over whose members the environments are spread.

    Returns:
        int32 `[num_epochs * num_minibatches, items of a minibatch]`.

    Raises:
        ValueError: the items do not divide into the minibatches.
    """
    block, num_items = block_size(num_sequences, num_envs, num_minibatches), num_sequences * num_envs
    first_block = jax.lax.axis_index(axis_name) * (num_items // block) if axis_name else 0
    return shuffled_minibatches(
        key, num_items, block, num_epochs=num_epochs, num_minibatches=num_minibatches, first_block=first_block
    )


def random_order(key: Array, num_items: int) -> Array:
    """Draws a permutation of `0 .. num_items - 1`, int32 `[num_items]`.

    The item is packed below random high bits, so that one array is sorted instead of a pair: several times faster than
    `argsort` on XLA:CPU. Equal random bits (chance below `num_items^3 / 2^32`) keep their order.
    """
    item_bits = max(num_items - 1, 1).bit_length()
    if item_bits > 16:
        return jax.random.permutation(key, num_items)
    low = jnp.uint32((1 << item_bits) - 1)
    packed = (jax.random.bits(key, (num_items,), jnp.uint32) & ~low) | jnp.arange(num_items, dtype=jnp.uint32)
    return (jnp.sort(packed) & low).astype(jnp.int32)
