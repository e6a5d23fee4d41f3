"""Texts of text worlds: made of fixed phrases and traced choices among them.

A text is a pytree: its phrases are static, the indices that choose among them are arrays. All possible texts are known
without running anything, and so are the maximum numbers of words and tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.grammar import Grammar
from jaxagents.types import Array

Phrase = str | Sequence[str] | None
"""A word of the table, as "go to"; several in a row, as ("apple", "1"); or None for nothing at all."""
Words = tuple[str, ...]


@struct.dataclass
class Fixed:
    """A phrase."""

    words: Words = struct.field(pytree_node=False)


@struct.dataclass
class Pick:
    """One of several phrases, or a sequence of them if there are several indices."""

    index: Array
    phrases: tuple[Words, ...] = struct.field(pytree_node=False)


@struct.dataclass
class Number:
    """A number in digits."""

    value: Array
    digits: int = struct.field(pytree_node=False)


@struct.dataclass
class Each:
    """Those phrases that a mask selects."""

    mask: Array
    phrases: tuple[Words, ...] = struct.field(pytree_node=False)
    most: int = struct.field(pytree_node=False)


@struct.dataclass
class Cases:
    """One of several texts."""

    index: Array
    texts: "tuple[Text, ...]"
    name: str | None = struct.field(pytree_node=False)


@struct.dataclass
class Quote:
    """Words of another table, whose possible values are known."""

    ids: Array
    source: Grammar = struct.field(pytree_node=False)


@struct.dataclass
class Renamed:
    """A text in other words."""

    index: Array
    text: "Text"
    names: tuple[tuple[tuple[str, str], ...], ...] = struct.field(pytree_node=False)


@struct.dataclass
class Refusal:
    """The place of the answer to an action that was not understood or not allowed."""


@struct.dataclass
class Text:
    """Parts that follow each other, see `text`."""

    parts: tuple


def text(*parts: "Text | Phrase") -> Text:
    """Joins phrases and texts into one text."""
    flat = []  # type: list[Any]
    for part in parts:
        flat += part.parts if isinstance(part, Text) else [Fixed(words) for words in _phrases([part]) if words]
    return Text(parts=tuple(flat))


def pick(phrases: Sequence[Phrase], index: Any) -> Text:
    """Writes one of several phrases.

    Args:
        phrases: phrases, at least one.
        index: int32 `[]`, or any shape for a sequence of phrases. Out of range: nothing.

    Returns:
        The text.

    Raises:
        ValueError: there are no phrases.
    """
    return Text(parts=(Pick(index=jnp.asarray(index), phrases=_phrases(phrases)),))


def number(value: Array | int, digits: int) -> Text:
    """Writes a number, int32 `[]`, as one word per digit without leading zeros; nothing if it is negative.

    Args:
        value: number, clipped to at most `10**digits - 1`.
        digits: maximum number of digits.

    Returns:
        The text.
    """
    return Text(parts=(Number(value=jnp.asarray(value), digits=digits),))


def each(phrases: Sequence[Phrase], mask: Array, *, most: int | None = None) -> Text:
    """Writes those phrases that a mask selects, in their order.

    Args:
        phrases: A phrases.
        mask: bool `[A]`.
        most: maximum number of True values, for the length that the text needs; None: A.

    Returns:
        The text.
    """
    phrases = _phrases(phrases)
    if np.shape(mask) != (len(phrases),):
        raise ValueError(f"`mask` must have one entry per phrase, got {np.shape(mask)} for {len(phrases)} phrases.")
    most = len(phrases) if most is None else min(most, len(phrases))
    return Text(parts=(Each(mask=jnp.asarray(mask), phrases=phrases, most=most),))


def cases(index: Array, *texts: "Text | Phrase", name: str | None = None) -> Text:
    """Writes one of several texts.

    Args:
        index: int32 `[]`; nothing is written if it is out of range.
        *texts: texts to choose from.
        name: choices with the same name within a text have the same number of texts and the same index, always in
            range; the longest text is then found among those in which they agree.

    Returns:
        The text.
    """
    index = jnp.asarray(index, jnp.int32)
    return Text(parts=(Cases(index=index, texts=tuple(text(one) for one in texts), name=name),))


def when(
    condition: Array, then: "Text | Phrase", otherwise: "Text | Phrase" = None, *, name: str | None = None
) -> Text:
    """Writes one of two texts by a condition, bool `[]`; `name` as in `cases`."""
    return cases(jnp.where(jnp.asarray(condition), 0, 1), then, otherwise, name=name)


def board(phrases: Sequence[Phrase], index: Array, *, between: Phrase = "/") -> Text:
    """Writes a grid row by row.

    Args:
        phrases: phrases of the cells.
        index: int32 `[H, W]`; below 0 for a missing cell.
        between: phrase between rows that have cells.

    Returns:
        The text.
    """
    index = jnp.asarray(index)
    there = jnp.any(index >= 0, axis=1)
    parts = [pick(phrases, index[0])]
    for row in range(1, index.shape[0]):
        parts += [when(there[row] & jnp.any(there[:row]), between), pick(phrases, index[row])]
    return text(*parts)


def quote(ids: Array, source: Grammar) -> Text:
    """Writes an action, int32 `[M]` in the words of a grammar; nothing if it is empty."""
    return Text(parts=(Quote(ids=ids, source=source),))


def rename(phrase: Text, index: Array, names: Sequence[Mapping[str, str]]) -> Text:
    """Writes a text in other words.

    Args:
        phrase: text to rename.
        index: int32 `[]`, index of the names to use.
        names: new names of words; other words are unchanged.

    Returns:
        The text.
    """
    pairs = tuple(tuple(one.items()) for one in names)
    return Text(parts=(Renamed(index=jnp.asarray(index), text=phrase, names=pairs),))


def refusal() -> Text:
    """Marks the place of "nothing happens ." after an action that was not understood or allowed; default: the end."""
    return Text(parts=(Refusal(),))


def _phrases(phrases: Sequence[Phrase]) -> tuple[Words, ...]:
    rows = tuple(() if one is None else (one,) if isinstance(one, str) else tuple(one) for one in phrases)
    if not rows:
        raise ValueError("`phrases` must hold at least one phrase, got none.")
    return rows
