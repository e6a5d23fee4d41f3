"""A replay buffer that draws a fixed fraction of every batch from marked steps."""

import jax
import jax.numpy as jnp

from jaxagents.data.buffers import Buffer, BufferState, make_uniform_buffer, read
from jaxagents.ops.packing import unpack_rows
from jaxagents.types import Array, PyTree, Transition


def make_stratified_buffer(
    *, capacity: int, batch_size: int, mark: str, share: float = 0.5, min_size: int = 1, num_shards: int = 1
) -> Buffer:
    """Makes a buffer of single steps that draws a fraction of each sample from marked steps, the rest from others.

    Both kinds are drawn uniformly; if there are none of one kind, its part is drawn from all steps.

    Args:
        capacity: number of transitions to keep, over all environments.
        batch_size: number of steps per sample, over all shards.
        mark: key of the mark in `extras`, bool `[T, B]`.
        share: fraction of the batch that is marked, in [0, 1]; rounded to whole steps of each shard.
        min_size: number of transitions required before the first sample.
        num_shards: number of equal shards, a multiple of the number of devices.

    Returns:
        The buffer; all weights are 1 and priorities are ignored.

    Raises:
        ValueError: a size is incompatible with another one, or the share is not in [0, 1]; in `init`, steps lack the
            mark.
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"`share` must be in [0, 1], got {share}; try 0.5.")
    uniform = make_uniform_buffer(capacity=capacity, batch_size=batch_size, min_size=min_size, num_shards=num_shards)
    num_drawn = batch_size // num_shards
    num_marked = round(share * num_drawn)

    def init(transition: Transition, num_envs: int) -> BufferState:
        if mark not in transition.extras:
            raise ValueError(f"`mark` must be a key of `extras`, {[*transition.extras]}, got {mark!r}.")
        return uniform.init(transition, num_envs)

    def draw(state: BufferState, key: Array) -> Array:
        """Draws steps from one shard, int32 `[num_drawn]`."""
        marked = unpack_rows(state.experience).extras[mark]
        length = marked.shape[1]
        age = (state.position - 1 - jnp.arange(length)) % length
        held = jnp.broadcast_to((age < state.num_steps)[None], marked.shape).reshape(-1)
        first_key, second_key = jax.random.split(key)
        with_mark = _draw_among(first_key, held & marked.reshape(-1), held, num_marked)
        without = _draw_among(second_key, held & ~marked.reshape(-1), held, num_drawn - num_marked)
        return jnp.concatenate([with_mark, without])

    def sample(state: BufferState, key: Array) -> tuple[Transition, Array, PyTree]:
        indices = jax.vmap(draw)(state, jax.vmap(jax.random.fold_in, (None, 0))(key, state.shard))
        return read(state, indices, 1), jnp.ones(indices.size, jnp.float32), indices

    return uniform._replace(init=init, sample=sample)


def _draw_among(key: Array, wanted: Array, held: Array, num_samples: int) -> Array:
    """Draws indices of entries that are `wanted`, bool `[K]`, or `held` if none is wanted."""
    counts = jnp.cumsum(jnp.where(jnp.any(wanted), wanted, held), dtype=jnp.int32)
    rank = jax.random.randint(key, (num_samples,), 0, jnp.maximum(counts[-1], 1))
    return jnp.searchsorted(counts, rank, side="right").astype(jnp.int32)
