"""Grammars of actions in text worlds: templates of actions, with fields that are listed or free."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text.parsing import (
    MOST_LISTED,
    Entries,
    Ids,
    is_free,
    longest,
    make_draw,
    make_parse,
    make_parser,
    make_render,
    make_writer,
    stack_args,
)
from jaxagents.environments.text.templates import (
    Element,
    Words,
    require_no_collisions,
    require_one_reading,
    split_template,
)
from jaxagents.environments.text.words import make_words, pad_all, pad_to
from jaxagents.types import Array, Choice, Pattern


@dataclass(frozen=True, eq=False)
class Grammar:
    """The actions of a world.

    An action in words is int32 `[max_words]`, -1 after the last word. Its meaning is a *verb*, int32 `[]`, the index of
    its template, and *args*, int32 `[max_args, max_length]`, a row per field of the template from left to right; rows
    of missing fields are all -1:

    - `{name}`: the index of the phrase among those of the field, then -1s;
    - `{name:2-4}`: the indices of the 2 to 4 phrases in the action, in order, then -1s;
    - `{int:5}`: the number, then -1s.

    An *entry* is a unit that may be allowed or not: every action of a template without free fields, in the order of the
    templates and then of the phrases (the last field changes first), and one for a template with a free field or with
    more than `MOST_LISTED` actions.

    Attributes:
        templates: templates as given.
        elements: elements of each template.
        words: words of the grammar, with which the word table of a world begins; a word id is an index into them.
        max_words: M, maximum words of an action.
        max_args: maximum fields of a template, at least 1.
        max_length: maximum phrases of a free field, or 1.
        entry_verb: int32 numpy `[E]`, verb of each entry.
        entry_args: int32 numpy `[E, max_args, max_length]`, args of each entry, all -1 for free fields.
        actions: int32 numpy `[A, M]`, all actions, if there are at most `MOST_LISTED`; else None. If no field is free,
            they are the entries.
        action_entry: int32 numpy `[A]`, entry of each action; with subgrammars `[D, A]`, -1 if one does not have it;
            None without actions.
        examples: int32 numpy `[X, M]`, actions that contain every phrase of every field.
        pattern: pattern of the actions.
        parse: `(action int32 [M], subgrammar int32 [] = 0) -> (verb, args, entry int32 [], known bool [])`; zeros and
            -1s if it is not an action.
        render: `(verb, args) -> int32 [M]`.
        draw: `(key, entry int32 []) -> (verb, args)`, with free fields of the entry drawn uniformly.
        args: `(*values) -> int32 [max_args, max_length]`, a value per field: int32 `[]`, or `[n]` for a free field.
        num_subgrammars: D, number of subgrammars, see `subgrammars.join_grammars`.
    """

    templates: tuple[str, ...]
    elements: tuple[tuple[Element, ...], ...]
    words: tuple[str, ...]
    max_words: int
    max_args: int
    max_length: int
    entry_verb: np.ndarray
    entry_args: np.ndarray
    actions: np.ndarray | None
    action_entry: np.ndarray | None
    examples: np.ndarray
    pattern: Pattern
    parse: Callable[..., tuple[Array, Array, Array, Array]]
    render: Callable[[Array, Array], Array]
    draw: Callable[[Array, Array], tuple[Array, Array]]
    args: Callable[..., Array]
    num_subgrammars: int = 1

    @property
    def num_entries(self) -> int:
        """Returns E."""
        return len(self.entry_verb)

    def entry(self, index: Array) -> tuple[Array, Array]:
        """Returns verb and args of an entry without free fields."""
        return jnp.asarray(self.entry_verb)[index], jnp.asarray(self.entry_args)[index]


def make_grammar(*templates: str, words: Sequence[str] = (), **fields: Sequence[str | Sequence[str]]) -> Grammar:
    """Makes the grammar of a world.

    `make_grammar("look", "go to {place}", "search {term:1-4}", "answer {int:5}", place=("desk", "bed"), term=WORDS)`.
    The text between fields is one word of the table: "go to" is one word, "go to {place} by {way}" has "go to" and
    "by".

    Args:
        *templates: templates of actions, where `{name}` is one of the phrases of a field; `{name:1-4}` one to four of
            them, each of which must be one word; and `{int:5}` a number from 0 with at most five digits (at most nine),
            written as one word per digit, most significant first, without leading zeros.
        words: words that come first in the word table, in this order.
        **fields: phrases of each field, all different: a word of the table, or several in a row, such as ("apple",
            "1").

    Returns:
        The grammar.

    Raises:
        ValueError: there is no template; a template cannot be read; a field has no phrases, or is not used by a
            template; a phrase is repeated; an action has two readings (both are shown); or words would be read as
            others, such as "go", "to" if there is "go to".
    """
    phrases = {name: _phrases(name, field) for name, field in fields.items()}
    if not templates:
        raise ValueError('`templates` must be at least one, got none; try "go to {place}".')
    elements = tuple(split_template(template, phrases) for template in templates)
    named = {
        element.source.strip("{}").split(":")[0] for row in elements for element in row if element.kind != "literal"
    }
    if unused := sorted(set(phrases) - named):
        raise ValueError(f"`fields` must stand in a template, got {unused[0]!r}; try {{{unused[0]}}}.")
    require_one_reading(elements)
    mentioned = [word for row in elements for element in row for phrase in element.phrases for word in phrase]
    table, ids = make_words(words, mentioned)
    require_no_collisions(elements, table)
    field_rows = [[element for element in row if element.kind != "literal"] for row in elements]
    max_args = max(1, *map(len, field_rows))
    free = [element for row in field_rows for element in row if element.kind == "free"]
    shape = (max_args, max([1, *(element.high for element in free)]))
    max_words = max(sum(longest(element) for element in row) for row in elements)
    listed = _list_entries(elements, shape, ids, max_words)
    parsers = [make_parser(row, shape, ids) for row in elements]
    writers = [make_writer(row, ids, max_words) for row in elements]
    actions, action_entry = _list_actions(elements, listed, ids, max_words)
    return Grammar(
        templates=templates,
        elements=elements,
        words=table,
        max_words=max_words,
        max_args=shape[0],
        max_length=shape[1],
        entry_verb=listed.verb,
        entry_args=listed.args,
        actions=actions,
        action_entry=action_entry,
        examples=_examples(elements, listed, ids, max_words) if actions is None else actions,
        pattern=(Choice(tuple(_pattern(row, ids) for row in elements)),),
        parse=make_parse(elements, listed, parsers, shape),
        render=make_render(elements, listed, writers),
        draw=make_draw(elements, listed, shape),
        args=lambda *values: stack_args(values, shape),
    )


def allow(grammar: Grammar, *masks: Array | bool) -> Array:
    """Joins what is allowed for each template into a mask of entries, as `World.allowed` returns it.

    Args:
        grammar: grammar of the world.
        *masks: masks, one per template: bool `[]`, or one bool per entry of the template.

    Returns:
        Bool `[E]`.

    Raises:
        ValueError: there are fewer or more masks than templates.
    """
    sizes = np.bincount(grammar.entry_verb).tolist()
    if len(masks) != len(sizes):
        raise ValueError(f"`masks` must be one for each of {grammar.templates}, got {len(masks)}.")
    return jnp.concatenate([jnp.broadcast_to(mask, size) for mask, size in zip(masks, sizes, strict=True)])


def _phrases(name: str, phrases: Sequence[str | Sequence[str]]) -> tuple[Words, ...]:
    rows = tuple((one,) if isinstance(one, str) else tuple(one) for one in phrases)
    if not rows or not all(rows):
        raise ValueError(f"`fields` must have at least one phrase each, got {name}={list(phrases)}.")
    if repeated := [row for i, row in enumerate(rows) if row in rows[:i]]:
        raise ValueError(f"`fields` must have different phrases, got {' '.join(repeated[0])!r} twice in {name!r}.")
    return rows


def _list_entries(elements: Sequence[Sequence[Element]], shape: tuple[int, int], ids: Ids, max_words: int) -> Entries:
    verbs, args, rows = [], [], []  # type: list[int], list[np.ndarray], list[np.ndarray]
    offset, stride = np.zeros(len(elements), np.int32), np.zeros((len(elements), shape[0]), np.int32)
    for verb, row in enumerate(elements):
        offset[verb] = len(verbs)
        sizes = [len(element.phrases) for element in row if element.kind == "listed"]
        stride[verb, : len(sizes)] = [int(np.prod(sizes[i + 1 :])) for i in range(len(sizes))]
        for chosen in [None] if is_free(row) else itertools.product(*map(range, sizes)):
            verbs.append(verb)
            args.append(_pad_args([[index] for index in chosen or ()], shape))
            phrase = [] if chosen is None else _say(row, [[index] for index in chosen])
            rows.append(pad_to(ids(*phrase), max_words))
    return Entries(np.asarray(verbs, np.int32), np.stack(args), np.stack(rows), offset, stride)


def _pad_args(values: Sequence[Sequence[int]], shape: tuple[int, int]) -> np.ndarray:
    rows = [np.pad(np.asarray(row, np.int32), (0, shape[1] - len(row)), constant_values=-1) for row in values]
    return np.stack([*rows, *[np.full(shape[1], -1, np.int32)] * (shape[0] - len(rows))])


def _say(elements: Sequence[Element], values: Sequence[Sequence[int]]) -> list[str]:
    """Returns the words of an action, given the indices of the phrases of each field, or of the digits."""
    left = iter(values)
    chosen = [(element, [0] if element.kind == "literal" else next(left)) for element in elements]
    return [word for element, indices in chosen for index in indices for word in element.phrases[index]]


def _values(element: Element) -> int:
    """Counts the values of a field."""
    if element.kind == "int":
        return 10**element.high
    return sum(len(element.phrases) ** count for count in range(element.low, element.high + 1))


def _all_values(element: Element) -> list[list[int]]:
    """Lists the values of a field: indices of phrases, or digits."""
    if element.kind == "int":
        return [[int(digit) for digit in str(number)] for number in range(10**element.high)]
    sizes = range(element.low, element.high + 1)
    return [list(one) for size in sizes for one in itertools.product(range(len(element.phrases)), repeat=size)]


def _list_actions(
    elements: Sequence[Sequence[Element]], listed: Entries, ids: Ids, max_words: int
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Lists all actions and their entries, unless they are too many."""
    fields = [[element for element in row if element.kind != "literal"] for row in elements]
    if sum(int(np.prod([float(_values(element)) for element in row])) for row in fields) > MOST_LISTED:
        return None, None
    rows, entries = [], []  # type: list[np.ndarray], list[int]
    for entry, verb in enumerate(listed.verb.tolist()):
        if not is_free(elements[verb]):
            rows, entries = [*rows, listed.rows[entry]], [*entries, entry]
            continue
        for values in itertools.product(*map(_all_values, fields[verb])):
            rows.append(pad_to(ids(*_say(elements[verb], values)), max_words))
            entries.append(entry)
    return np.stack(rows), np.asarray(entries, np.int32)


def _examples(elements: Sequence[Sequence[Element]], listed: Entries, ids: Ids, max_words: int) -> np.ndarray:
    """Returns actions with every phrase of every field, at its shortest and at its longest."""
    rows = [row for row, verb in zip(listed.rows, listed.verb.tolist()) if not is_free(elements[verb])]
    for row in filter(is_free, elements):
        fields = [element for element in row if element.kind != "literal"]
        plain = [[1 if element.kind == "int" else 0] * element.low for element in fields]
        for place, element in enumerate(fields):
            for index in range(len(element.phrases)):
                longest = [[index] * element.high] if index or element.kind != "int" else []
                shortest = [index] * (1 if element.kind == "int" else element.low)
                for value in (shortest, *longest):
                    phrase = _say(row, [*plain[:place], value, *plain[place + 1 :]])
                    rows.append(pad_to(ids(*phrase), max_words))
    return np.unique(np.stack(rows), axis=0)


def _pattern(elements: Sequence[Element], ids: Ids) -> Pattern:
    places = []
    for element in elements:
        rows = pad_all([ids(*phrase) for phrase in element.phrases])
        optional = pad_all([*(ids(*phrase) for phrase in element.phrases), ids()])
        places += [rows] * element.low + [optional] * (element.high - element.low)
    return tuple(places)
