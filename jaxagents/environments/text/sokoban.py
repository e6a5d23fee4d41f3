"""Sokoban in words: push the boxes onto the targets; a box in a corner stays there (Schrader, 2018)."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.sokoban_expert import choose_direction
from jaxagents.environments.text.sokoban_rooms import SokobanTask, identify, make_samplers, moves, occupied
from jaxagents.environments.text.texts import Text, board, text
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment

ACTIONS = ("up", "down", "left", "right")
FLOOR, WALL, TARGET, BOX, BOX_ON_TARGET, PLAYER, PLAYER_ON_TARGET = CELLS = ("_", "#", "O", "X", "*", "P", "+")
ROW_END = "/"
PROMPT = ("push every", BOX, "onto an", TARGET, ".", "you are", PLAYER, ".")


@struct.dataclass
class SokobanState:
    """Where everything is.

    Attributes:
        task: the task of the episode.
        boxes: int32 `[N]`, cells, as in `SokobanTask`.
        player: int32, cell.
    """

    task: SokobanTask
    boxes: Array
    player: Array


def make_environment(
    sizes: Sequence[int] = (6, 6, 7, 8),
    num_boxes: Sequence[int] = (1, 2, 2, 3),
    *,
    wall_fraction: float = 0.1,
    num_pulls: int = 4,
    show_border: bool = True,
    reward: str = "sparse",
    box_reward: float = 0.1,
    step_penalty: float = 0.0,
    held_out_fraction: float = 0.25,
    max_steps: int | None = None,
    **options: Any,
) -> Environment:
    """Makes a Sokoban whose rooms are made by playing backwards from the solution.

    The observation has a word per cell and "/" between the rows: "#" a wall, "_" floor, "O" a target, "X" a box, "*" a
    box on a target, "P" the player, "+" the player on a target; "nothing happens ." follows after an action that
    moved nothing, which counts as not admissible. The episode ends with success when every box is on a target. Boxes
    cannot be pulled: many moves are final, and then the episode goes on until it is truncated.

    The task is a `SokobanTask`. Held-out tasks are in rooms (walls and targets) that training never sees.

    Args:
        sizes: cells of a side with the border, one per level.
        num_boxes: one per level; fewer start off their targets where one finds no way, never none.
        wall_fraction: share of walls among the cells inside.
        num_pulls: the most pushes that a box needs.
        show_border: whether observations have the border of walls, which is always the same.
        reward: "sparse" is 1 for success; "dense" adds `box_reward` for a box pushed onto a target and subtracts it
            for one pushed off.
        box_reward: see `reward` (gym-sokoban: success 10, box 1, step penalty 0.1).
        step_penalty: subtracted from the reward of every step.
        held_out_fraction: of the rooms.
        max_steps: steps before truncation; None for 30 and 20 for every box after the first of a level.
        **options: further ones of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: levels that do not fit, an unknown reward, a fraction of walls outside of [0, 0.5], or no pulls.

    References:
        Schrader (2018), gym-sokoban; Wang et al. (2025), RAGEN, section 3.1.
    """
    sizes, num_boxes = tuple(sizes), tuple(num_boxes)
    _check(sizes, num_boxes, wall_fraction, num_pulls)
    grammar, steps = make_grammar(*ACTIONS, words=(*CELLS, ROW_END)), moves(max(sizes))
    sample, complete = make_samplers(sizes, num_boxes, wall_fraction=wall_fraction, num_pulls=num_pulls)

    def play(key: Array, state: SokobanState, direction: Array, args: Array) -> SokobanState:
        boxes = push(state, steps)[1][direction]
        return state.replace(boxes=boxes, player=state.player + jnp.asarray(steps)[direction])

    def status(state: SokobanState) -> Status:
        placed = num_placed(state)
        success = placed == jnp.asarray(num_boxes)[state.task.level]
        return Status(success=success, over=success, progress=success + box_reward * placed)

    def expert(key: Array, state: SokobanState) -> tuple[Array, Array, None]:
        direction = choose_direction(state.task, state.boxes, state.player, push(state, steps)[0])
        return direction, grammar.args(), None

    def tell(state: SokobanState, seat: Array) -> Text:
        size, edge = jnp.asarray(sizes)[state.task.level], 0 if show_border else 1
        row, column = np.indices((max(sizes), max(sizes)))
        inside = (np.minimum(row, column) >= edge) & (jnp.maximum(row, column) < size - edge)
        kinds = jnp.where(inside, cell_kinds(state).reshape(row.shape), -1)
        return board(CELLS, kinds[edge:, edge:][: max(sizes) - 2 * edge, : max(sizes) - 2 * edge], between=ROW_END)

    world = World(
        name="sokoban",
        grammar=grammar,
        max_steps=10 + 20 * max(num_boxes) if max_steps is None else max_steps,
        num_levels=len(sizes),
        sample=sample,
        complete=lambda key, room, held_out: complete(key, room),
        identity=identify,
        start=lambda key, task: SokobanState(task=task, boxes=task.boxes, player=task.player),
        situation=lambda state: (state.task.level, cell_kinds(state)),
        allowed=lambda state: push(state, steps)[0],
        play=play,
        status=status,
        tell=tell,
        prompt=lambda task: text(*PROMPT),
        expert=expert,
        render=render,
    )
    return make_text_world(
        world, reward=reward, step_penalty=step_penalty, held_out_fraction=held_out_fraction, **options
    )


def _check(sizes: Sequence[int], num_boxes: Sequence[int], wall_fraction: float, num_pulls: int) -> None:
    """Refuses what cannot be a Sokoban."""
    if not sizes or len(sizes) != len(num_boxes):
        raise ValueError(f"`sizes` and `num_boxes` must have one entry per level, got {sizes} and {num_boxes}.")
    if min(sizes) < 6:
        raise ValueError(f"`sizes` must be at least 6, got {sizes}; try 6.")
    for size, number in zip(sizes, num_boxes, strict=True):
        if not 1 <= number <= (size - 2) ** 2 // 8:
            most = (size - 2) ** 2 // 8
            raise ValueError(f"`num_boxes` must be from 1 to {most} in a room of {size}, got {number}; try 1.")
    if not 0.0 <= wall_fraction <= 0.5:
        raise ValueError(f"`wall_fraction` must be from 0 to 0.5, got {wall_fraction}; try 0.1.")
    if num_pulls < 1:
        raise ValueError(f"`num_pulls` must be at least 1, got {num_pulls}; try 4.")


def push(state: SokobanState, steps: np.ndarray) -> tuple[Array, Array]:
    """Computes what each move would do.

    Args:
        state: where everything is.
        steps: int32 numpy `[4]`, change of the cell by each move.

    Returns:
        Whether the move can be made, bool `[4]`: the next cell is free, or has a box and the one behind it is free.
        Where the boxes are if it is made, int32 `[4, N]`.
    """
    walls = state.task.walls
    nearest = state.player + jnp.asarray(steps)
    second = jnp.clip(nearest + jnp.asarray(steps), 0, walls.shape[0] - 1)
    pushed = state.boxes[None, :] == nearest[:, None]
    blocked = walls[second] | jnp.any(state.boxes[None, :] == second[:, None], axis=1)
    possible = ~walls[nearest] & ~(jnp.any(pushed, axis=1) & blocked)
    return possible, jnp.where(pushed, second[:, None], state.boxes[None, :])


def num_placed(state: SokobanState) -> Array:
    """Returns the number of boxes on targets, of whichever box: int32 `[]`."""
    on_target = jnp.any(state.boxes[:, None] == state.task.targets[None, :], axis=1)
    return jnp.sum(on_target & (state.boxes >= 0), dtype=jnp.int32)


def cell_kinds(state: SokobanState) -> Array:
    """Returns what is in each cell, as an index into `CELLS`: int32 `[S * S]`."""
    num_cells = state.task.walls.shape[0]
    target, box = occupied(state.task.targets, num_cells), occupied(state.boxes, num_cells)
    player = jnp.arange(num_cells) == state.player
    kind = jnp.where(target, CELLS.index(TARGET), CELLS.index(FLOOR))
    kind = jnp.where(box, CELLS.index(BOX) + target, kind)
    kind = jnp.where(player, CELLS.index(PLAYER) + target, kind)
    return jnp.where(state.task.walls, CELLS.index(WALL), kind)


def render(state: SokobanState) -> str:
    """Draws the room with the glyphs of the observation.

    Args:
        state: of one instance, on the host.

    Returns:
        One line per row.
    """
    kinds = np.asarray(cell_kinds(state))
    side = int(round(kinds.size**0.5))
    return "\n".join("".join(CELLS[kind] for kind in row) for row in kinds.reshape(side, side))
