"""Names, levels, words and actions of the household world, as constants made on the host."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxagents.environments.text.grammar import Grammar, make_grammar
from jaxagents.environments.text.words import NOTHING_HAPPENS, make_words

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
"""Words of a goal of the family before the object and before the place."""

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
    """The contents of a level.

    Attributes:
        num_receptacles: number of receptacles, the first ones of `RECEPTACLES`.
        num_types: number of object types, the first ones of `OBJECTS`.
        num_objects: number of objects in the rooms.
        families: families of its tasks.
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
KITCHENETTE = Level(6, 4, 2, (PICK, CLEAN, EXAMINE))
"""A small one by itself: its longest search takes 15 turns."""


@dataclass(frozen=True, eq=False)
class Tables:
    """Constants of one compiled world: R receptacles, K kinds of them, T types and up to U objects.

    Object u is of type `u % T` and has the number `u // T + 1`. Arrays are numpy.

    Attributes:
        levels: levels of the world.
        grammar: grammar of the actions, with all words.
        ids: `(*phrases) -> int32`, see `make_words`.
        closable: bool `[R]`, whether receptacles can be closed.
        kind: int32 `[R]`, kind of each receptacle.
        stations: receptacle of each kind that tasks need, by name; -1 if the world has none.
        goal_types: bool `[6, T]`, object types that tasks of a family can be about.
        object_type: int32 `[U]`, type of each object.
        is_knife: bool `[U]`, whether objects are knives.
        verb: int32 `[A]`, verb of each entry of the grammar.
        argument: int32 `[A]`, receptacle or object of each entry, 0 without one.
        types: words for types, such as "apple".
        kinds: words for kinds, such as "cabinet".
        receptacles: kind and number of each; the last is the middle of the room, where episodes start.
        objects: type and number of each.
        conditions: bool `[U, 12]`, conditions of `CONDITIONS` that each object can have.
    """

    levels: tuple[Level, ...]
    grammar: Grammar
    ids: Any
    closable: np.ndarray
    kind: np.ndarray
    stations: dict[str, int]
    goal_types: np.ndarray
    object_type: np.ndarray
    is_knife: np.ndarray
    verb: np.ndarray
    argument: np.ndarray
    types: tuple[str, ...]
    kinds: tuple[str, ...]
    receptacles: tuple[tuple[str, ...], ...]
    objects: tuple[tuple[str, ...], ...]
    conditions: np.ndarray

    @property
    def num_receptacles(self) -> int:
        """Returns R."""
        return len(self.closable)

    @property
    def num_objects(self) -> int:
        """Returns the maximum number of objects at once."""
        return max(level.num_objects for level in self.levels)


def make_tables(levels: tuple[Level, ...]) -> Tables:
    """Makes the constants of a world with these levels, whose arrays are as large as its hardest level needs.

    Args:
        levels: levels, at least one.

    Returns:
        The constants.
    """
    receptacles = RECEPTACLES[: max(level.num_receptacles for level in levels)]
    types = list(OBJECTS)[: max(level.num_types for level in levels)]
    instances = 2 if any(TWO in level.families for level in levels) else 1
    objects = [f"{name} {number}" for number in range(1, instances + 1) for name in types]
    kinds = list(dict.fromkeys(name.split()[0] for name in receptacles))
    stations = {
        kind: receptacles.index(f"{kind} 1") if kind in kinds else -1
        for kind in ("sinkbasin", "microwave", "fridge", "desk")
    }
    entries = _entries(receptacles, objects, stations)
    # A name and its number are two words, so that a policy need not learn that "apple 1" is an apple.
    words = (
        *(*VERBS, *kinds, *types, *sorted({name.split()[1] for name in (*receptacles, *objects)})),
        *(*sum(GOALS, ()), *CONDITIONS, *NOTHING_HAPPENS, MIDDLE, LAMP.split()[0], *PUNCTUATION),
    )
    grammar = _make_grammar(entries, words)
    return Tables(
        levels=levels,
        grammar=grammar,
        ids=make_words(words)[1],
        closable=np.asarray([name.split()[0] in CLOSABLE for name in receptacles]),
        kind=np.asarray([kinds.index(name.split()[0]) for name in receptacles], np.int32),
        stations=stations,
        goal_types=np.asarray([[_suits(OBJECTS[name], family) for name in types] for family in range(len(GOALS))]),
        object_type=np.tile(np.arange(len(types), dtype=np.int32), instances),
        is_knife=np.asarray([name.startswith("knife ") for name in objects]),
        verb=np.asarray([verb for verb, rows in entries.items() for _ in rows], np.int32),
        argument=np.asarray([index for rows in entries.values() for index, _ in rows], np.int32),
        types=tuple(types),
        kinds=tuple(kinds),
        receptacles=(*(tuple(name.split()) for name in receptacles), (MIDDLE,)),
        objects=tuple(tuple(name.split()) for name in objects),
        conditions=np.asarray([_conditions(OBJECTS[name.split()[0]], stations) for name in objects]),
    )


def _make_grammar(entries: dict[int, list[tuple[int, str]]], words: tuple[str, ...]) -> Grammar:
    """Makes a template per verb, with a field if it has arguments."""
    named = {verb: [name for _, name in rows] for verb, rows in entries.items()}
    fields = {f"of_{verb}": [tuple(name.split()) for name in names] for verb, names in named.items() if names[0]}
    templates = [f"{VERBS[verb]} {{of_{verb}}}" if f"of_{verb}" in fields else VERBS[verb] for verb in named]
    return make_grammar(*templates, words=words, **fields)


def _conditions(uses: str, stations: dict[str, int]) -> list[bool]:
    """Returns which of `CONDITIONS` an object with these uses can have."""
    stands = {
        "hot": "heat" in uses and stations["microwave"] >= 0,
        "cool": "cool" in uses and stations["fridge"] >= 0,
        "clean": "clean" in uses and stations["sinkbasin"] >= 0,
        "sliced": "slice" in uses,
        "ordinary": True,
    }
    return [all(stands[part] for part in condition.split(" and ")) for condition in CONDITIONS]


def _suits(uses: str, family: int) -> bool:
    """Returns whether tasks of a family can be about an object with these uses."""
    need = {CLEAN: "clean", HEAT: "heat", COOL: "cool", EXAMINE: "examine"}.get(family, "")
    return need in uses


def _entries(
    receptacles: tuple[str, ...], objects: list[str], stations: dict[str, int]
) -> dict[int, list[tuple[int, str]]]:
    """Lists all possible actions: index and name of the arguments of each verb, "" if it has none."""
    closable = [(i, name) for i, name in enumerate(receptacles) if name.split()[0] in CLOSABLE]
    things = list(enumerate(objects))
    entries = {GO: list(enumerate(receptacles)), OPEN: closable, CLOSE: closable, TAKE: things, PUT: things}
    for verb, use, station in ((WASH, "clean", "sinkbasin"), (WARM, "heat", "microwave"), (CHILL, "cool", "fridge")):
        here = stations[station] >= 0
        entries[verb] = [(i, name) for i, name in things if here and use in OBJECTS[name.split()[0]]]
    entries[SLICE] = [(i, name) for i, name in things if "slice" in OBJECTS[name.split()[0]]]
    entries[LOOK_AT] = things
    entries[USE] = [(0, LAMP)] if stations["desk"] >= 0 else []
    entries |= {LOOK: [(0, "")], INVENTORY: [(0, "")]}
    return {verb: rows for verb, rows in entries.items() if rows}
