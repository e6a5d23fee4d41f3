"""Tasks for training and held-out tasks, split by a hash of their identity."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.types import Array, PyTree, Task

SampleTask = Callable[..., Task]
"""`(key, level=None) -> task`, as in `Environment`."""


def hash_integers(*arrays: Array) -> Array:
    """Computes a hash of the contents of integer arrays, in their order.

    `h = mix(n + sum_i mix(x_i ^ salt_i))` over all n elements in order, with the finaliser of MurmurHash3 as `mix` and
    a fixed salt per position; every bit of the result depends on every bit of every element. Shapes do not count.

    Args:
        *arrays: integers or bools of any shape; numbers that are equal modulo `2**32` count as the same.

    Returns:
        Uint32 `[]`.

    Raises:
        ValueError: an array has floats.

    References:
        Appleby (2011), MurmurHash3, `fmix32`.
    """
    dtypes = [jnp.result_type(array) for array in arrays]
    if not all(jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_) for dtype in dtypes):
        raise ValueError(f"`arrays` must be of integers or bools, got {', '.join(map(str, dtypes))}.")
    values = jnp.concatenate([jnp.ravel(jnp.asarray(array)).astype(jnp.uint32) for array in arrays])
    salts = np.arange(1, values.size + 1, dtype=np.uint32) * np.uint32(0x9E3779B9)
    return _mix(jnp.sum(_mix(values ^ jnp.asarray(salts)), dtype=jnp.uint32) + jnp.uint32(values.size))


def _mix(value: Array) -> Array:
    value = (value ^ (value >> 16)) * jnp.uint32(0x85EBCA6B)
    value = (value ^ (value >> 13)) * jnp.uint32(0xC2B2AE35)
    return value ^ (value >> 16)


def leaves_without_level(tree: PyTree) -> list[Array]:
    """Returns all leaves except those of fields named `level`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [leaf for path, leaf in leaves if not (path and str(path[-1]).strip(".[]'") == "level")]


def as_integers(tree: PyTree) -> list[Array]:
    """Returns the leaves as integers with the same bits."""

    def convert(leaf: Array) -> Array:
        leaf = jnp.asarray(leaf)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key_data(leaf)
        return jax.lax.bitcast_convert_type(leaf, jnp.uint32) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return [convert(leaf) for leaf in jax.tree.leaves(tree)]


def split_tasks(
    sample: Callable[[Array, Array], Task],
    identify: Callable[[Task], Array],
    *,
    num_levels: int = 1,
    held_out_fraction: float = 0.25,
) -> tuple[SampleTask, SampleTask]:
    """Splits a distribution of tasks into two that share no task.

    A task is held out if and only if its hash is below `held_out_fraction * 2**32`; both samplers propose tasks until
    one is on their side. The side of a task does not depend on the key, the level or the process.

    Args:
        sample: `(key, level) -> task`; `level` is int32 `[]` in `0 .. num_levels - 1`. Every level must have tasks on
            both sides, or the sampler of the other side never returns.
        identify: `(task) -> uint32 []`, a well-mixed hash of the task's identity, such as `hash_integers` gives.
        num_levels: number of difficulties; without a level, one is drawn uniformly, and a level out of range is
            clipped.
        held_out_fraction: fraction of the tasks that are held out, in (0, 1).

    Returns:
        `sample_task` and `sample_held_out_task`.

    Raises:
        ValueError: the fraction leaves one side empty.
    """
    if not 0.0 < held_out_fraction < 1.0:
        raise ValueError(f"`held_out_fraction` must be above 0 and below 1, got {held_out_fraction}; try 0.25.")
    bound = np.uint32(held_out_fraction * 2**32)

    def sampler(held_out: bool) -> SampleTask:
        def sample_task(key: Array, level: Array | None = None) -> Task:
            key, level_key = jax.random.split(key)
            drawn = jax.random.randint(level_key, (), 0, num_levels) if level is None else level
            drawn = jnp.clip(jnp.asarray(drawn, jnp.int32), 0, num_levels - 1)

            def on_the_other_side(carry: tuple[Array, Task]) -> Array:
                return (carry[0] < 0) | ((identify(carry[1]) < bound) != held_out)

            def propose(carry: tuple[Array, Task]) -> tuple[Array, Task]:
                attempt = carry[0] + 1
                return attempt, sample(jax.random.fold_in(key, attempt), drawn)

            # The loop begins without a proposal: the sampler is compiled once, and takes most of the compile time.
            nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(sample, key, drawn))
            return jax.lax.while_loop(on_the_other_side, propose, (jnp.full((), -1, jnp.int32), nothing))[1]

        return sample_task

    return sampler(held_out=False), sampler(held_out=True)


def level_of(level: int | Sequence[int] | None, index: Array) -> Array | int | None:
    """Returns the level of the task with a given global index.

    Args:
        level: level of all tasks; the levels of a list are used in turn, `level[index % len(level)]`; None: the task
            draws its own.
        index: int32 `[]`.

    Returns:
        int32 `[]`, or None.
    """
    if level is None or isinstance(level, int):
        return level
    return jnp.asarray(tuple(level), jnp.int32)[index % len(level)]


def draw_distinct(key: Array, allowed: Array | np.ndarray, count: int) -> Array:
    """Draws different indices in random order, the allowed ones first; for a few of them faster than a permutation.

    Args:
        key: PRNG key.
        allowed: bool `[A]`, allowed indices; if there are fewer than `count`, others follow.
        count: number of indices, at most A.

    Returns:
        Int32 `[count]`.
    """
    score = jax.random.uniform(key, allowed.shape) + jnp.where(allowed, 0.0, 2.0)
    indices = np.arange(allowed.shape[0])
    drawn = []
    for _ in range(count):
        drawn.append(jnp.argmin(score).astype(jnp.int32))
        score = jnp.where(indices == drawn[-1], jnp.inf, score)
    return jnp.stack(drawn)
