"""Pictures in words: objects are patterns of four cells, pictures may be turned or inverted, and tools undo that."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.experts import first_action
from jaxagents.environments.text.grammar import allow, make_grammar
from jaxagents.environments.text.splits import draw_distinct
from jaxagents.environments.text.texts import Text, board, number, pick, text, when
from jaxagents.environments.text.world import Status, World, grades
from jaxagents.ops.checks import require_between
from jaxagents.types import Array, Environment, Task

CELLS, INVERTED = (".", "o", "x", "+", "%"), np.asarray([4, 2, 1, 3, 0])
"""Words of cells, and what an inverted picture shows for each; `+` is the upper left corner."""
PATTERNS = {
    **{"cat": "xooo", "dog": "ooox", "car": "oxxx", "bus": "xxxo"},
    **{"sun": "oxoo", "cup": "ooxo", "key": "xoxx", "hat": "xxox"},
}
"""Upper row, lower row. Turned or inverted, each is another one, so that the picture has to be put right first."""
INK = np.asarray([[CELLS.index(cell) for cell in cells] for cells in PATTERNS.values()])
ROTATE, INVERT, SAY, BOX = range(4)


@struct.dataclass
class SceneState:
    """State of a picture.

    It has whether the picture is turned, and inverted, bool; the answer, a class, or column and row of a box, int32
    `[3]`, -1 before it; and how often tools were used, int32.
    """

    task: Task
    turned: Array
    inverted: Array
    answer: Array
    tools: Array


def make_environment(
    num_objects: Sequence[int] = (1, 3),
    *,
    corrupted: float = 0.5,
    tools: bool = True,
    max_steps: int = 4,
    **options: Any,
) -> Environment:
    """Makes a world of pictures.

    A picture has `2 + 2 n` cells per side for n objects, at most six: `+ . x o / . . o o / . . . . / . . . . name 2 0`
    asks for the class of the object in column 2 and row 0, `say cat`, and `find cat` for a place, `box 2 0`. Half of
    the pictures are turned by 180 degrees, and half are inverted, which the corner and the background show; `rotate`
    and `invert` undo this and take a turn. Places refer to the original picture. The answer ends the episode.

    `info["metrics"]` has `iou`, the intersection over union of the right and the predicted box, `class`, and `tools`,
    how many were used. `progress` is the one of the first two that was asked for. Before an answer, the expert thinks
    of the pattern that it saw or looked for.

    Args:
        num_objects: number of objects of different classes, one per level, from 1 to 3.
        corrupted: probability that a picture is turned, and that it is inverted.
        tools: whether there are tools; False: only answers, for uncorrupted pictures.
        max_steps: maximum turns, at least 3.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: a number of objects, a probability or a number of turns is out of its range.

    References:
        Liu et al. (2025), Visual-RFT, section 3.2 (IoU as reward); Liu et al. (2025), Visual-ARFT, section 3 (pictures
        that tools restore).
    """
    require_between("num_objects", num_objects, 1, 3)
    require_between("corrupted", corrupted, 0.0, 1.0)
    require_between("max_steps", max_steps, 3)
    sides = tuple(min(2 + 2 * count, 6) for count in num_objects)
    places = tuple(map(str, range(max(sides))))
    templates = ("rotate", "invert", "say {name}", "box {column} {row}")
    grammar = make_grammar(*templates, name=tuple(PATTERNS), column=places, row=places)

    def start(key: Array, task: Task) -> SceneState:
        nothing, none = jnp.full(3, -1, jnp.int32), jnp.int32(0)
        return SceneState(task=task, turned=task["turned"], inverted=task["inverted"], answer=nothing, tools=none)

    def play(key: Array, state: SceneState, verb: Array, args: Array) -> SceneState:
        answer = jnp.concatenate([args[:1, 0], args[:2, 0]])
        right = jnp.stack([verb == SAY, verb == BOX, verb == BOX])
        return state.replace(
            turned=state.turned ^ (verb == ROTATE),
            inverted=state.inverted ^ (verb == INVERT),
            answer=jnp.where(right, answer, -1),
            tools=state.tools + (verb <= INVERT),
        )

    def expert(key: Array, state: SceneState) -> tuple[Array, Array, Text]:
        name, column, row = state.task["objects"][0]
        wrong = tools & (state.turned | state.inverted)
        finds = (state.task["finds"], BOX, column, row)
        rules = [(tools & state.turned, ROTATE), (tools & state.inverted, INVERT), finds, (True, SAY, name)]
        return *first_action(grammar, rules), when(~wrong, pick(CELLS, jnp.asarray(INK)[name]))

    world = World(
        name="scene",
        grammar=grammar,
        max_steps=max_steps,
        num_levels=len(num_objects),
        sample=partial(sample, tuple(num_objects), sides, corrupted),
        start=start,
        play=play,
        allowed=lambda state: allow(grammar, tools, tools, ~state.task["finds"], state.task["finds"]),
        status=status,
        tell=partial(tell, max(sides)),
        expert=expert,
    )
    return make_text_world(world, **options)


def sample(num_objects: tuple[int, ...], sides: tuple[int, ...], corrupted: float, key: Array, level: Array) -> Task:
    """Draws objects, int32 `[K, 3]`: class, column and row, -1 for none; the first one is asked for."""
    name_key, cell_key, ask_key, turn_key, invert_key = jax.random.split(key, 5)
    most, side = max(num_objects), jnp.asarray(sides)[level]
    blocks = np.arange(9)
    # Blocks of two by two cells; the first and the last block of the picture hold its corners.
    free = (blocks // 3 < side // 2) & (blocks % 3 < side // 2) & (blocks > 0) & (blocks != side // 2 * 4 - 4)
    cell = draw_distinct(cell_key, free, most)
    name = draw_distinct(name_key, jnp.ones(len(PATTERNS), bool), most)
    there = jnp.arange(most) < jnp.asarray(num_objects)[level]
    objects = jnp.stack([name, cell % 3 * 2, cell // 3 * 2], axis=1)
    turned, inverted = (jax.random.bernoulli(one, corrupted) for one in (turn_key, invert_key))
    return {
        "objects": jnp.where(there[:, None], objects, -1).astype(jnp.int32),
        "side": side,
        "finds": jax.random.bernoulli(ask_key),
        "turned": turned,
        "inverted": inverted,
        "level": level,
    }


def picture(state: SceneState, most: int) -> Array:
    """Draws the visible picture, int32 `[S, S]` of `CELLS`, -1 beyond the side of the picture."""
    cells, last = np.arange(most), state.task["side"] - 1
    column, row = jnp.meshgrid(cells, cells)
    there = (column <= last) & (row <= last)
    column, row = (jnp.where(state.turned, last - place, place) for place in (column, row))
    grid = jnp.where((column == 0) & (row == 0), CELLS.index("+"), 0)
    for name, left, top in state.task["objects"]:
        across, down = column - left, row - top
        inside = (name >= 0) & (across >= 0) & (across < 2) & (down >= 0) & (down < 2)
        grid = jnp.where(inside, jnp.asarray(INK)[name, jnp.clip(2 * down + across, 0, 3)], grid)
    return jnp.where(there, jnp.where(state.inverted, jnp.asarray(INVERTED)[grid], grid), -1)


def status(state: SceneState) -> Status:
    """Grades an answer."""
    (name, column, row), (named, *box) = state.task["objects"][0], state.answer
    apart = jnp.abs(jnp.stack([box[0] - column, box[1] - row]))
    shared = jnp.prod(jnp.maximum(2 - apart, 0))
    iou = jnp.where(box[0] >= 0, shared / (8 - shared), 0.0)
    parts, over = grades(**{"iou": iou, "class": named == name, "tools": state.tools}), jnp.any(state.answer >= 0)
    grade = jnp.where(state.task["finds"], iou, parts["class"])
    return Status(success=over & (grade == 1.0), over=over, progress=jnp.where(over, grade, 0.0), parts=parts)


def tell(most: int, state: SceneState, seat: Array) -> Text:
    """Shows the picture and the question."""
    name, column, row = state.task["objects"][0]
    names = text("name", number(column, 1), number(row, 1))
    return text(
        board(CELLS, picture(state, most)), when(state.task["finds"], text("find", pick(tuple(PATTERNS), name)), names)
    )
