"""Quests whose layouts have little in common: halls with a winding corridor, and two rooms with key and door."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments import quest
from jaxagents.environments.contextual_gridworld import mark
from jaxagents.environments.quest_layouts import sample_quest
from jaxagents.types import Array, Environment, Task

ROOM = 6
"""Cells of a side of two rooms, one more than of the greatest hall; grids have twice as many."""


def make_environment(*, min_length: int = 8, max_length: int = 12, max_steps: int = 36) -> Environment:
    """Makes a quest of the kind `doorkey` with two types of layouts, on a grid of 12 x 12 cells.

    Five of six layouts have a hall of 1 to 5 cells per side; the agent starts in one of its corners, and the exit is in
    the opposite one. From there, a corridor that turns back every five cells leads to the treasure; nothing is locked.
    The sixth layout has two rooms of `quest` with key and door, on 6 x 6 cells. Halls, lengths, and the position and
    orientation of the layout on the grid are drawn, so that a cell of the grid says little about the length of the way
    to it.

    Args:
        min_length: cells of the shortest corridor, including the treasure's.
        max_length: cells of the longest corridor, at most 17.
        max_steps: steps before truncation.

    Returns:
        The environment, with the tasks and observations of `quest`.

    Raises:
        ValueError: lengths are out of their range, the longest corridor takes too many steps, or see `quest`.
    """
    path = _corridor()
    if not 1 <= min_length <= max_length <= len(path):
        raise ValueError(
            f"`min_length` and `max_length` must be from 1 to {len(path)}, in this order, got {min_length} and "
            f"{max_length}; try 8 and 12."
        )
    longest = 2 * (ROOM - 1) - 1 + max_length
    if max_steps < longest:
        raise ValueError(f"`max_steps` must be at least the {longest} steps of the longest way, got {max_steps}.")
    world = quest.make_environment(("doorkey",), 2 * ROOM, max_steps=max_steps)

    def sample_task(key: Array, level: Array | None = None) -> Task:
        del level
        hall_key, length_key, place_key, room_key = jax.random.split(key, 4)
        hall = jax.random.randint(hall_key, (), 1, ROOM + 1)
        length = jax.random.randint(length_key, (), min_length, max_length + 1)
        down, right, turn = jax.random.randint(place_key, (3,), 0, jnp.asarray([ROOM + 1, ROOM + 1, 8]))
        open_hall = _turned(turn, draw_hall(jnp.minimum(hall, ROOM - 1), length, down))
        rooms = _placed(_two_rooms(room_key), down, right)
        return jax.tree.map(lambda one, other: jnp.where(hall < ROOM, one, other), open_hall, rooms)

    return replace(world, name="halls", sample_task=sample_task)


def draw_hall(hall: Array, length: Array, down: Array) -> Task:
    """Draws a layout before it is turned: the hall on the left, the corridor on the right.

    Args:
        hall: int32 `[]`, cells per side of the hall, from 1 to 5.
        length: int32 `[]`, cells of the corridor.
        down: int32 `[]`, rows above the layout, from 0 to 6.

    Returns:
        The task.
    """
    size, path = 2 * ROOM, jnp.asarray(_corridor())
    rows, columns = jnp.arange(size)[:, None], jnp.arange(size)[None]
    free = (rows < hall) & (columns < ROOM) & (columns >= ROOM - hall)
    free |= (rows == 0) & (columns == ROOM)  # The exit, in the wall between hall and corridor.
    corridor = jnp.zeros((size, size), bool).at[path[:, 0], path[:, 1]].set(jnp.arange(len(path)) < length)
    shift = jnp.stack([down, jnp.zeros_like(down)]).astype(jnp.int32)
    nowhere = jnp.full(2, -1, jnp.int32)
    return {
        "kind": jnp.int32(quest.DOORKEY),
        "wait": jnp.int32(1),
        "patrol": jnp.int32(0),
        "walls": jnp.roll(~(free | corridor), down, axis=0),
        "lava": jnp.zeros((size, size), bool),
        "start": jnp.stack([hall - 1, ROOM - hall]).astype(jnp.int32) + shift,
        "treasure": path[length - 1].astype(jnp.int32) + shift,
        **dict.fromkeys(("key", "door", "charger"), nowhere),
    }


def _corridor() -> np.ndarray:
    """Returns the cells of the longest corridor, starting at the exit, `[17, 2]`: three rows, joined at their ends."""
    last = 2 * ROOM - 1
    there = [(0, column) for column in range(ROOM + 1, last + 1)]
    back = [(2, column) for column in range(last, ROOM, -1)]
    again = [(4, column) for column in range(ROOM + 1, last + 1)]
    return np.asarray([*there, (1, last), *back, (3, ROOM + 1), *again], np.int32)


def _two_rooms(key: Array) -> Task:
    return sample_quest(key, jnp.int32(quest.DOORKEY), size=ROOM, kinds=("doorkey",), max_obstacles=0, wait=1)


def _placed(task: Task, down: Array, right: Array) -> Task:
    """Places a smaller layout into a grid full of walls."""
    walls = jax.lax.dynamic_update_slice(jnp.ones((2 * ROOM, 2 * ROOM), bool), task["walls"], (down, right))
    shift = jnp.stack([down, right]).astype(jnp.int32)
    places = {name: task[name] + shift for name in ("start", "treasure", "key", "door")}
    return task | places | {"walls": walls, "lava": jnp.zeros_like(walls)}


def _turned(turn: Array, task: Task) -> Task:
    """Mirrors rows, mirrors columns, and swaps both, each or not, by the three bits of a number."""
    size = 2 * ROOM
    mirrors_rows, mirrors_columns, exchanges = (turn // 2**bit % 2 == 1 for bit in range(3))

    def grid(cells: Array) -> Array:
        cells = jnp.where(mirrors_rows, cells[::-1], cells)
        cells = jnp.where(mirrors_columns, cells[:, ::-1], cells)
        return jnp.where(exchanges, cells.T, cells)

    def place(cell: Array) -> Array:
        row, column = jnp.divmod(jnp.argmax(grid(mark(size, cell)).reshape(-1)), size)
        return jnp.stack([row, column]).astype(jnp.int32)

    places = {name: place(task[name]) for name in ("start", "treasure")}
    return task | places | {"walls": grid(task["walls"])}
