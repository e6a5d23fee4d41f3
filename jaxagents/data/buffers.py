"""Replay buffers of transitions: ring buffers on the device, sampled uniformly or by priority.

Every leaf of a state has a leading axis of `num_shards`: shard `i` holds an equal part of the environments and provides
an equal part of every batch. Devices split that axis, so that samples depend on the number of shards but not on the
number of devices.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.data.sum_tree import get_leaves, init_sum_tree, sample_leaves, set_leaves
from jaxagents.ops.checks import check_counts
from jaxagents.ops.packing import Rows, pack_rows, unpack_rows
from jaxagents.types import Array, PyTree, State, Transition

_SMALLEST_PRIORITY = 1e-6  # Zero is reserved for sequences that do not exist.


class Buffer(NamedTuple):
    """A replay buffer of sequences of `n` steps; `n` is 1 for one-step learners.

    Attributes:
        init: `(transition, num_envs) -> state`; `transition` is one step without leading axes, as arrays or as
            `ShapeDtypeStruct`s, `num_envs` is the number of rows of every later `add`, over all devices.
        add: `(state, transition [T, B, ...]) -> state`; continues the rows of the previous call.
        sample: `(state, key) -> (transition [n, batch, ...], weight [batch], indices)`; `weight` fully corrects the
            loss for non-uniform sampling, and a power of it partially; `indices` are only for `set_priorities`.
        set_priorities: `(state, indices, priority [batch]) -> state`; a negative priority keeps the old one.
        can_sample: `(state) -> bool []`, whether there is enough to sample.
    """

    init: Callable[[PyTree, int], State]
    add: Callable[[State, Transition], State]
    sample: Callable[[State, Array], tuple[Transition, Array, PyTree]]
    set_priorities: Callable[[State, PyTree, Array], State]
    can_sample: Callable[[State], Array]


@struct.dataclass
class BufferState:
    """State of a buffer: S shards of R environments each, whose last L steps are kept in ring buffers.

    Attributes:
        experience: leaves `[S, R, L, ...]`, with narrow leaves joined, see `ops.packing.pack_rows`.
        position: int32 `[S]`, index at which the next step is written, the same in all shards.
        num_steps: int32 `[S]`, number of stored steps per environment, the same in all shards.
        shard: int32 `[S]`, global index of each shard, which is folded into random keys.
        priorities: float32 `[S, 2 P]`, sum trees; leaf `r L + t` is the sequence that begins at step `t` of
            environment `r`. None without priorities.
        max_priority: float32 `[S]`, the largest value ever set in each tree. None without priorities.
    """

    experience: Rows
    position: Array
    num_steps: Array
    shard: Array
    priorities: Array | None = None
    max_priority: Array | None = None


def make_uniform_buffer(
    *, capacity: int, batch_size: int, sequence_length: int = 1, min_size: int = 1, num_shards: int = 1
) -> Buffer:
    """Makes a buffer that draws all sequences with equal probability.

    Args:
        capacity: number of transitions to keep, over all environments.
        batch_size: number of sequences per sample, over all shards.
        sequence_length: n, number of steps per sequence.
        min_size: number of transitions required before the first sample.
        num_shards: number of equal shards, a multiple of the number of devices.

    Returns:
        The buffer; all weights are 1 and priorities are ignored.

    Raises:
        ValueError: a size is incompatible with another one.
    """
    _check_sizes(capacity, batch_size, sequence_length, min_size, num_shards)

    def init(transition: PyTree, num_envs: int) -> BufferState:
        return _init_state(transition, num_envs, capacity, sequence_length, num_shards)

    def add(state: BufferState, transition: Transition) -> BufferState:
        return jax.vmap(_write)(state, _to_rows(transition, state.shard.shape[0]))

    def sample(state: BufferState, key: Array) -> tuple[Transition, Array, PyTree]:
        draw = partial(_draw_uniformly, num_samples=batch_size // num_shards, sequence_length=sequence_length)
        indices = jax.vmap(draw)(state, _fold_in(key, state.shard))
        return read(state, indices, sequence_length), jnp.ones(indices.size, jnp.float32), indices

    def set_priorities(state: BufferState, indices: Array, priority: Array) -> BufferState:
        del indices, priority
        return state

    def can_sample(state: BufferState) -> Array:
        num_envs_of_shard = _ring_shape(state, num_axes=3)[1]
        num_steps = jnp.min(state.num_steps)
        return (num_steps >= sequence_length) & (num_steps * num_envs_of_shard * num_shards >= min_size)

    return Buffer(init=init, add=add, sample=sample, set_priorities=set_priorities, can_sample=can_sample)


def make_prioritized_buffer(
    *,
    capacity: int,
    batch_size: int,
    sequence_length: int = 1,
    min_size: int = 1,
    num_shards: int = 1,
    priority_exponent: float = 0.6,
) -> Buffer:
    """Makes a buffer that draws sequence `i` with probability `P_i = p_i^alpha / sum_j p_j^alpha`.

    New sequences get the largest value `p^alpha` so far. Weights are `1 / P_i`, divided by the largest of the batch;
    the caller raises them to the exponent beta.

    Args:
        capacity: number of transitions to keep, over all environments.
        batch_size: number of sequences per sample, over all shards.
        sequence_length: n, number of steps per sequence; the priority belongs to the whole sequence.
        min_size: number of transitions required before the first sample.
        num_shards: number of equal shards, a multiple of the number of devices.
        priority_exponent: alpha in `[0, 1]`; 0 is uniform. Paper: 0.6.

    Returns:
        The buffer.

    Raises:
        ValueError: a size is incompatible with another one, or the exponent is outside `[0, 1]`.

    References:
        Schaul et al. (2016), algorithm 1.

    Deviation: probabilities and the largest weight are computed per shard.
    """
    _check_sizes(capacity, batch_size, sequence_length, min_size, num_shards)
    if not 0.0 <= priority_exponent <= 1.0:
        raise ValueError(f"`priority_exponent` must be in [0, 1], got {priority_exponent}; try 0.5.")
    uniform = make_uniform_buffer(
        capacity=capacity,
        batch_size=batch_size,
        sequence_length=sequence_length,
        min_size=min_size,
        num_shards=num_shards,
    )

    def init(transition: PyTree, num_envs: int) -> BufferState:
        state = uniform.init(transition, num_envs)
        _, num_envs_of_shard, length = _ring_shape(state, num_axes=3)
        tree = init_sum_tree(num_envs_of_shard * length)
        return state.replace(
            priorities=jnp.zeros((num_shards, *tree.shape)), max_priority=jnp.ones(num_shards, jnp.float32)
        )

    def add(state: BufferState, transition: Transition) -> BufferState:
        new = partial(_new_priorities, num_new_steps=transition.terminated.shape[0], sequence_length=sequence_length)
        priorities = jax.vmap(set_leaves)(state.priorities, *jax.vmap(new)(state))
        return uniform.add(state, transition).replace(priorities=priorities)

    def sample(state: BufferState, key: Array) -> tuple[Transition, Array, PyTree]:
        draw = partial(sample_leaves, num_samples=batch_size // num_shards)
        indices = jax.vmap(draw)(state.priorities, _fold_in(key, state.shard))
        # In an empty buffer, all values are zero.
        values = jnp.maximum(jax.vmap(get_leaves)(state.priorities, indices), jnp.finfo(jnp.float32).tiny)
        weight = jnp.min(values, axis=1, keepdims=True) / values
        return read(state, indices, sequence_length), weight.reshape(-1), indices

    def set_priorities(state: BufferState, indices: Array, priority: Array) -> BufferState:
        priority = priority.reshape(indices.shape)
        new_values = jnp.maximum(priority, _SMALLEST_PRIORITY) ** priority_exponent
        values = jnp.where(priority < 0.0, jax.vmap(get_leaves)(state.priorities, indices), new_values)
        return state.replace(
            priorities=jax.vmap(set_leaves)(state.priorities, indices, values),
            max_priority=jnp.maximum(state.max_priority, jnp.max(values, axis=1)),
        )

    return uniform._replace(init=init, add=add, sample=sample, set_priorities=set_priorities)


def _check_sizes(capacity: int, batch_size: int, sequence_length: int, min_size: int, num_shards: int) -> None:
    check_counts(batch_size=batch_size, sequence_length=sequence_length, num_shards=num_shards)
    if batch_size % num_shards:
        raise ValueError(
            f"`batch_size` must be divisible by `num_shards`, got {batch_size} and {num_shards}; "
            f"try {num_shards * -(-batch_size // num_shards)}."
        )
    if min_size > capacity:
        raise ValueError(
            f"`min_size` must be at most `capacity`, got {min_size} and {capacity}; try a larger capacity."
        )


def _init_state(transition: PyTree, num_envs: int, capacity: int, sequence_length: int, num_shards: int) -> BufferState:
    """Returns an empty ring buffer of `capacity // num_envs` steps for every environment."""
    if num_envs % num_shards:
        raise ValueError(f"`num_envs` must be divisible by `num_shards`, got {num_envs} and {num_shards}; try 1 shard.")
    length = capacity // num_envs
    if length < sequence_length:
        raise ValueError(
            f"`capacity` must be at least `num_envs * sequence_length`, got {capacity} for {num_envs} and "
            f"{sequence_length}; try {num_envs * sequence_length} or more."
        )
    shape = (num_shards, num_envs // num_shards, length)
    empty = jax.tree.map(lambda leaf: jnp.zeros((*shape, *leaf.shape), leaf.dtype), transition)
    return BufferState(
        experience=pack_rows(empty, num_axes=3),
        position=jnp.zeros(num_shards, jnp.int32),
        num_steps=jnp.zeros(num_shards, jnp.int32),
        shard=jnp.arange(num_shards, dtype=jnp.int32),
    )


def _to_rows(transition: Transition, num_shards: int) -> Transition:
    """Reshapes `[T, B, ...]` to `[S, B / S, T, ...]`."""
    return jax.tree.map(
        lambda leaf: leaf.swapaxes(0, 1).reshape((num_shards, -1, leaf.shape[0], *leaf.shape[2:])), transition
    )


def _fold_in(key: Array, shard: Array) -> Array:
    """Returns one key per shard."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, shard)


def _write(state: BufferState, rows: Transition) -> BufferState:
    """Writes new steps `[R, T, ...]` to one shard."""
    num_new_steps, length = rows.terminated.shape[1], _ring_shape(state, num_axes=2)[1]
    if num_new_steps > length:
        raise ValueError(
            f"`capacity` must hold a whole rollout, got {length} steps of each environment for one of {num_new_steps}; "
            "try a larger `capacity`."
        )
    time = (state.position + jnp.arange(num_new_steps)) % length
    return state.replace(
        experience=jax.tree.map(
            lambda ring, new: ring.at[:, time].set(new), state.experience, pack_rows(rows, num_axes=2)
        ),
        position=(state.position + num_new_steps) % length,
        num_steps=jnp.minimum(state.num_steps + num_new_steps, length),
    )


def _draw_uniformly(state: BufferState, key: Array, *, num_samples: int, sequence_length: int) -> Array:
    """Draws complete sequences from one shard: indices int32 `[num_samples]`."""
    rows, length = _ring_shape(state, num_axes=2)
    num_starts = jnp.maximum(state.num_steps - sequence_length + 1, 1)
    # One draw of 32 bits for the pair, whose probabilities are equal up to a relative error of rows x starts / 2^32:
    # with small networks, every draw is a considerable part of an update.
    drawn = (jax.random.bits(key, (num_samples,)) % (rows * num_starts).astype(jnp.uint32)).astype(jnp.int32)
    row, start = drawn // num_starts, drawn % num_starts
    return row * length + (state.position - state.num_steps + start) % length


def _new_priorities(state: BufferState, *, num_new_steps: int, sequence_length: int) -> tuple[Array, Array]:
    """Returns the leaves of one shard that new steps affect, and their values, `[K]` each."""
    rows, length = _ring_shape(state, num_axes=2)
    offset = jnp.arange(1 - sequence_length, num_new_steps)
    if offset.size > length:
        raise ValueError(
            f"`capacity` must hold a whole rollout and a sequence, got {length} steps of each environment for "
            f"{num_new_steps} and {sequence_length}; try a larger `capacity`."
        )
    # Sequences that the new steps complete now exist; those that would extend beyond the newest step do not.
    complete = (offset <= num_new_steps - sequence_length) & (offset >= -state.num_steps)
    indices = jnp.arange(rows)[:, None] * length + ((state.position + offset) % length)[None]
    values = jnp.broadcast_to(jnp.where(complete, state.max_priority, 0.0)[None], indices.shape)
    return indices.reshape(-1), values.reshape(-1)


def read(state: BufferState, indices: Array, sequence_length: int) -> Transition:
    """Reads the sequences that begin at `indices` `[S, K]`: leaves `[sequence_length, S K, ...]`."""
    length = _ring_shape(state, num_axes=3)[2]
    row, start = indices // length, indices % length
    time = (start[..., None] + jnp.arange(sequence_length)[None, None]) % length
    shard = jnp.arange(indices.shape[0])[:, None, None]
    sequences = jax.tree.map(lambda leaf: leaf[shard, row[..., None], time], state.experience)
    steps = jax.tree.map(lambda leaf: leaf.reshape((-1, *leaf.shape[2:])).swapaxes(0, 1), sequences)
    return unpack_rows(steps)


def _ring_shape(state: BufferState, *, num_axes: int) -> tuple[int, ...]:
    """Returns the leading sizes of all experience: shards (with three axes), environments per shard, and steps."""
    return jax.tree.leaves(state.experience)[0].shape[:num_axes]
