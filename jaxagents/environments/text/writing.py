"""How the builder processes texts: their words, all their possible values, and the ids that they produce."""

import itertools
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text.texts import (
    Cases,
    Each,
    Fixed,
    Number,
    Pick,
    Quote,
    Refusal,
    Renamed,
    Text,
    Words,
    refusal,
    text,
)
from jaxagents.environments.text.words import (
    DIGITS,
    NOTHING_HAPPENS,
    make_words,
    number_words,
    pad_all,
    translate,
    translate_pattern,
)
from jaxagents.types import Array, Choice, Pattern, Several

Ids = Callable[..., np.ndarray]


def has_refusal(phrase: Text) -> bool:
    """Returns whether a text has a place for the answer to an action that was not understood."""
    return any(isinstance(part, Refusal) or any(map(has_refusal, _texts_in(part))) for part in phrase.parts)


def _texts_in(part) -> tuple[Text, ...]:
    """Returns the texts of which a part consists."""
    return part.texts if isinstance(part, Cases) else (part.text,) if isinstance(part, Renamed) else ()


def with_refusal(phrase: Text) -> Text:
    """Returns a text that answers actions that were not understood, at its end if it has no other place for it."""
    return phrase if has_refusal(phrase) else text(phrase, refusal())


def words_of(whole: Text) -> list[str]:
    """Lists the words of a text in order of appearance, on the host."""
    found: list[str] = []
    for part in whole.parts:
        if isinstance(part, Fixed):
            found += part.words
        elif isinstance(part, Pick | Each):
            found += [word for phrase in part.phrases for word in phrase]
        elif isinstance(part, Number):
            found += DIGITS
        elif isinstance(part, Cases):
            found += [word for one in part.texts for word in words_of(one)]
        elif isinstance(part, Quote):
            found += part.source.words
        elif isinstance(part, Renamed):
            found += [dict(names).get(word, word) for names in part.names for word in words_of(part.text)]
        else:
            found += NOTHING_HAPPENS
    return list(dict.fromkeys(found))


def pattern_of(phrase: Text, ids: Ids) -> Pattern:
    """Returns all possible values of a text.

    Args:
        phrase: text, whose arrays may be abstract.
        ids: word ids, see `make_words`.

    Returns:
        The pattern, in word ids.
    """
    names = _names(phrase)
    chosen = itertools.product(*(range(count) for count in names.values()))
    patterns = [_pattern(phrase, ids, dict(zip(names, choice))) for choice in chosen]
    return patterns[0] if len(patterns) == 1 else (Choice(tuple(patterns)),)


def _names(phrase: Text) -> dict[str, int]:
    """Returns the number of texts of each named choice."""
    found = {}  # type: dict[str, int]
    for part in phrase.parts:
        if isinstance(part, Cases):
            found |= {} if part.name is None else {part.name: len(part.texts)}
        for one in _texts_in(part):
            found |= _names(one)
    return found


def _pattern(phrase: Text, ids: Ids, chosen: dict[str, int]) -> Pattern:
    places = []  # type: list[np.ndarray | Choice | Several]
    for part in phrase.parts:
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
        elif isinstance(part, Quote):
            places.append(Choice((translate_pattern(part.source.pattern, ids(*part.source.words)), ())))
        elif isinstance(part, Renamed):
            places.append(Choice(tuple(_pattern(part.text, _renaming(ids, names), chosen) for names in part.names)))
        else:
            places.append(Choice(((ids(*NOTHING_HAPPENS)[None],), ())))
    return tuple(places)


def _renaming(ids: Ids, names: tuple[tuple[str, str], ...]) -> Ids:
    return lambda *phrases: ids(*(dict(names).get(phrase, phrase) for phrase in phrases))


def num_words(pattern: Pattern) -> int:
    """Returns the maximum number of words of what matches a pattern."""
    total = 0
    for place in pattern:
        if isinstance(place, Choice):
            total += max(map(num_words, place.patterns))
        else:
            sizes = np.sort(np.sum((place.phrases if isinstance(place, Several) else place) >= 0, axis=1))
            total += int(sizes[len(sizes) - (place.most if isinstance(place, Several) else 1) :].sum())
    return total


def write_text(phrase: Text, ids: Ids, valid: Array) -> Array:
    """Writes a text in word ids.

    Args:
        phrase: text to write.
        ids: word ids, see `make_words`.
        valid: bool `[]`; False: "nothing happens ." is written if the text has a place for it.

    Returns:
        Int32 `[K]`, -1 for missing words, which may be anywhere.
    """
    written = [_write(part, ids, valid).astype(jnp.int32) for part in phrase.parts]
    return jnp.concatenate([*written, jnp.zeros(0, jnp.int32)])


def _write(part, ids: Ids, valid: Array) -> Array:
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
    if isinstance(part, Quote):
        return translate(part.ids, ids(*part.source.words))
    if isinstance(part, Renamed):
        words, own_ids = make_words(words_of(part.text))
        tables = np.stack([_renaming(ids, names)(*words) for names in part.names])
        return translate(write_text(part.text, own_ids, valid), jnp.asarray(tables)[part.index])
    return jnp.where(valid, -1, jnp.asarray(ids(*NOTHING_HAPPENS)))


def _rows(phrases: tuple[Words, ...], ids: Ids, index: Array) -> Array:
    """Returns the words of the phrases with these indices `[n]`, int32 `[n, width]`."""
    table = pad_all([ids(*row) for row in phrases] + [ids()])
    inside = (index >= 0) & (index < len(phrases))
    return jnp.asarray(table)[jnp.where(inside, index, len(phrases))]
