"""Layouts of quests: positions of walls, lava, key, door, charger and treasure of each kind."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxagents.environments.contextual_gridworld import sample_layout
from jaxagents.environments.text.experts import choose
from jaxagents.types import Array, Task

KINDS = ("goal", "doorkey", "lava", "timer", "moving", "key_first", "charger")
"""Kinds of quests; `task["kind"]` is an index into them."""
PATROL = 3
"""Cells between the ends of the way of a treasure that moves."""


def sample_quest(key: Array, kind: Array, *, size: int, kinds: Sequence[str], max_obstacles: int, wait: int) -> Task:
    """Draws a quest of one kind; every quest can be solved.

    Args:
        key: PRNG key.
        kind: int32 `[]`, index into `KINDS` of one of `kinds`.
        size: S, cells per side, at least 4.
        kinds: possible kinds; only their layouts are drawn.
        max_obstacles: maximum number of walls of `goal` and of cells of `lava`.
        wait: steps, see `quest.make_environment`.

    Returns:
        The task.
    """
    count_key, maze_key, turn_key, room_key = jax.random.split(key, 4)
    nowhere = jnp.full(2, -1, jnp.int32)
    task = dict.fromkeys(("key", "door", "charger"), nowhere)
    task |= {"walls": jnp.zeros((size, size), bool), "lava": jnp.zeros((size, size), bool)}
    task |= {"kind": jnp.asarray(kind, jnp.int32), "wait": jnp.int32(wait), "patrol": jnp.int32(0)}
    places = _distinct_cells(room_key, [jnp.ones((size, size), bool)] * 4)
    task |= dict(zip(("start", "treasure", "key", "charger"), places, strict=True))
    task["key"] = jnp.where(kind == KINDS.index("key_first"), task["key"], nowhere)
    task["charger"] = jnp.where(kind == KINDS.index("charger"), task["charger"], nowhere)

    def of(name: str, other: Task, task: Task) -> Task:
        return jax.tree.map(lambda new, old: jnp.where(kind == KINDS.index(name), new, old), task | other, task)

    if "goal" in kinds or "lava" in kinds:
        maze = sample_layout(maze_key, size, jax.random.randint(count_key, (), 0, max_obstacles + 1))
        ends = {"start": maze["start"], "treasure": maze["goal"]}
        task = of("goal", ends | {"walls": maze["walls"]}, task)
        task = of("lava", ends | {"lava": maze["walls"]}, task)
    if "doorkey" in kinds:
        task = of("doorkey", _turned(turn_key, _two_rooms(room_key, size)), task)
    if "moving" in kinds:
        first = jnp.arange(size) < size - PATROL
        start, treasure = _distinct_cells(room_key, [jnp.ones((size, size), bool), jnp.tile(first, (size, 1))])
        task = of("moving", {"start": start, "treasure": treasure, "patrol": jnp.int32(PATROL)}, task)
    return task


def _two_rooms(key: Array, size: int) -> Task:
    """Draws a wall with a locked door, start and key on its left, and the treasure on its right."""
    wall_key, door_key, place_key = jax.random.split(key, 3)
    wall = jax.random.randint(wall_key, (), 1, size - 1)
    door = jnp.stack([jax.random.randint(door_key, (), 0, size), wall])
    columns = jnp.tile(jnp.arange(size), (size, 1))
    left, right = columns < wall, columns > wall
    start, found, treasure = _distinct_cells(place_key, [left, left, right])
    walls = (columns == wall).at[door[0], door[1]].set(False)
    return {"walls": walls, "door": door, "start": start, "key": found, "treasure": treasure}


def _distinct_cells(key: Array, masks: Sequence[Array]) -> list[Array]:
    """Draws a cell of each mask `[S, S]`, int32 `[2]`, all different."""
    size, free, cells = masks[0].shape[0], jnp.ones(masks[0].size, bool), []
    for index, mask in enumerate(masks):
        cell = choose(jax.random.fold_in(key, index), mask.reshape(-1) & free)
        free = free.at[cell].set(False)
        cells.append(jnp.stack(jnp.divmod(cell, size)).astype(jnp.int32))
    return cells


def _turned(key: Array, task: Task) -> Task:
    """Mirrors a layout, or not, and swaps its rows and columns, or not."""
    mirrored, exchanged = jax.random.bernoulli(key, shape=(2,))
    size = task["walls"].shape[0]

    def turn(leaf: Array) -> Array:
        grid = leaf.ndim == 2
        other = leaf[:, ::-1] if grid else leaf.at[1].set(size - 1 - leaf[1])
        leaf = jnp.where(mirrored, other, leaf)
        return jnp.where(exchanged, leaf.T if grid else leaf[::-1], leaf)

    return jax.tree.map(turn, task)
