"""What text worlds say: texts made of fixed phrases and traced choices among them.

A text is a pytree: its phrases are static, the numbers that choose among them are arrays. What a text can be is
known without running anything, and with it the most words and tokens that a text needs.
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
    """One of some phrases, or one after the other where there are several indices."""

    index: Array
    phrases: tuple[Words, ...] = struct.field(pytree_node=False)


@struct.dataclass
class Number:
    """A number in digits."""

    value: Array
    digits: int = struct.field(pytree_node=False)


@struct.dataclass
class Each:
    """Those of some phrases that a mask says."""

    mask: Array
    phrases: tuple[Words, ...] = struct.field(pytree_node=False)
    most: int = struct.field(pytree_node=False)


@struct.dataclass
class Cases:
    """One of some texts."""

    index: Array
    texts: "tuple[Text, ...]"
    name: str | None = struct.field(pytree_node=False)


@struct.dataclass
class Quote:
    """Words of another table, of which is known what they could be."""

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
    """The place of the answer to what was not understood or not allowed."""


@struct.dataclass
class Text:
    """Parts that follow each other, see `text`."""

    parts: tuple


def text(*parts: "Text | Phrase") -> Text:
    """Makes a text of phrases and texts that follow each other."""
    flat = []  # type: list[Any]
    for part in parts:
        flat += part.parts if isinstance(part, Text) else [Fixed(words) for words in _phrases([part]) if words]
    return Text(parts=tuple(flat))


def pick(phrases: Sequence[Phrase], index: Any) -> Text:
    """Writes one of some phrases.

    Args:
        phrases: at least one.
        index: int32 `[]`, or any shape: those phrases one after the other. Below 0 and beyond the phrases: nothing.

    Returns:
        The text.

    Raises:
        ValueError: no phrases.
    """
    return Text(parts=(Pick(index=jnp.asarray(index), phrases=_phrases(phrases)),))


def number(value: Array | int, digits: int) -> Text:
    """Writes a number, int32 `[]`, as one word per digit without leading zeros; nothing below 0.

    Args:
        value: at most `10**digits - 1`, and clipped to it.
        digits: room.

    Returns:
        The text.
    """
    return Text(parts=(Number(value=jnp.asarray(value), digits=digits),))


def each(phrases: Sequence[Phrase], mask: Array, *, most: int | None = None) -> Text:
    """Writes those of some phrases that a mask says, in their order.

    Args:
        phrases: A.
        mask: bool `[A]`.
        most: that can be true at once, for the room that the text needs; None for A.

    Returns:
        The text.
    """
    phrases = _phrases(phrases)
    if np.shape(mask) != (len(phrases),):
        raise ValueError(f"`mask` must have one entry per phrase, got {np.shape(mask)} for {len(phrases)} phrases.")
    most = len(phrases) if most is None else min(most, len(phrases))
    return Text(parts=(Each(mask=jnp.asarray(mask), phrases=phrases, most=most),))


def cases(index: Array, *texts: "Text | Phrase", name: str | None = None) -> Text:
    """Writes one of some texts.

    Args:
        index: int32 `[]`; nothing is written where it is out of range.
        *texts: to choose from.
        name: choices of one name within a text have the same number of texts and the same index, always in range; the
            longest text is then found among those in which they agree.

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
        phrases: of the cells.
        index: int32 `[H, W]`; below 0 for a cell that is not there.
        between: rows that have cells.

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
    """Writes an action, int32 `[M]` in the words of a grammar; nothing where it is empty."""
    return Text(parts=(Quote(ids=ids, source=source),))


def rename(phrase: Text, index: Array, names: Sequence[Mapping[str, str]]) -> Text:
    """Writes a text in other words.

    Args:
        phrase: the text.
        index: int32 `[]`, which names are taken.
        names: what words are called, others stay.

    Returns:
        The text.
    """
    pairs = tuple(tuple(one.items()) for one in names)
    return Text(parts=(Renamed(index=jnp.asarray(index), text=phrase, names=pairs),))


def refusal() -> Text:
    """Marks where "nothing happens ." is written after what was not understood or not allowed; elsewhere at the end."""
    return Text(parts=(Refusal(),))


def _phrases(phrases: Sequence[Phrase]) -> tuple[Words, ...]:
    rows = tuple(() if one is None else (one,) if isinstance(one, str) else tuple(one) for one in phrases)
    if not rows:
        raise ValueError("`phrases` must hold at least one phrase, got none.")
    return rows
