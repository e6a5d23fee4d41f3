"""A searching expert of the Sokoban world."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text.sokoban_rooms import SokobanTask, moves, occupied
from jaxagents.types import Array

FAR = 10_000


def choose_direction(task: SokobanTask, boxes: Array, player: Array, admissible: Array) -> Array:
    """Chooses the next move on a shortest path that pushes one box to its target while the others stand still.

    The boxes are solved from the last to the first, as the room was designed. From the first state of a task this
    always succeeds, and with one box it is a shortest solution from every state that has one. With several boxes, and
    after moves that differ from the expert's, it may miss a solution in which boxes have to make way.

    Args:
        task: task of the episode.
        boxes: int32 `[N]`.
        player: int32 `[]`.
        admissible: bool `[4]`, moves that change something.

    Returns:
        Int32 `[]`, index of the move.
    """
    num_cells = task.walls.shape[0]
    side = int(round(num_cells**0.5))
    index = jnp.arange(boxes.shape[0])
    current = jnp.max(jnp.where(boxes != task.targets, index, 0))
    others = jnp.where(index == current, -1, boxes)
    floor = ~task.walls & ~occupied(others, num_cells)
    steps, box = jnp.asarray(moves(side)), boxes[current]
    distance = distances(
        _inner(floor, side),
        _inner(jnp.arange(num_cells) == task.targets[current], side),
        asked=(_inner_cell(box, side), _inner_cell(player, side)),
    )
    following = player + steps
    pushed = following == box
    value = distance[_inner_cell(jnp.where(pushed, box + steps, box), side), _inner_cell(following, side)]
    return jnp.argmin(jnp.where(admissible, value, 2 * FAR)).astype(jnp.int32)


def distances(floor: Array, target: Array, *, asked: tuple[Array, Array]) -> Array:
    """Computes the number of moves that one box needs to its target.

    `d(b, x) = min_m 1 + d(b', x')` over the moves m, where the player x walks, or pushes the box b; relaxed until
    nothing changes or the requested distance is known. Larger distances are then upper bounds, and outside of the floor
    they are `FAR`.

    Args:
        floor: bool `[H, H]`, neither wall nor another box; outside of the array there are walls.
        target: bool `[H, H]`, True at one cell.
        asked: cells of the box and of the player whose distance is requested, int32 `[]`, numbered row by row.

    Returns:
        Int16 `[H * H, H * H]`, over the cells of the box and of the player.
    """
    height, n = floor.shape[0], floor.size
    row, column = np.divmod(np.arange(n), height)
    directions = ((-1, 0), (1, 0), (0, -1), (0, 1))
    # [b, x]: a move from x pushes b.
    pushes = [(row[None] + r == row[:, None]) & (column[None] + c == column[:, None]) for r, c in directions]
    legal = floor.reshape(-1)[:, None] & floor.reshape(-1)[None, :] & ~np.eye(n, dtype=bool)
    done = target.reshape(-1)[:, None] & jnp.ones((1, n), bool)
    start = jnp.where(legal & done, 0, FAR).astype(jnp.int16)

    def shift(values: Array, r: int, c: int) -> Array:
        """Returns `values[..., i + r, j + c]`, `FAR` outside."""
        grid = values.reshape(-1, height, height)
        grid = jnp.pad(grid, ((0, 0), (1, 1), (1, 1)), constant_values=FAR)
        return grid[:, 1 + r : 1 + r + height, 1 + c : 1 + c + height].reshape(values.shape)

    def unfinished(carry: tuple[Array, Array, Array]) -> Array:
        distance, changed, rounds = carry
        # After k rounds the distances up to k are final.
        return changed & (distance[asked] > rounds)

    def relax(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        distance, _, rounds = carry
        best = distance
        for (r, c), push in zip(directions, pushes, strict=True):
            # [b]: the player stands where it does after it has pushed the box to b.
            behind = jnp.min(jnp.where(push, distance, FAR), axis=1)
            after = shift(behind, r, c)[:, None]
            best = jnp.minimum(best, 1 + jnp.where(push, after, shift(distance, r, c)))
        best = jnp.where(legal & ~done, jnp.minimum(best, FAR), distance)
        return best, jnp.any(best != distance), rounds + 1

    return jax.lax.while_loop(unfinished, relax, (start, jnp.ones((), bool), jnp.zeros((), jnp.int32)))[0]


def _inner(values: Array, side: int) -> Array:
    """Removes the border: `[S * S]` to `[S - 2, S - 2]`."""
    return values.reshape(side, side)[1:-1, 1:-1]


def _inner_cell(cell: Array, side: int) -> Array:
    """Numbers cells without the border; cells on it get an arbitrary number."""
    row, column = jnp.divmod(cell, side)
    return jnp.clip(row - 1, 0, side - 3) * (side - 2) + jnp.clip(column - 1, 0, side - 3)
