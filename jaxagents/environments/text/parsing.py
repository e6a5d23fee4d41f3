"""Parsing, writing and drawing of actions inside jit, by the templates of a grammar."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text.templates import Element
from jaxagents.environments.text.words import compact, find_row, number_words, pad_all
from jaxagents.types import Array

Ids = Callable[..., np.ndarray]
MOST_LISTED = 4096
"""Actions that are listed one by one, of a template and of a grammar."""


@dataclass(frozen=True)
class Entries:
    """The entries of a grammar, on the host.

    Attributes:
        verb: int32 `[E]`, verb of each entry.
        args: int32 `[E, max_args, max_length]`, args of each entry.
        rows: int32 `[E, M]`, words of each entry, all -1 for free fields.
        offset: int32 `[verbs]`, first entry of each verb.
        stride: int32 `[verbs, max_args]`, distance of the entries for two successive phrases of a field.
    """

    verb: np.ndarray
    args: np.ndarray
    rows: np.ndarray
    offset: np.ndarray
    stride: np.ndarray


def longest(element: Element) -> int:
    """Returns the maximum number of words of an element."""
    return element.high * max(map(len, element.phrases))


def is_free(elements: Sequence[Element]) -> bool:
    """Returns whether a template has free fields, or more actions than are listed."""
    listed = [len(element.phrases) for element in elements if element.kind == "listed"]
    return any(element.kind in ("free", "int") for element in elements) or math.prod(listed) > MOST_LISTED


def stack_args(values: Sequence[Array], shape: tuple[int, int]) -> Array:
    """Returns the args of an action, int32 `shape`, from a value per field: int32 `[]` or `[n]`."""
    if len(values) > shape[0]:
        raise ValueError(f"`values` must be at most {shape[0]}, one per field, got {len(values)}.")
    rows = [jnp.atleast_1d(jnp.asarray(value, jnp.int32)) for value in values]
    rows = [jnp.pad(row, (0, shape[1] - row.shape[0]), constant_values=-1) for row in rows]
    return jnp.stack([*rows, *[jnp.full(shape[1], -1, jnp.int32)] * (shape[0] - len(rows))])


def make_parser(elements: Sequence[Element], shape: tuple[int, int], ids: Ids) -> Callable[[Array], tuple]:
    """Makes `(action [M]) -> (args, known)` for a template, which reads from left to right."""

    def parse(action: Array) -> tuple[Array, Array]:
        room = max(map(longest, elements))
        words = jnp.pad(action, (0, room), constant_values=-1)
        place, known, values = jnp.zeros((), jnp.int32), jnp.ones((), bool), []
        for element in elements:
            size = longest(element)
            here = jax.lax.dynamic_slice(words, (place,), (size,))
            value, read = _read(element, here, ids)
            known, place = known & (read > 0), place + read
            values += [] if element.kind == "literal" else [value]
        rest = jnp.arange(action.shape[0]) >= place
        known = known & jnp.all(~rest | (action == -1))
        return jnp.where(known, stack_args(values, shape), -1), known

    return parse


def _read(element: Element, here: Array, ids: Ids) -> tuple[Array, Array]:
    """Reads an element from the next words `[n]`; returns its value and its number of words, 0 for none."""
    table = pad_all([ids(*phrase) for phrase in element.phrases])
    if element.kind in ("literal", "listed"):
        matches = jnp.all((here[None, :] == jnp.asarray(table)) | (table < 0), axis=1)
        sizes = jnp.where(matches, np.sum(table >= 0, axis=1), 0)
        return jnp.argmax(sizes).astype(jnp.int32), jnp.max(sizes).astype(jnp.int32)
    matches = here[:, None] == jnp.asarray(table[:, 0])[None, :]
    inside = jnp.cumprod(jnp.any(matches, axis=1)).astype(bool)
    index, count = jnp.argmax(matches, axis=1).astype(jnp.int32), jnp.sum(inside, dtype=jnp.int32)
    if element.kind == "free":
        return jnp.where(inside, index, -1), jnp.where(count >= element.low, count, 0)
    powers = 10 ** jnp.maximum(count - 1 - jnp.arange(element.high), 0)
    number = jnp.sum(jnp.where(inside, index * powers, 0), dtype=jnp.int32)
    return number, jnp.where((index[0] == 0) & (count > 1), 0, count)


def make_parse(
    elements: Sequence[Sequence[Element]], listed: Entries, parsers: Sequence[Callable], shape: tuple[int, int]
) -> Callable[..., tuple[Array, Array, Array, Array]]:
    """Makes `(action [M], subgrammar=0) -> (verb, args, entry, known)`, which is the same for all subgrammars."""
    free = [verb for verb, row in enumerate(elements) if is_free(row)]

    def parse(action: Array, subgrammar: Array | int = 0) -> tuple[Array, Array, Array, Array]:
        del subgrammar
        entry, known = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
        args = jnp.full(shape, -1, jnp.int32)
        if len(free) < len(elements):
            entry, known = find_row(action, listed.rows)
            # Entries with free fields have no words, like an empty action.
            known = known & (action[0] >= 0)
            args = jnp.where(known, jnp.asarray(listed.args)[entry], -1)
        for verb in free:
            read, found = parsers[verb](action)
            entry, known = jnp.where(found, listed.offset[verb], entry), known | found
            args = jnp.where(found, read, args)
        entry = jnp.where(known, entry, 0)
        return jnp.where(known, jnp.asarray(listed.verb)[entry], 0), args, entry, known

    return parse


def make_writer(elements: Sequence[Element], ids: Ids, max_words: int) -> Callable[[Array], Array]:
    """Makes `(args) -> int32 [M]` for a template."""

    def write(args: Array) -> Array:
        parts, index = [], 0
        for element in elements:
            table = pad_all([*(ids(*phrase) for phrase in element.phrases), ids()])
            if element.kind == "literal":
                parts.append(jnp.asarray(table[0]))
                continue
            if element.kind == "int":
                parts.append(number_words(args[index, 0], table[:10, 0], element.high))
            else:
                parts.append(jnp.asarray(table)[args[index, : element.high]].reshape(-1))
            index += 1
        words = compact(jnp.concatenate(parts))
        return jnp.pad(words, (0, max(max_words - words.shape[0], 0)), constant_values=-1)

    return write


def make_render(
    elements: Sequence[Sequence[Element]], listed: Entries, writers: Sequence[Callable[[Array], Array]]
) -> Callable[[Array, Array], Array]:
    """Makes `(verb, args) -> int32 [M]`."""
    free = [verb for verb, row in enumerate(elements) if is_free(row)]

    def render(verb: Array, args: Array) -> Array:
        places = jnp.maximum(args[:, 0], 0) * jnp.asarray(listed.stride)[verb]
        entry = jnp.asarray(listed.offset)[verb] + jnp.sum(places, dtype=jnp.int32)
        action = jnp.asarray(listed.rows)[entry]
        for number in free:
            action = jnp.where(verb == number, writers[number](args), action)
        return action

    return render


def make_draw(
    elements: Sequence[Sequence[Element]], listed: Entries, shape: tuple[int, int]
) -> Callable[[Array, Array], tuple[Array, Array]]:
    """Makes `(key, entry) -> (verb, args)`, with free fields drawn uniformly."""

    def draw_field(key: Array, element: Element) -> Array:
        count_key, value_key = jax.random.split(key)
        if element.kind == "int":
            return jax.random.randint(value_key, (), 0, 10**element.high)
        count = jax.random.randint(count_key, (), element.low, element.high + 1)
        values = jax.random.randint(value_key, (element.high,), 0, len(element.phrases))
        return jnp.where(jnp.arange(element.high) < count, values, -1)

    def draw(key: Array, entry: Array) -> tuple[Array, Array]:
        verb, args = jnp.asarray(listed.verb)[entry], jnp.asarray(listed.args)[entry]
        for number, row in enumerate(elements):
            if is_free(row):
                fields = [element for element in row if element.kind != "literal"]
                keys = jax.random.split(jax.random.fold_in(key, number), len(fields))
                values = [draw_field(one, element) for one, element in zip(keys, fields)]
                args = jnp.where(verb == number, stack_args(values, shape), args)
        return verb, args

    return draw
