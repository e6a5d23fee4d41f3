"""A screen in words: elements with boxes on a grid, an instruction, and one action that is graded in parts."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.experts import choose
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.splits import draw_distinct
from jaxagents.environments.text.texts import Text, cases, pick, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, Task

SIDE = 16
KINDS = {"button": (4, 2), "field": (6, 2), "link": (3, 1), "icon": (2, 2), "tab": (5, 3)}
"""Width and height in cells; nothing else tells the size of an element."""
LABELS = (
    *("save", "print", "share", "delete", "reply", "mute", "login", "help", "cart", "music", "photo", "clock"),
    *("map", "mail", "news", "bank", "notes", "radio", "store", "chat", "files", "wifi", "alarm", "profile"),
)
TEXTS = ("rain", "pizza", "paris", "jazz", "tiger", "coffee")
DIRECTIONS, PLACES = ("up", "down", "left", "right"), ("above", "below", "before", "after")
CLICK, TYPE, SCROLL, BACK, FINISH = range(5)
SHARES = (0.6, 0.15, 0.1, 0.075, 0.075)
"""Of the instructions, by the action that they ask for."""


@struct.dataclass
class ScreenState:
    """The action that was taken.

    Attributes:
        task: the task of the episode.
        verb: int32, verb of the action; -1 before it.
        args: int32 `[2]`, column and row, or the typed text, or the direction.
    """

    task: Task
    verb: Array
    args: Array


def make_environment(num_elements: tuple[int, ...] = (3, 4, 6), *, split: str = "tasks", **options: Any) -> Environment:
    """Makes a world of screens, one action each.

    The observation lists elements with the column and row of their upper left cell, then the instruction: `button save
    3 5 icon mail 10 2 press mail`. The kind determines the size, on which the middle of a box depends. Instructions are
    `press mail` (`click 10 2` hits its box), `enter rain` (`type rain`), `look below` (`scroll down`), `leave` (`back`)
    and `all done` (`finish`). The episode ends with the action.

    `info["metrics"]` grades it: `type`, the right verb; `inside`, in the box; `distance`, `exp(-4 d^2)` for the
    distance d to the middle of the box in units of a quarter of the screen; `text` and `direction`; each 0 if it was
    not asked for. `click` and `bare` are `type` if a click, or an action without fields, was asked for; `centre` and
    `place` grade clicks as `centre_score` and `place_score` do. Before a click, the expert thinks of the kind and the
    corner of the element, `icon 10 2`.

    Args:
        num_elements: number of elements, one per level, from 1 to 8.
        split: what is held out: "tasks", or "labels", instructions about elements that training never asks for.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: numbers of elements are out of their range, or the split is unknown.

    References:
        Luo et al. (2025), GUI-R1, section 3; Liu et al. (2025), InfiGUI-R1, section 3.
    """
    num_elements = tuple(num_elements)
    if not num_elements or not 1 <= min(num_elements) <= max(num_elements) <= 8:
        raise ValueError(f"`num_elements` must be from 1 to 8, got {num_elements}; try (3, 6).")
    if split not in ("tasks", "labels"):
        raise ValueError(f'`split` must be "tasks" or "labels", got {split!r}.')
    cells = tuple(map(str, range(SIDE)))
    world = World(
        name="screen",
        grammar=make_grammar(
            "click {column} {row}",
            "type {text}",
            "scroll {direction}",
            "back",
            "finish",
            column=cells,
            row=cells,
            text=TEXTS,
            direction=DIRECTIONS,
        ),
        max_steps=1,
        num_levels=len(num_elements),
        sample=partial(sample, num_elements),
        identity=partial(identify, by_label=split == "labels"),
        start=lambda key, task: ScreenState(task=task, verb=jnp.int32(-1), args=jnp.full(2, -1, jnp.int32)),
        play=lambda key, state, verb, args: state.replace(verb=verb, args=args[:, 0]),
        status=status,
        tell=partial(tell, cells),
        expert=partial(expert, cells),
        easier=crop,
        look=partial(look, cells),
    )
    return make_text_world(world, **options)


def sample(num_elements: tuple[int, ...], key: Array, level: Array) -> Task:
    """Draws elements in different parts of the screen, int32 `[K]` each, -1 for none, and an instruction."""
    cell_key, kind_key, label_key, place_key, ask_key, of_key = jax.random.split(key, 6)
    most = max(num_elements)
    there = np.arange(most) < jnp.asarray(num_elements, jnp.int32)[level]
    kind = jax.random.randint(kind_key, (most,), 0, len(KINDS))
    size = jnp.asarray(list(KINDS.values()), jnp.int32)[kind]
    cell = draw_distinct(cell_key, jnp.ones(8, bool), most)
    corner = jnp.stack([cell % 2 * 8, cell // 2 * 4], axis=1)
    room = jnp.asarray([[8, 4]]) - size + 1
    corner += jnp.floor(jax.random.uniform(place_key, corner.shape) * room).astype(jnp.int32)
    label = draw_distinct(label_key, jnp.ones(len(LABELS), bool), most)
    asks = jnp.searchsorted(jnp.cumsum(jnp.asarray(SHARES)), jax.random.uniform(ask_key))
    asks = jnp.minimum(asks, FINISH).astype(jnp.int32)
    chosen = label[choose(of_key, there)]
    drawn = jax.random.randint(of_key, (), 0, jnp.asarray([1, len(TEXTS), len(DIRECTIONS), 1, 1])[asks])
    elements = jnp.where(there[:, None], jnp.stack([kind, label, corner[:, 0], corner[:, 1]], axis=1), -1)
    return {"elements": elements, "asks": asks, "of": jnp.where(asks == CLICK, chosen, drawn), "level": level}


def identify(task: Task, *, by_label: bool) -> tuple[Array, Array, Array]:
    """Returns the instruction and the screen; with `by_label`, only the label if the instruction names one."""
    hidden = by_label & (task["asks"] == CLICK)
    return task["asks"], task["of"], jnp.where(hidden, 0, task["elements"])


def crop(task: Task, number: Array) -> Task:
    """Returns a part of the screen around the requested box, 0.6 times as wide and high for each of `number` times.

    The part is the first one from the left, and then from the top, that contains the box, among those that start at
    every `part - box` cells, and the last one. Places are relative to it; elements that are not completely inside are
    removed. Nothing changes for other instructions, and if the box is larger than the part.

    References:
        Lian et al. (2025), "UI-AGILE", section 3.3.
    """
    elements = task["elements"]
    corner, size = elements[:, 2:], jnp.asarray(list(KINDS.values()), jnp.int32)[elements[:, 0]]
    asked = jnp.argmax(elements[:, 1] == task["of"])
    side = jnp.asarray([int(SIDE * 0.6**tries) for tries in range(4)])[jnp.minimum(number, 3)]
    step = side - size[asked]
    end = jnp.minimum(side + jnp.arange(SIDE)[:, None] * step[None], SIDE)
    end = jnp.concatenate([end, jnp.full((1, 2), SIDE)])
    holds = (corner[asked][None] >= end - side) & ((corner + size)[asked][None] <= end)
    first = (end[jnp.argmax(holds, axis=0), jnp.arange(2)] - side)[None]
    inside = jnp.all((corner >= first) & (corner + size <= first + side), axis=1) & (elements[:, 0] >= 0)
    moved = jnp.where(inside[:, None], elements.at[:, 2:].add(-first), -1)
    return {**task, "elements": jnp.where((task["asks"] == CLICK) & jnp.all(step >= 0), moved, elements)}


def middle(task: Task) -> tuple[Array, Array]:
    """Returns the middle of the requested box, float32 `[2]` in cells, and its size, int32 `[2]`."""
    kind, _, column, row = task["elements"][jnp.argmax(task["elements"][:, 1] == task["of"])]
    size = jnp.asarray(list(KINDS.values()), jnp.int32)[kind]
    return jnp.stack([column, row]) + (size - 1) / 2, size


def status(state: ScreenState) -> Status:
    """Grades the action."""
    task, done = state.task, state.verb >= 0
    centre, size = middle(task)
    right = done & (state.verb == task["asks"])
    away = jnp.abs(state.args - centre)
    inside = jnp.all(away <= (size - 1) / 2)
    near = jnp.exp(-4.0 * jnp.sum((away / (SIDE / 4)) ** 2))
    same, verb = state.args[0] == task["of"], task["asks"]
    success = right & jnp.stack([inside, same, same, True, True])[verb]
    click = right & (verb == CLICK)
    parts = {
        "type": right,
        "inside": click & inside,
        "distance": click * near,
        "text": right & (verb == TYPE) & same,
        "direction": right & (verb == SCROLL) & same,
        "click": click,
        "bare": right & (verb >= BACK),
        "centre": click * centre_score(away, size),
        "place": click * place_score(away, size),
    }
    parts = {name: value.astype(jnp.float32) for name, value in parts.items()}
    detail = jnp.stack([near, same, same, 1.0, 1.0])[verb]
    return Status(success=success, over=done, progress=(right + right * detail) / 2, parts=parts)


def centre_score(away: Array, size: Array) -> Array:
    """Computes `exp(-4 d^2)` in a box, d the distance to its middle along the worse axis in half sizes; 0 outside.

    Args:
        away: float32 `[2]`, distances along both axes in cells.
        size: int32 `[2]`, size of the box.

    Returns:
        float32 `[]`.

    References:
        Lian et al. (2025), "UI-AGILE", section 3.2.
    """
    return jnp.where(jnp.all(away <= (size - 1) / 2), jnp.exp(-4.0 * jnp.max(2.0 * away / size) ** 2), 0.0)


def place_score(away: Array, size: Array) -> Array:
    """Computes `0.95 + 0.05 (1 - m)^3` in a box, and `1 - (|dx| + |dy|) / 2` outside, in units of the screen.

    m is the distance to the middle along the worse axis.

    Args:
        away: float32 `[2]`, |dx| and |dy| to the middle in cells.
        size: int32 `[2]`, size of the box.

    Returns:
        float32 `[]`. As in the released code, it may be larger just outside of a large box than at its border.

    References:
        Zhang et al. (2025), "AgentCPM-GUI", section 3.3.
    """
    share = away / SIDE
    inside = 0.95 + 0.05 * (1.0 - jnp.max(share)) ** 3
    return jnp.where(jnp.all(away <= (size - 1) / 2), inside, 1.0 - jnp.sum(share) / 2)


def list_elements(cells: tuple[str, ...], elements: Array) -> Text:
    """Describes elements, int32 `[K, 4]`: kind, label, column and row; nothing for -1."""
    first = np.cumsum([0, len(KINDS), len(LABELS), 0])  # Columns and rows have the same words.
    return pick((*KINDS, *LABELS, *cells), jnp.where(elements < 0, -1, elements + first[None]))


def look(cells: tuple[str, ...], state: ScreenState) -> Text:
    """Lists the elements after the action.

    An element that was clicked is gone, a typed text stands at the end, all elements have moved by two cells after
    `scroll`, all are gone after `back`, and `all done` is shown after `finish`.
    """
    elements, verb, args = state.task["elements"], state.verb, state.args
    size = jnp.asarray(list(KINDS.values()), jnp.int32)[elements[:, 0]]
    offset = args[None] - elements[:, 2:]
    hit = (verb == CLICK) & jnp.all((offset >= 0) & (offset < size), axis=1)
    way = jnp.asarray([[0, -2], [0, 2], [-2, 0], [2, 0]])[jnp.clip(args[0], 0, len(DIRECTIONS) - 1)]
    place = elements[:, 2:] + jnp.where(verb == SCROLL, way, 0)[None]
    gone = hit | (verb == BACK) | (elements[:, 0] < 0) | jnp.any((place < 0) | (place >= SIDE), axis=1)
    seen = jnp.where(gone[:, None], -1, elements.at[:, 2:].set(place))
    typed = pick(TEXTS, jnp.where(verb == TYPE, args[0], -1))
    return text(list_elements(cells, seen), typed, when(verb == FINISH, "all done"))


def tell(cells: tuple[str, ...], state: ScreenState, seat: Array) -> Text:
    """Lists the elements and gives the instruction."""
    del seat
    elements, of = state.task["elements"], state.task["of"]
    listed = list_elements(cells, elements)
    asked = cases(
        state.task["asks"],
        text("press", pick(LABELS, of)),
        text("enter", pick(TEXTS, of)),
        text("look", pick(PLACES, of)),
        "leave",
        "all done",
    )
    return text(listed, asked)


def expert(cells: tuple[str, ...], key: Array, state: ScreenState) -> tuple[Array, Array, Text]:
    """Follows the instruction, with clicks in the middle of the box, and thinks of the box first."""
    del key
    centre = jnp.floor(middle(state.task)[0]).astype(jnp.int32)
    verb = state.task["asks"]
    rest = jnp.where((verb == TYPE) | (verb == SCROLL), state.task["of"], -1)
    args = jnp.where(verb == CLICK, centre, jnp.stack([rest, -1]))
    elements = state.task["elements"]
    kind, _, column, row = elements[jnp.argmax(elements[:, 1] == state.task["of"])]
    box = pick((*KINDS, *cells), jnp.stack([kind, len(KINDS) + column, len(KINDS) + row]))
    return verb, args[:, None], when(verb == CLICK, box)
