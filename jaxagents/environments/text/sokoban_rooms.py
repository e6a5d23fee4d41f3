"""Rooms of the Sokoban world, made by playing backwards from the solution: all of them can be solved."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text import grid
from jaxagents.environments.text.experts import choose
from jaxagents.types import Array

NO_CELL = -1


@struct.dataclass
class SokobanRoom:
    """What a room is before the boxes are moved. Cells are numbered row by row in a grid of S columns.

    Attributes:
        level: int32.
        walls: bool `[S * S]`, all of the border and of what is outside of a smaller room.
        targets: int32 `[N]`, cells; `NO_CELL` after the boxes of the level.
        player: int32, cell beside the first target from which the first box can be pulled.
    """

    level: Array
    walls: Array
    targets: Array
    player: Array


@struct.dataclass
class SokobanTask:
    """A room and where everything is at first.

    Attributes:
        level: int32.
        walls: bool `[S * S]`, see `SokobanRoom`.
        targets: int32 `[N]`, see `SokobanRoom`.
        boxes: int32 `[N]`, cells; `NO_CELL` after the boxes of the level. From the last to the first, each can be
            pushed to the target of its index while the others stand still.
        player: int32, cell.
    """

    level: Array
    walls: Array
    targets: Array
    boxes: Array
    player: Array


def make_samplers(
    sizes: Sequence[int], num_boxes: Sequence[int], *, wall_fraction: float, num_pulls: int
) -> tuple[Callable[[Array, Array], SokobanRoom], Callable[[Array, SokobanRoom], SokobanTask]]:
    """Makes the functions that draw a room, and a task in it.

    Args:
        sizes: cells of a side with the border, one per level.
        num_boxes: one per level.
        wall_fraction: share of walls inside, before way is made for the first box.
        num_pulls: how often each box is pulled, backwards; it starts from the farthest place that it comes to.

    Returns:
        `(key, level) -> room` and `(key, room) -> task`.
    """
    side = max(sizes)
    inside = np.stack([inside_of(size, side) for size in sizes])

    def sample_room(key: Array, level: Array) -> SokobanRoom:
        room = jnp.asarray(inside)[level]
        wall_key, first_key, *target_keys = jax.random.split(key, 2 + max(num_boxes))
        walls = ~room | jax.random.bernoulli(wall_key, wall_fraction, room.shape)
        # The first target, the place of the player and the cell behind it are in a row and free.
        rows = jnp.stack([room & ahead(room, move) & ahead(ahead(room, move), move) for move in moves(side)])
        direction, first = jnp.divmod(choose(first_key, rows.reshape(-1)), side * side)
        player = first + jnp.asarray(moves(side))[direction]
        kept = first + jnp.arange(3) * jnp.asarray(moves(side))[direction]
        kept = jnp.any(jnp.arange(side * side)[:, None] == kept[None, :], axis=1)
        walls, targets = walls & ~kept, [first]
        for i in range(1, max(num_boxes)):
            free = ~walls & ~kept
            pulled = [free & ahead(~walls, move) & ahead(ahead(~walls, move), move) for move in moves(side)]
            best = jnp.any(jnp.stack(pulled), axis=0)
            free = jnp.where(jnp.any(free), free, room & ~kept)
            cell = choose(target_keys[i], jnp.where(jnp.any(best), best, free))
            targets.append(jnp.where(i < jnp.asarray(num_boxes)[level], cell, NO_CELL))
            chosen = jnp.arange(side * side) == targets[-1]
            walls, kept = walls & ~chosen, kept | chosen
        return SokobanRoom(level=level, walls=walls, targets=jnp.stack(targets), player=player)

    return sample_room, partial(play_backwards, num_pulls=num_pulls)


def identify(room: SokobanRoom | SokobanTask) -> tuple[Array, Array]:
    """Returns what makes a room, whatever the level: its walls and its targets."""
    return room.walls, occupied(room.targets, room.walls.shape[0])


def play_backwards(key: Array, room: SokobanRoom, *, num_pulls: int) -> SokobanTask:
    """Pulls the boxes off their targets, one after the other, and takes the player for a walk.

    A pull is one that the player can walk to. A box starts from the place farthest from its target (in rows and
    columns) that it came to and that is no target. The first box always moves; another may find no way.

    Args:
        key: PRNG key.
        room: the solution.
        num_pulls: of each box.

    Returns:
        The task.

    References:
        Racaniere et al. (2017), Imagination-Augmented Agents for Deep Reinforcement Learning, appendix E.
    """
    num_boxes, num_cells = room.targets.shape[0], room.walls.shape[0]
    *box_keys, walk_key = jax.random.split(key, num_boxes + 1)

    def play(carry: tuple[Array, Array], inputs: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        boxes, player = carry
        return _pull(inputs[1], room, boxes, player, inputs[0], num_pulls), None

    inputs = (jnp.arange(num_boxes), jnp.stack(box_keys))
    (boxes, player), _ = jax.lax.scan(play, (room.targets, room.player), inputs)
    free = flood(player, ~room.walls & ~occupied(boxes, num_cells))
    return SokobanTask(
        level=room.level,
        walls=room.walls,
        targets=room.targets,
        boxes=boxes,
        player=choose(walk_key, free),
    )


def _pull(
    key: Array, room: SokobanRoom, boxes: Array, player: Array, index: Array, num_pulls: int
) -> tuple[Array, Array]:
    """Pulls one box, see `play_backwards`; returns where all boxes and the player are then."""
    num_cells, target = room.walls.shape[0], room.targets[index]
    side, steps = _side(num_cells), jnp.asarray(moves(_side(num_cells)))
    obstacles = room.walls | occupied(boxes.at[index].set(NO_CELL), num_cells)

    def distance(cell: Array) -> Array:
        row, column = jnp.divmod(cell, side)
        return jnp.abs(row - target // side) + jnp.abs(column - target % side)

    def pull(carry, key):
        box, player, best = carry
        free = ~obstacles & (jnp.arange(num_cells) != box)
        reached = flood(player, free)
        beside, behind = box + steps, box + 2 * steps
        # A box never comes back to its target. Played forwards, it then stays in one connected part of the floor until
        # the last push, and the player ends in that part whichever way it is pushed: the next box is within reach.
        possible = reached[beside] & free[jnp.clip(behind, 0, num_cells - 1)] & (beside != target) & (target >= 0)
        farther = distance(beside) > distance(box)
        score = jax.random.uniform(key, (4,)) + jnp.where(farther, 0.5, 0.0)
        choice = jnp.argmax(jnp.where(possible, score, -1.0))
        moved = jnp.any(possible)
        box, player = jnp.where(moved, beside[choice], box), jnp.where(moved, behind[choice], player)
        better = (distance(box) >= distance(best[0])) & ~jnp.any(room.targets == box)
        best = jnp.where(better, jnp.stack([box, player]), best)
        return (box, player, best), None

    start = jnp.stack([boxes[index], player])
    (_, _, best), _ = jax.lax.scan(pull, (boxes[index], player, start), jax.random.split(key, num_pulls))
    return boxes.at[index].set(best[0]), best[1]


def flood(start: Array, free: Array) -> Array:
    """Computes which cells can be walked to from a cell, int32 `[]`, over free ones: bool `[S * S]`, with the start."""
    side = _side(free.shape[0])
    begun = jnp.arange(free.shape[0]) == start
    return grid.flood(begun.reshape(side, side), free.reshape(side, side)).reshape(-1)


def occupied(cells: Array, num_cells: int) -> Array:
    """Marks cells: bool `[num_cells]`."""
    return jnp.any(jnp.arange(num_cells)[:, None] == cells[None, :], axis=1)


def moves(side: int) -> np.ndarray:
    """Returns the change of the cell by up, down, left and right: int32 numpy `[4]`."""
    return np.asarray([-side, side, -1, 1], np.int32)


def ahead(values: Array, move: int) -> Array:
    """Returns for each cell the value one move on. Borders are alike, so that it does not matter that rows wrap."""
    return jnp.roll(values, -int(move))


def inside_of(size: int, side: int) -> np.ndarray:
    """Returns the cells inside the border of a room, bool numpy `[side * side]`."""
    line = (np.arange(side) > 0) & (np.arange(side) < size - 1)
    return (line[:, None] & line[None, :]).reshape(-1)


def _side(num_cells: int) -> int:
    return int(round(num_cells**0.5))
