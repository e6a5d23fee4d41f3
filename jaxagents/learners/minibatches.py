"""Passes over a rollout in shuffled minibatches, which are the same on any number of devices."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxagents.learners.optimizers import Trainable, apply_updates, learning_rate_of, take_if
from jaxagents.ops.packing import pack, unpack
from jaxagents.types import Array, Params, PyTree, Rollout


def block_size(num_sequences: int, num_envs: int, num_minibatches: int) -> int:
    """Returns how many consecutive items are shuffled among themselves.

    Items are numbered `environment * num_sequences + sequence`. A block is the sequences of one environment if they
    divide into the minibatches, else the items of as many environments as needed. Every minibatch takes an equal share
    of every block, so a device that has whole blocks has its share of every minibatch.

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
    """Draws item indices for every minibatch of every epoch; each epoch visits each item once.

    Args:
        key: random key, the same on every device.
        num_items: number of items of this device, a multiple of `block`.
        block: see `block_size`.
        num_epochs: number of passes over the items.
        num_minibatches: number of minibatches, which divides `block`.
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
        num_sequences: number of items of an environment.
        num_envs: number of environments of this device.
        num_epochs: number of passes over the items.
        num_minibatches: number of minibatches per pass.
        axis_name: mapped axis over which the environments are spread.

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

    The item is packed below random high bits, so that one array is sorted instead of a pair, which is several times
    faster than `argsort` on XLA:CPU. Equal random bits (probability below `num_items^3 / 2^32`) keep their order.
    """
    item_bits = max(num_items - 1, 1).bit_length()
    if item_bits > 16:
        return jax.random.permutation(key, num_items)
    low = jnp.uint32((1 << item_bits) - 1)
    packed = (jax.random.bits(key, (num_items,), jnp.uint32) & ~low) | jnp.arange(num_items, dtype=jnp.uint32)
    return (jnp.sort(packed) & low).astype(jnp.int32)


def sequence_length_of(rollout: Rollout, sequence_length: int | None) -> int:
    """Returns how many steps stay together: as requested, or else 1 without memory and the whole rollout with memory.

    Raises:
        ValueError: the length does not divide the steps of the rollout.
    """
    num_steps = rollout.transition.terminated.shape[0]
    length = sequence_length or (num_steps if jax.tree.leaves(rollout.carry) else 1)
    if num_steps % length:
        raise ValueError(f"`sequence_length` must divide the {num_steps} steps of a rollout, got {length}.")
    return length


def to_sequences(batch: PyTree, length: int) -> PyTree:
    """Cuts `[T, B, ...]` into `[B * T / length, length, ...]`, item = environment * (T / length) + sequence.

    Args:
        batch: record with a field `carry`, given before every step, of which the first of a sequence is kept.
        length: length of a sequence, which divides T.
    """

    def cut(leaf: Array) -> Array:
        steps, envs, *rest = leaf.shape
        leaf = leaf.reshape(steps // length, length, envs, *rest)
        return jnp.moveaxis(leaf, 2, 0).reshape(envs * (steps // length), length, *rest)

    sequences = jax.tree.map(cut, batch)
    return sequences.replace(carry=jax.tree.map(lambda leaf: leaf[:, 0], sequences.carry))


def update_in_minibatches(
    objective: Callable[[Params, PyTree], tuple[Array, tuple[dict[str, Array], PyTree]]],
    params: Params,
    opt_state: optax.OptState,
    optimizer: optax.GradientTransformation,
    sequences: PyTree,
    indices: Array,
    *,
    stop: Callable[[dict[str, Array]], Array] | None = None,
    trainable: Trainable = None,
    axis_name: str | None = None,
) -> tuple[Params, optax.OptState, dict[str, Array], PyTree]:
    """Takes one optimiser step for every minibatch.

    Args:
        objective: `(params, minibatch) -> (loss, (metrics, summaries))`; leaves of the minibatch are `[S, n, ...]`.
        params: all parameters.
        opt_state: state of the optimiser.
        optimizer: an optax transformation.
        sequences: sequences from `to_sequences`.
        indices: int32 `[minibatches, n]`, see `minibatches_of_device`.
        stop: predicate on the metrics of a minibatch; from the first true one on, minibatches only advance schedules.
            None: never stops.
        trainable: parameters that are trained, see `apply_updates`.
        axis_name: mapped device axis to average gradients and metrics over.

    Returns:
        Parameters, optimiser state, means of the metrics, and this device's sums of the summaries.
    """

    def step(carry: tuple[Params, optax.OptState, Array], index: Array) -> tuple[Any, Any]:
        params, opt_state, stopped = carry
        grads, (metrics, summary) = jax.grad(objective, has_aux=True)(params, _take(sequences, index))
        *new, gradient_norm = apply_updates(
            grads, params, opt_state, optimizer, axis_name=axis_name, trainable=trainable
        )
        metrics = metrics if axis_name is None else jax.lax.pmean(metrics, axis_name)
        metrics = metrics | {"gradient_norm": gradient_norm} | learning_rate_of(optimizer, opt_state)
        if stop is not None:
            stopped = stopped | stop(metrics)
            new = take_if(~stopped, new, [params, opt_state])
            metrics["stopped"] = stopped.astype(jnp.float32)
        shapes.append(jax.eval_shape(lambda: metrics))  # `unpack` reads these below.
        return (*new, stopped), (pack(metrics), summary)

    shapes: list[PyTree] = []
    start = (params, opt_state, jnp.zeros((), bool))
    (params, opt_state, _), (metrics, summary) = jax.lax.scan(step, start, indices)
    summary = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), summary)
    means = [jnp.mean(stacked, axis=range(stacked.ndim - 1)) for stacked in metrics]
    return params, opt_state, unpack(means, shapes[0]), summary


def _take(sequences: PyTree, index: Array) -> PyTree:
    """Gathers items and puts time first."""
    taken = jax.tree.map(lambda leaf: leaf[index], sequences)
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), taken.replace(carry=())).replace(carry=taken.carry)
