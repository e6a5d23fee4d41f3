"""Levels of quests with keys and doors: how near things lie, and whether the door is locked, as typed fields."""

import math
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagents.environments.quest import DOORKEY
from jaxagents.environments.text.experts import choose
from jaxagents.ops.checks import require_between
from jaxagents.types import Array, Environment, Task


def graded(environment: Environment, limits: Sequence[int] = (1, 3, 6)) -> Environment:
    """Gives quests with keys and doors levels, from very easy ones to the original quests.

    A level has four fields: whether the door is locked (0 or 1), and how near start, key and treasure lie (0 to
    `len(limits)`, see `prepare`). Its number is that of its fields in mixed radix, the first field being the most
    significant, so that 0 is the easiest level, and the last level is that of the original quests, which are also drawn
    without a level; level -1 draws all fields uniformly.

    Args:
        environment: `quest.make_environment` with only the kind doorkey.
        limits: distances in steps, increasing.

    Returns:
        The environment; everything but its tasks is unchanged.

    Raises:
        ValueError: the quests are of other kinds, or the limits are not positive and increasing.
    """
    limits = tuple(limits)
    if not limits or limits[0] < 1 or list(limits) != sorted(set(limits)):
        raise ValueError(f"`limits` must be positive and increasing, got {limits}; try (1, 3, 6).")
    example = environment.sample_task(jax.random.key(0))
    if "door" not in example or environment.observation_space.shape[-1] != 6 or int(example["kind"]) != DOORKEY:
        raise ValueError("`environment` must be of quests with keys and doors alone; try environment.kinds=[doorkey].")
    sizes = field_sizes(limits)

    def sample_task(key: Array, level: Array | None = None) -> Task:
        task = environment.sample_task(key)
        if level is None:
            return task
        draw_key, place_key = jax.random.split(jax.random.fold_in(key, 1))
        drawn = jax.random.randint(draw_key, (len(sizes),), 0, jnp.asarray(sizes))
        given = jnp.stack(jnp.unravel_index(jnp.maximum(level, 0), sizes))
        return prepare(place_key, task, jnp.where(jnp.asarray(level) < 0, drawn, given), limits)

    return replace(environment, sample_task=sample_task, num_levels=math.prod(sizes))


def with_hopeless(environment: Environment, share: float = 0.6) -> Environment:
    """Removes the key from a share of the quests that level -1 draws, so that they cannot be solved.

    The door stays locked, and all else is as in the original quests: a broad distribution of tasks, many of which are
    impossible, as in randomly generated games.

    Args:
        environment: environment of `graded`.
        share: share of the levels drawn by level -1.

    Returns:
        The environment; given levels, and quests without a level, are unchanged.

    Raises:
        ValueError: the share is not in [0, 1].
    """
    require_between("share", share, 0.0, 1.0)

    def sample_task(key: Array, level: Array | None = None) -> Task:
        task = environment.sample_task(key, level)
        if level is None:
            return task
        plain = environment.sample_task(key)
        lost = jax.random.bernoulli(jax.random.fold_in(key, 2), share) & (jnp.asarray(level) < 0)
        hopeless = plain | {"key": jnp.full_like(plain["key"], -1)}
        return jax.tree.map(lambda one, other: jnp.where(lost, one, other), hopeless, task)

    return replace(environment, sample_task=sample_task)


def field_sizes(limits: Sequence[int] = (1, 3, 6)) -> tuple[int, ...]:
    """Returns the number of values of each of the fields locked, start, key and treasure."""
    return (2, *(len(limits) + 1,) * 3)


def prepare(key: Array, task: Task, fields: Array, limits: Sequence[int]) -> Task:
    """Redraws the places of a quest, as near as its level says, on the same sides of the door.

    Args:
        key: PRNG key.
        task: task of a quest with a key and a door.
        fields: int32 `[4]`: 0 if door and key are removed; then the maximum distances, over rows and columns, from the
            start to the key (or to the place of a removed door), from the key to the door, and from the treasure to the
            door, as indices into `limits`, of which the one past the last means no limit.
        limits: distances in steps, increasing.

    Returns:
        The task.
    """
    walls, door = task["walls"], task["door"]
    size = walls.shape[0]
    rows, columns = jnp.mgrid[:size, :size]
    beyond = jnp.asarray((*limits, 2 * size))[fields]
    # The wall is in the column of the door, or in its row.
    is_column = walls[door[0] - 1, door[1]] | walls[(door[0] + 1) % size, door[1]]
    offset = jnp.where(is_column, columns - door[1], rows - door[0])
    own = jnp.sign(offset) == jnp.sign(offset[task["start"][0], task["start"][1]])

    def draw(index: int, where: Array, anchor: Array) -> Array:
        near = jnp.abs(rows - anchor[0]) + jnp.abs(columns - anchor[1]) <= beyond[index]
        cell = choose(jax.random.fold_in(key, index), (where & near & ~walls).reshape(-1))
        return jnp.stack(jnp.divmod(cell, size)).astype(jnp.int32)

    locked = fields[0] > 0
    found = draw(2, own, door)
    anchor, free = jnp.where(locked, found, door), own.at[found[0], found[1]].set(own[found[0], found[1]] & ~locked)
    nowhere = jnp.full_like(door, -1)
    places = {"start": draw(1, free, anchor), "treasure": draw(3, ~own & (offset != 0), door)}
    return task | places | {"key": jnp.where(locked, found, nowhere), "door": jnp.where(locked, door, nowhere)}
