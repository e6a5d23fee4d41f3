"""Sokoban in words: push the boxes onto the targets; a box in a corner stays there (Schrader, 2018)."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.faces import absorbing_world
from jaxagents.environments.text.sokoban_expert import choose_direction
from jaxagents.environments.text.sokoban_rooms import SokobanTask, make_samplers, moves, occupied
from jaxagents.environments.text.splits import hash_integers
from jaxagents.environments.text.words import NOTHING_HAPPENS, find_row, make_words, one_of, pad_all
from jaxagents.environments.timesteps import first_timestep
from jaxagents.types import Array, Box, Environment, Patterns, TextFace, TimeStep

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
        num_steps: int32, steps taken.
    """

    task: SokobanTask
    boxes: Array
    player: Array
    num_steps: Array


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

    Returns:
        The environment.

    Raises:
        ValueError: levels that do not fit, an unknown reward, a fraction of walls outside of [0, 0.5], or no pulls.

    References:
        Schrader (2018), gym-sokoban; Wang et al. (2025), RAGEN, section 3.1.
    """
    sizes, num_boxes = tuple(sizes), tuple(num_boxes)
    _check(sizes, num_boxes, wall_fraction, num_pulls, reward)
    side = max(sizes)
    max_steps = 10 + 20 * max(num_boxes) if max_steps is None else max_steps
    words, ids = make_words(CELLS, (ROW_END,), ACTIONS, NOTHING_HAPPENS, PROMPT)
    actions, steps = ids(*ACTIONS)[:, None], moves(side)
    places = _places(sizes, show_border)
    nothing_happens = jnp.asarray(ids(*NOTHING_HAPPENS))

    def describe(state: SokobanState, timestep: TimeStep) -> TimeStep:
        cells = jnp.asarray(ids(*CELLS))[cell_kinds(state)]
        outcome = jnp.where(timestep.info["valid"], -1, nothing_happens)
        said = jnp.concatenate([cells, jnp.asarray(ids(ROW_END)), outcome, jnp.asarray([-1], jnp.int32)])
        observation = said[jnp.asarray(places)[state.task.level]]
        return timestep.replace(observation=observation, action_mask=push(state, steps)[0])

    def reset(key: Array, task: SokobanTask) -> tuple[SokobanState, TimeStep]:
        del key
        state = SokobanState(task=task, boxes=task.boxes, player=task.player, num_steps=jnp.zeros((), jnp.int32))
        info = {"success": jnp.zeros((), bool), "valid": jnp.ones((), bool)}
        return state, describe(state, first_timestep(None, info=info))

    def step(key: Array, state: SokobanState, action: Array) -> tuple[SokobanState, TimeStep]:
        del key
        direction, well_formed = find_row(action, actions)
        possible, boxes = push(state, steps)
        valid = well_formed & possible[direction]
        following = state.replace(
            boxes=jnp.where(valid, boxes[direction], state.boxes),
            player=jnp.where(valid, state.player + jnp.asarray(steps)[direction], state.player),
            num_steps=state.num_steps + 1,
        )
        before, after = num_placed(state), num_placed(following)
        success = after == jnp.asarray(num_boxes)[state.task.level]
        gain = box_reward * (after - before) if reward == "dense" else 0.0
        timestep = TimeStep(
            observation=None,
            reward=(jnp.where(success, 1.0, 0.0) + gain - step_penalty).astype(jnp.float32),
            terminated=success,
            truncated=(following.num_steps >= max_steps) & ~success,
            info={"success": success, "valid": valid},
        )
        return following, describe(following, timestep)

    def expert(key: Array, state: SokobanState) -> tuple[Array, None]:
        del key
        direction = choose_direction(state.task, state.boxes, state.player, push(state, steps)[0])
        return jnp.asarray(actions)[direction], None

    sample_task, sample_held_out_task = make_samplers(
        sizes, num_boxes, wall_fraction=wall_fraction, num_pulls=num_pulls, held_out_fraction=held_out_fraction
    )
    return absorbing_world(
        Environment(
            name="sokoban",
            sample_task=sample_task,
            reset=reset,
            step=step,
            observation_space=Box((places.shape[1],), -1, len(words) - 1, np.int32),
            action_space=Box((1,), -1, len(words) - 1, np.int32),
            max_steps=max_steps,
            render=render,
            text=TextFace(
                words=words,
                actions=actions,
                expert=expert,
                fingerprint=fingerprint,
                sample_held_out_task=sample_held_out_task,
                num_levels=len(sizes),
                prompt=lambda task: jnp.asarray(ids(*PROMPT)),
                patterns=_patterns(sizes, show_border, ids),
            ),
        )
    )


def _check(sizes, num_boxes, wall_fraction: float, num_pulls: int, reward: str) -> None:
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
    if reward not in ("sparse", "dense"):
        raise ValueError(f'`reward` must be "sparse" or "dense", got {reward!r}; try "sparse".')


def _places(sizes: tuple[int, ...], show_border: bool) -> np.ndarray:
    """Returns where each word of an observation comes from: int32 numpy `[levels, K]`.

    The sources are the `side * side` cells, then "/", then the two words of an answer, then no word.
    """
    side = max(sizes)
    row_end, answer, nothing = side * side, (side * side + 1, side * side + 2), side * side + 3
    layouts = []
    for size in sizes:
        grid = np.arange(side * side).reshape(side, side)[:size, :size]
        rows = (grid if show_border else grid[1:-1, 1:-1]).tolist()
        cells = [place for row in rows for place in (*row, row_end)][:-1]
        layouts.append(np.asarray([*cells, *answer], np.int32))
    padded = pad_all(layouts)
    return np.where(padded < 0, nothing, padded)


def _patterns(sizes: Sequence[int], show_border: bool, ids: Callable[..., np.ndarray]) -> Patterns:
    """Returns what can be said of rooms: rows of cells, and an answer."""
    sides = [size if show_border else size - 2 for size in sorted(set(sizes))]
    rows = [(*[one_of(ids, *CELLS)] * side, one_of(ids, ROW_END)) * side for side in sides]
    answer = one_of(ids, None, NOTHING_HAPPENS)
    return Patterns(observation=tuple((*row[:-1], answer) for row in rows), prompt=((one_of(ids, PROMPT),),))


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


def fingerprint(state: SokobanState) -> Array:
    """Computes a hash of what is to be seen: uint32 `[]`."""
    return hash_integers(state.task.level, cell_kinds(state))


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
