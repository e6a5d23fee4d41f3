"""The number of tokens of the longest text that follows a pattern, computed on the host."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxagents.types import Choice, Pattern, Several

_NEVER = -(10**9)


class _Length(NamedTuple):
    """The largest number of tokens of a part of a text.

    Attributes:
        begins: number of tokens at the beginning of a text, with at least one word; `_NEVER` if it has no words.
        follows: number of tokens after other words.
        optional: whether it can be empty.
    """

    begins: int
    follows: int
    optional: bool


def make_max_tokens(first: Sequence[Sequence[int]], later: Sequence[Sequence[int]]) -> Callable[[int | Pattern], int]:
    """Makes the function that computes the number of tokens of the longest text.

    Args:
        first: tokens of each word at the beginning of a text.
        later: tokens of each word after another word.

    Returns:
        `(pattern) -> int`; a number as the pattern stands for that many words of any kind.
    """
    first_size, later_size = (np.asarray([len(row) for row in pieces]) for pieces in (first, later))

    def of_phrases(phrases: np.ndarray) -> tuple[Any, Any, Any]:
        """Returns the lengths of phrases `[A, n]` that begin a text and that follow, and which ones have words."""
        present = phrases >= 0
        follows = np.sum(np.where(present, later_size[phrases], 0), axis=1)
        opening = np.take_along_axis(phrases, np.argmax(present, axis=1)[:, None], axis=1)[:, 0]
        return follows - later_size[opening] + first_size[opening], follows, present.any(axis=1)

    def of_place(place: np.ndarray | Choice | Several) -> _Length:
        if isinstance(place, Choice):
            lengths = [of_sequence(one) for one in place.patterns]
            return _Length(
                max(length.begins for length in lengths),
                max(length.follows for length in lengths),
                any(length.optional for length in lengths),
            )
        rows = _rows(place)
        if rows.size == 0:
            return _Length(_NEVER, 0, True)
        begins, follows, has_words = of_phrases(rows.reshape(len(rows), -1))
        if isinstance(place, Several):
            rest = [np.sort(follows[i + 1 :])[::-1][: place.most - 1].sum() for i in range(len(follows))]
            return _Length(int(max(begins + rest)), int(np.sort(follows)[::-1][: place.most].sum()), True)
        if not has_words.any():
            return _Length(_NEVER, 0, True)
        return _Length(int(begins[has_words].max()), int(follows.max()), not has_words.all())

    def of_sequence(pattern: Pattern) -> _Length:
        begins, follows, optional = _NEVER, 0, True
        for length in map(of_place, pattern):
            begins = max(begins + length.follows, length.begins if optional else _NEVER)
            follows, optional = follows + length.follows, optional and length.optional
        return _Length(begins, follows, optional)

    def max_tokens(pattern: Any) -> int:
        if isinstance(pattern, int | np.integer):
            pattern = [np.arange(len(first_size))] * pattern
        return max(of_sequence(pattern).begins, 0)

    return max_tokens


def _rows(place: np.ndarray | Several) -> np.ndarray:
    return np.asarray(place.phrases if isinstance(place, Several) else place, np.int64)
