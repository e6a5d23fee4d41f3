"""Names, levels, words and actions of the household world, as constants made on the host."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxagents.environments.text.words import NOTHING_HAPPENS, make_words, pad_all

RECEPTACLES = (
    *("countertop 1", "cabinet 1", "drawer 1", "shelf 1", "sinkbasin 1", "desk 1", "microwave 1", "fridge 1"),
    *("cabinet 2", "drawer 2", "garbagecan 1", "countertop 2", "cabinet 3", "sidetable 1"),
)
"""A level has the first so many of them. A searching expert visits them in this order."""

CLOSABLE = ("cabinet", "drawer", "microwave", "fridge")

PICK, CLEAN, HEAT, COOL, EXAMINE, TWO = range(6)
"""Families of tasks."""

GOALS = (
    ("put some", "in"),
    ("clean some", "and put it in"),
    ("heat some", "and put it in"),
    ("cool some", "and put it in"),
    ("look at some", "under the"),
    ("find two", "and put them in"),
)
"""What is said of a family before the object and before the place."""

OBJECTS = {
    "apple": "clean heat cool slice",
    "mug": "clean heat cool examine",
    "book": "examine",
    "knife": "clean",
    "pen": "examine",
    "plate": "clean heat cool examine",
    "egg": "clean heat cool",
    "cellphone": "examine",
    "tomato": "clean heat cool slice",
    "cup": "clean heat cool",
    "bread": "heat cool slice",
    "fork": "clean",
    "bowl": "clean heat cool examine",
    "potato": "clean heat cool slice",
    "keychain": "examine",
    "spoon": "clean",
}
"""Types of objects and what is done with them (for "examine", in tasks); every one can be taken and put."""

GO, OPEN, CLOSE, TAKE, PUT, WASH, WARM, CHILL, SLICE, LOOK_AT, USE, LOOK, INVENTORY = range(13)
VERBS = (
    *("go to", "open", "close", "take", "put", "clean", "heat", "cool", "slice", "examine"),
    *("use", "look", "inventory"),
)
NO_VERB = -1

CONDITIONS = tuple(
    " and ".join(part for part in parts if part) or "ordinary"
    for parts in (
        (temperature, washed, cut)
        for cut in ("", "sliced")
        for washed in ("", "clean")
        for temperature in ("", "hot", "cool")
    )
)
"""Of an object, at `temperature + 3 * clean + 6 * sliced`."""

MIDDLE, LAMP = "the middle of the room", "desklamp 1"
PUNCTUATION = (".", "you are at", "open", "closed", "you hold", "you see", "nothing", "your task is to")


class Level(NamedTuple):
    """What a level has.

    Attributes:
        num_receptacles: the first so many of `RECEPTACLES`.
        num_types: objects are of the first so many types of `OBJECTS`.
        num_objects: objects in the rooms.
        families: of its tasks.
    """

    num_receptacles: int
    num_types: int
    num_objects: int
    families: tuple[int, ...]


LEVELS = (
    Level(4, 6, 3, (PICK,)),
    Level(6, 8, 4, (PICK, CLEAN, EXAMINE)),
    Level(8, 12, 6, (PICK, CLEAN, HEAT, COOL, EXAMINE)),
    Level(11, 12, 8, (PICK, CLEAN, HEAT, COOL, EXAMINE, TWO)),
    Level(14, 16, 10, (PICK, CLEAN, HEAT, COOL, EXAMINE, TWO)),
)


@dataclass(frozen=True, eq=False)
class Tables:
    """Constants of one compiled world: R receptacles, K kinds of them, T types and U objects that there may be.

    Object u is of type `u % T` and has the number `u // T + 1`. Arrays are numpy.

    Attributes:
        levels: those of the world.
        words: the word table.
        ids: `(*phrases) -> int32`, see `make_words`.
        closable: bool `[R]`.
        kind: int32 `[R]`, of each receptacle.
        stations: receptacle of each kind that tasks need, by name; -1 where the world has none.
        goal_types: bool `[6, T]`, types of objects that tasks of a family are about.
        object_type: int32 `[U]`.
        is_knife: bool `[U]`.
        actions: int32 `[A, 3]`, the rows of `TextFace.actions`.
        verb: int32 `[A]`, of each action.
        argument: int32 `[A]`, the receptacle or object of each action, 0 without one.
        receptacle_ids: int32 `[R + 1, 2]`, kind and number; the last is the middle of the room, where episodes begin.
        object_ids: int32 `[U, 2]`, type and number.
        lamp_ids: int32 `[2]`, kind and number.
        type_ids: int32 `[T]`, words such as "apple".
        kind_ids: int32 `[K]`, words such as "cabinet".
        goal_ids: int32 `[6, 2]`, words of `GOALS`.
    """

    levels: tuple[Level, ...]
    words: tuple[str, ...]
    ids: Any
    closable: np.ndarray
    kind: np.ndarray
    stations: dict[str, int]
    goal_types: np.ndarray
    object_type: np.ndarray
    is_knife: np.ndarray
    actions: np.ndarray
    verb: np.ndarray
    argument: np.ndarray
    receptacle_ids: np.ndarray
    object_ids: np.ndarray
    lamp_ids: np.ndarray
    type_ids: np.ndarray
    kind_ids: np.ndarray
    goal_ids: np.ndarray

    @property
    def num_receptacles(self) -> int:
        """Returns R."""
        return len(self.closable)

    @property
    def num_objects(self) -> int:
        """Returns the most objects that are there at once."""
        return max(level.num_objects for level in self.levels)


def make_tables(num_levels: int) -> Tables:
    """Makes the constants of a world that has the first levels: its arrays are as large as its hardest level needs.

    Args:
        num_levels: from 1 to `len(LEVELS)`.

    Returns:
        The constants.
    """
    levels = LEVELS[:num_levels]
    receptacles = RECEPTACLES[: max(level.num_receptacles for level in levels)]
    types = list(OBJECTS)[: max(level.num_types for level in levels)]
    instances = 2 if any(TWO in level.families for level in levels) else 1
    objects = [f"{name} {number}" for number in range(1, instances + 1) for name in types]
    kinds = list(dict.fromkeys(name.split()[0] for name in receptacles))
    stations = {
        kind: receptacles.index(f"{kind} 1") if kind in kinds else -1
        for kind in ("sinkbasin", "microwave", "fridge", "desk")
    }
    phrases = _actions(receptacles, objects, stations)
    # A name and its number are two words: that "apple 1" is an apple need not be learned.
    words, ids = make_words(
        VERBS,
        kinds,
        types,
        sorted({name.split()[1] for name in (*receptacles, *objects)}),
        sum(GOALS, ()),
        CONDITIONS,
        NOTHING_HAPPENS,
        (MIDDLE, LAMP.split()[0]),
        PUNCTUATION,
    )
    return Tables(
        levels=levels,
        words=words,
        ids=ids,
        closable=np.asarray([name.split()[0] in CLOSABLE for name in receptacles]),
        kind=np.asarray([kinds.index(name.split()[0]) for name in receptacles], np.int32),
        stations=stations,
        goal_types=np.asarray([[_suits(OBJECTS[name], family) for name in types] for family in range(len(GOALS))]),
        object_type=np.tile(np.arange(len(types), dtype=np.int32), instances),
        is_knife=np.asarray([name.startswith("knife ") for name in objects]),
        actions=pad_all([ids(VERBS[verb], *" ".join(names).split()) for verb, _, *names in phrases], 3),
        verb=np.asarray([phrase[0] for phrase in phrases], np.int32),
        argument=np.asarray([phrase[1] for phrase in phrases], np.int32),
        receptacle_ids=pad_all([*(ids(*name.split()) for name in receptacles), ids(MIDDLE)]),
        object_ids=pad_all([ids(*name.split()) for name in objects]),
        lamp_ids=ids(*LAMP.split()),
        type_ids=ids(*types),
        kind_ids=ids(*kinds),
        goal_ids=np.stack([ids(*goal) for goal in GOALS]),
    )


def _suits(uses: str, family: int) -> bool:
    """Returns whether tasks of a family can be about an object of these uses."""
    need = {CLEAN: "clean", HEAT: "heat", COOL: "cool", EXAMINE: "examine"}.get(family, "")
    return need in uses


def _actions(receptacles: tuple[str, ...], objects: list[str], stations: dict[str, int]) -> list[tuple]:
    """Lists (verb, index of the argument, its name if it has one) of everything that could ever be done."""
    closable = [(i, name) for i, name in enumerate(receptacles) if name.split()[0] in CLOSABLE]
    uses = [(i, name, OBJECTS[name.split()[0]]) for i, name in enumerate(objects)]
    rows = [(GO, i, name) for i, name in enumerate(receptacles)]
    rows += [(verb, i, name) for verb in (OPEN, CLOSE) for i, name in closable]
    rows += [(verb, i, name) for verb in (TAKE, PUT) for i, name, _ in uses]
    for verb, use, station in ((WASH, "clean", "sinkbasin"), (WARM, "heat", "microwave"), (CHILL, "cool", "fridge")):
        rows += [(verb, i, name) for i, name, able in uses if use in able and stations[station] >= 0]
    rows += [(SLICE, i, name) for i, name, able in uses if "slice" in able]
    rows += [(LOOK_AT, i, name) for i, name, _ in uses]
    rows += [(USE, 0, LAMP)] if stations["desk"] >= 0 else []
    return [*rows, (LOOK, 0), (INVENTORY, 0)]
