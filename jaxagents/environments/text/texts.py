"""What text worlds say: texts made of fixed phrases and traced choices among them.

A text is a pytree: its phrases are static, the numbers that choose among them are arrays. What can be said at all is
known without running anything, and with it the most words and tokens that a text needs.
"""

import itertools
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.words import DIGITS, NOTHING_HAPPENS, number_words, pad_all
from jaxagents.types import Array, Choice, Pattern, Several, Window

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
class Span:
    """Some words in a row of a fixed text."""

    start: Array
    count: Array
    corpus: Words = struct.field(pytree_node=False)
    most: int = struct.field(pytree_node=False)


@struct.dataclass
class Refusal:
    """The place of the answer to what was not understood or not allowed."""


@struct.dataclass
class Text:
    """Parts that are said one after the other, see `text`."""

    parts: tuple


def text(*parts: "Text | Phrase") -> Text:
    """Makes a text of phrases and texts that are said one after the other."""
    flat = []
    for part in parts:
        flat += part.parts if isinstance(part, Text) else [Fixed(words) for words in _phrases([part]) if words]
    return Text(parts=tuple(flat))


def pick(phrases: Sequence[Phrase], index: Array) -> Text:
    """Says one of some phrases.

    Args:
        phrases: at least one.
        index: int32 `[]`, or any shape: those phrases one after the other. Below 0 and beyond the phrases: nothing.

    Returns:
        The text.

    Raises:
        ValueError: no phrases.
    """
    return Text(parts=(Pick(index=jnp.asarray(index), phrases=_phrases(phrases)),))


def number(value: Array, digits: int) -> Text:
    """Says a number, int32 `[]`, as one word per digit without leading zeros; nothing below 0.

    Args:
        value: at most `10**digits - 1`, and clipped to it.
        digits: room.

    Returns:
        The text.
    """
    return Text(parts=(Number(value=jnp.asarray(value), digits=digits),))


def each(phrases: Sequence[Phrase], mask: Array, *, most: int | None = None) -> Text:
    """Says those of some phrases that a mask says, in their order.

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
    """Says one of some texts.

    Args:
        index: int32 `[]`; nothing is said where it is out of range.
        *texts: what may be said.
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
    """Says one of two texts by a condition, bool `[]`; `name` as in `cases`."""
    return cases(jnp.where(jnp.asarray(condition), 0, 1), then, otherwise, name=name)


def span(corpus: Sequence[str], start: Array, count: Array, *, most: int) -> Text:
    """Says some words in a row of a fixed text.

    Args:
        corpus: words.
        start: int32 `[]`.
        count: int32 `[]`, of words; what is beyond the end of the corpus is not said.
        most: words; more are cut off.

    Returns:
        The text.
    """
    return Text(parts=(Span(start=jnp.asarray(start), count=jnp.asarray(count), corpus=tuple(corpus), most=most),))


def board(phrases: Sequence[Phrase], index: Array, *, between: Phrase = "/") -> Text:
    """Says a grid row by row.

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


def refusal() -> Text:
    """Marks where "nothing happens ." is said after what was not understood or not allowed; elsewhere at the end."""
    return Text(parts=(Refusal(),))


def _phrases(phrases: Sequence[Phrase]) -> tuple[Words, ...]:
    rows = tuple(() if one is None else (one,) if isinstance(one, str) else tuple(one) for one in phrases)
    if not rows:
        raise ValueError("`phrases` must hold at least one phrase, got none.")
    return rows


# What the builder does with texts.


def has_refusal(said: Text) -> bool:
    """Tells whether a text has a place for the answer to what was not understood."""
    return any(
        isinstance(part, Refusal) or (isinstance(part, Cases) and any(map(has_refusal, part.texts)))
        for part in said.parts
    )


def words_of(said: Text) -> list[str]:
    """Lists the words of a text in the order of their mention, on the host."""
    found: list[str] = []
    for part in said.parts:
        if isinstance(part, Fixed):
            found += part.words
        elif isinstance(part, Pick | Each):
            found += [word for phrase in part.phrases for word in phrase]
        elif isinstance(part, Number):
            found += DIGITS
        elif isinstance(part, Cases):
            found += [word for one in part.texts for word in words_of(one)]
        elif isinstance(part, Span):
            found += part.corpus
        else:
            found += NOTHING_HAPPENS
    return list(dict.fromkeys(found))


def pattern_of(said: Text, ids: Callable[..., np.ndarray]) -> Pattern:
    """Returns all that a text could be.

    Args:
        said: arrays may be abstract.
        ids: of `make_words`.

    Returns:
        The pattern, in word ids.
    """
    names = _names(said)
    chosen = itertools.product(*(range(count) for count in names.values()))
    patterns = [_pattern(said, ids, dict(zip(names, choice))) for choice in chosen]
    return patterns[0] if len(patterns) == 1 else (Choice(tuple(patterns)),)


def _names(said: Text) -> dict[str, int]:
    """Returns the numbers of texts of the choices that have names."""
    found = {}
    for part in said.parts:
        if isinstance(part, Cases):
            found |= {} if part.name is None else {part.name: len(part.texts)}
            for one in part.texts:
                found |= _names(one)
    return found


def _pattern(said: Text, ids: Callable[..., np.ndarray], chosen: dict[str, int]) -> Pattern:
    places = []
    for part in said.parts:
        if isinstance(part, Fixed):
            places.append(ids(*part.words)[None])
        elif isinstance(part, Pick):
            rows = pad_all([ids(*row) for row in dict.fromkeys((*part.phrases, ()))])
            places += [rows] * int(np.prod(part.index.shape, dtype=int))
        elif isinstance(part, Number):
            digits = ids(*DIGITS)[:, None]
            places += [np.append(digits, [[-1]], axis=0)] * part.digits
        elif isinstance(part, Each):
            places.append(Several(pad_all([ids(*row) for row in part.phrases]), part.most))
        elif isinstance(part, Cases) and part.name is not None:
            places += _pattern(part.texts[chosen[part.name]], ids, chosen)
        elif isinstance(part, Cases):
            places.append(Choice((*(_pattern(one, ids, chosen) for one in part.texts), ())))
        elif isinstance(part, Span):
            places.append(Window(ids(*part.corpus), part.most))
        else:
            places.append(Choice(((ids(*NOTHING_HAPPENS)[None],), ())))
    return tuple(places)


def num_words(pattern: Pattern) -> int:
    """Returns the most words of what follows a pattern."""
    total = 0
    for place in pattern:
        if isinstance(place, Choice):
            total += max(map(num_words, place.patterns))
        elif isinstance(place, Window):
            total += min(place.most, len(place.words))
        else:
            sizes = np.sort(np.sum((place.phrases if isinstance(place, Several) else place) >= 0, axis=1))
            total += int(sizes[len(sizes) - (place.most if isinstance(place, Several) else 1) :].sum())
    return total


def write_text(said: Text, ids: Callable[..., np.ndarray], valid: Array) -> Array:
    """Writes a text in word ids.

    Args:
        said: the text.
        ids: of `make_words`.
        valid: bool `[]`, False says "nothing happens ." where the text has a place for it.

    Returns:
        Int32 `[K]`, -1 where nothing is said, which may be anywhere.
    """
    written = [_write(part, ids, valid).astype(jnp.int32) for part in said.parts]
    return jnp.concatenate([*written, jnp.zeros(0, jnp.int32)])


def _write(part, ids: Callable[..., np.ndarray], valid: Array) -> Array:
    if isinstance(part, Fixed):
        return jnp.asarray(ids(*part.words))
    if isinstance(part, Pick):
        return _rows(part.phrases, ids, part.index.reshape(-1)).reshape(-1)
    if isinstance(part, Number):
        return jnp.where(part.value >= 0, number_words(part.value, ids(*DIGITS), part.digits), -1)
    if isinstance(part, Each):
        table = pad_all([ids(*row) for row in part.phrases])
        return jnp.where(part.mask[:, None], jnp.asarray(table), -1).reshape(-1)
    if isinstance(part, Cases):
        texts = [write_text(one, ids, valid) for one in part.texts]
        width = max(one.shape[0] for one in texts)
        out = jnp.full(width, -1, jnp.int32)
        for number, one in enumerate(texts):
            padded = jnp.pad(one, (0, width - one.shape[0]), constant_values=-1)
            out = jnp.where(part.index == number, padded, out)
        return out
    if isinstance(part, Span):
        corpus = np.append(ids(*part.corpus), np.int32(-1))
        offset = np.arange(min(part.most, len(part.corpus)))
        place = part.start + offset
        inside = (offset < part.count) & (place >= 0) & (place < len(part.corpus))
        return jnp.asarray(corpus)[jnp.where(inside, place, len(part.corpus))]
    return jnp.where(valid, -1, jnp.asarray(ids(*NOTHING_HAPPENS)))


def _rows(phrases: tuple[Words, ...], ids: Callable[..., np.ndarray], index: Array) -> Array:
    """Returns the words of the phrases with these indices `[n]`, int32 `[n, width]`."""
    table = pad_all([ids(*row) for row in phrases] + [ids()])
    inside = (index >= 0) & (index < len(phrases))
    return jnp.asarray(table)[jnp.where(inside, index, len(phrases))]
