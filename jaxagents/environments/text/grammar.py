"""What can be said to a text world: templates of actions, with slots that are listed or free."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxagents.types import Array, Pattern

Phrase = str | Sequence[str] | None
"""A word of the table, as "go to"; several in a row, as ("apple", "1"); or None for nothing at all."""


@dataclass(frozen=True, eq=False)
class Grammar:
    """The actions of a world.

    An action in words is int32 `[max_words]`, -1 after the last word. What it says is a *verb*, int32 `[]`, the index
    of its template, and *args*, int32 `[max_args, max_length]`, a row per slot of the template from left to right, all
    -1 where there is none:

    - `{name}`: the index of the phrase among those of the slot, then -1s;
    - `{name:2-4}`: the indices of the 2 to 4 phrases that were said, in order, then -1s;
    - `{int:5}`: the number, then -1s.

    An *entry* is what may be allowed or not: every action of a template without free slots, in the order of the
    templates and then of the phrases (the last slot changes first), and one for a template with a free slot.

    Attributes:
        templates: as given.
        slots: phrases by name, tuples of words.
        words: mentioned here, from which the word table of a world begins; a word id is an index into them.
        max_words: M.
        max_args: at least 1.
        max_length: 1, or the most phrases of a free slot.
        entry_verb: int32 numpy `[E]`.
        entry_args: int32 numpy `[E, max_args, max_length]`, -1 in free slots.
        actions: int32 numpy `[A, M]`, all of them, if there are at most `MOST_LISTED`; else None. Where no slot is
            free, they are the entries.
        examples: int32 numpy `[X, M]`, actions with every phrase of every slot.
        pattern: of the actions.
        parse: `(action int32 [M]) -> (verb, args, entry int32 [], known bool [])`; zeros and -1s where it is none.
        render: `(verb, args) -> int32 [M]`.
        draw: `(key, entry int32 []) -> (verb, args)`, what is free in the entry drawn uniformly.
        args: `(*values) -> int32 [max_args, max_length]`, a value per slot: int32 `[]`, or `[n]` for a free slot.
    """

    templates: tuple[str, ...]
    slots: dict[str, tuple[tuple[str, ...], ...]]
    words: tuple[str, ...]
    max_words: int
    max_args: int
    max_length: int
    entry_verb: np.ndarray
    entry_args: np.ndarray
    actions: np.ndarray | None
    examples: np.ndarray
    pattern: Pattern
    parse: Callable[[Array], tuple[Array, Array, Array, Array]]
    render: Callable[[Array, Array], Array]
    draw: Callable[[Array, Array], tuple[Array, Array]]
    args: Callable[..., Array]

    @property
    def num_entries(self) -> int:
        """Returns E."""
        return len(self.entry_verb)


def make_grammar(*templates: str, words: Sequence[str] = (), **slots: Sequence[Phrase]) -> Grammar:
    """Makes the grammar of a world.

    `make_grammar("look", "go to {place}", "search {term:1-4}", "answer {int:5}", place=("desk", "bed"), term=WORDS)`.
    What stands between slots is one word of the table: "go to" is one, "go to {place} by {way}" has "go to" and "by".

    Args:
        *templates: `{name}` is one of the phrases of a slot; `{name:1-4}` one to four of them, each of which must be
            one word; `{int:5}` a number from 0 of at most five digits (at most nine), written as one word per digit,
            most significant first, without leading zeros.
        words: come first in the word table, in this order.
        **slots: phrases of each slot, all different, none of them None.

    Returns:
        The grammar.

    Raises:
        ValueError: no template; one that cannot be read; a slot without phrases, or that no template has; a phrase that
            is said twice; two readings of the same action (both are shown); words that would be read as others, as
            "go", "to" where there is "go to".
    """
    raise NotImplementedError
