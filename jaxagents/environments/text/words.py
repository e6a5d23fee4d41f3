"""Word tables of text worlds: phrases to ids on the host, and arrays of ids inside jit. -1 is no word."""

import difflib
from collections.abc import Callable, Iterable, Sequence

import jax.numpy as jnp
import numpy as np

from jaxagents.types import Array, Choice, Pattern, Several

DIGITS = tuple("0123456789")
_OFFERED = 3  # Words that an error lists if none is similar.
NOTHING_HAPPENS = ("nothing happens", ".")
"""What every world answers to an action that it does not understand or allow."""


def make_words(*groups: Iterable[str]) -> tuple[tuple[str, ...], Callable[..., np.ndarray]]:
    """Makes the word table of a world.

    Args:
        *groups: groups of phrases; the ids follow the order of the first occurrence, and repetitions count once. The
            words of a group that comes first, such as `DIGITS`, therefore have consecutive ids.

    Returns:
        `words`, and `ids(*phrases) -> int32 numpy [len(phrases)]`, which refuses a phrase that is not in the table.

    Raises:
        ValueError: a phrase is empty or has white space around it: it could not be read back from text.
    """
    words = tuple(dict.fromkeys(phrase for group in groups for phrase in group))
    for word in words:
        if not word or word != word.strip():
            raise ValueError(f"a phrase must be text without white space around it, got {word!r}.")
    index = {word: i for i, word in enumerate(words)}

    def ids(*phrases: str) -> np.ndarray:
        for phrase in phrases:
            if phrase not in index:
                near = difflib.get_close_matches(phrase, words, n=1)
                raise ValueError(f"`phrases` must be of the word table, got {phrase!r}; try {near or words[:5]}.")
        return np.asarray([index[phrase] for phrase in phrases], np.int32)

    return words, ids


def pad_to(ids: np.ndarray, length: int) -> np.ndarray:
    """Pads the last axis with -1 up to `length`, on the host.

    Raises:
        ValueError: there are more ids than `length`.
    """
    ids = np.asarray(ids, np.int32)
    missing = length - ids.shape[-1]
    if missing < 0:
        raise ValueError(f"`length` must be at least the {ids.shape[-1]} ids, got {length}.")
    return np.pad(ids, [(0, 0)] * (ids.ndim - 1) + [(0, missing)], constant_values=-1)


def pad_all(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Stacks rows of different lengths into int32 `[len(rows), length of the longest]`, on the host."""
    length = max(len(row) for row in rows)
    return np.stack([pad_to(row, length) for row in rows])


def compact(ids: Array) -> Array:
    """Moves the words of a sequence to the front and the -1s to the end, keeping the order of the words.

    Worlds place their optional parts at fixed positions and close the gaps at the end. The cost is quadratic in the
    length, but less than that of a sort for the roughly forty words of an observation.

    Args:
        ids: int32 `[K]`.

    Returns:
        Int32 `[K]`.
    """
    present = ids >= 0
    earlier = np.tri(ids.shape[0], k=-1, dtype=bool)  # [i, j]: j comes before i.
    place = jnp.sum(present[None, :] & earlier, axis=1, dtype=jnp.int32)
    here = (place[None, :] == jnp.arange(ids.shape[0])[:, None]) & present[None, :]
    return jnp.sum(jnp.where(here, ids[None, :] + 1, 0), axis=1, dtype=jnp.int32) - 1


def number_words(number: Array, digit_ids: np.ndarray, num_digits: int) -> Array:
    """Writes a number as one word per digit, most significant first, without leading zeros.

    Args:
        number: int32 `[]`, from 0 to `10**num_digits - 1`; other numbers are clipped to that range.
        digit_ids: int32 numpy `[10]`, the ids of `DIGITS`.
        num_digits: maximum number of digits.

    Returns:
        Int32 `[num_digits]`, -1 after the last digit.
    """
    powers = 10 ** np.arange(num_digits - 1, -1, -1, dtype=np.int32)
    number = jnp.clip(number, 0, 10**num_digits - 1)
    digits = number // jnp.asarray(powers) % 10
    leading = jnp.sum(number < jnp.asarray(powers[:-1]), dtype=jnp.int32)
    place = jnp.arange(num_digits) + leading
    return jnp.where(place < num_digits, jnp.asarray(digit_ids)[digits][jnp.minimum(place, num_digits - 1)], -1)


def find_row(action: Array, rows: np.ndarray) -> tuple[Array, Array]:
    """Finds an action among the well-formed ones.

    Args:
        action: int32 `[M]`, arbitrary numbers.
        rows: int32 numpy `[A, M]`, all different.

    Returns:
        The index of the row, int32 `[]`, 0 if there is none; and whether there is one.
    """
    matches = jnp.all(action[None, :] == jnp.asarray(rows), axis=1)
    return jnp.argmax(matches).astype(jnp.int32), jnp.any(matches)


def sentence(words: Sequence[str], ids: np.ndarray | Array) -> str:
    """Writes ids as text, on the host; -1s are left out."""
    return " ".join(words[i] for i in np.asarray(ids).tolist() if i >= 0)


def read_words(
    text: str, words: Sequence[str], read: Callable[[str], Sequence[int] | np.ndarray], room: int
) -> np.ndarray:
    """Reads a line as the words of a world.

    Args:
        text: typed line.
        words: words of the world.
        read: `(text) -> word ids`, such as `Lexicon.encode_words`.
        room: maximum number of words.

    Returns:
        int32 `[room]`, -1 after the last one.

    Raises:
        ValueError: a word is unknown (the nearest ones are suggested), or there are too many words.
    """
    text = " ".join(text.split())
    try:
        ids = read(text)
    except ValueError as error:
        parts = {part for word in words for part in word.split()}
        known = {part.lower(): part for part in parts}
        unknown = [part for part in text.split() if part not in parts]
        near = [known[m] for part in unknown for m in difflib.get_close_matches(part.lower(), known, n=2, cutoff=0.4)]
        offers = list(dict.fromkeys(near)) or list(words[:_OFFERED])
        raise ValueError(f"{error} Try {' or '.join(map(repr, offers))}.") from error
    if len(ids) > room:
        raise ValueError(f"`text` must have at most {room} words, got {len(ids)}.")
    return pad_to(np.asarray(ids), room)


def translate(ids: Array, table: np.ndarray | Array) -> Array:
    """Returns `table[ids]`, int32 of any shape; -1 is unchanged."""
    return jnp.where(ids >= 0, jnp.asarray(table, jnp.int32)[ids], -1)


def translate_pattern(pattern: Pattern, table: np.ndarray) -> Pattern:
    """Returns a pattern in the ids of another table, in which its id i is `table[i]`."""
    inner = np.append(table, np.int32(-1)).astype(np.int32)
    places = []  # type: list[np.ndarray | Choice | Several]
    for place in pattern:
        if isinstance(place, Choice):
            places.append(Choice(tuple(translate_pattern(one, table) for one in place.patterns)))
        elif isinstance(place, Several):
            places.append(Several(inner[place.phrases], place.most))
        else:
            places.append(inner[place])
    return tuple(places)
