"""Joint grammars: one is used at a time, as determined by a world or a skin, or all at once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text.grammar import Grammar
from jaxagents.environments.text.parsing import MOST_LISTED, stack_args
from jaxagents.environments.text.templates import require_one_reading
from jaxagents.environments.text.words import make_words, pad_to, translate, translate_pattern
from jaxagents.types import Array, Choice


class _Part(NamedTuple):
    """A grammar as part of the joint one.

    Attributes:
        grammar: the grammar itself.
        ids: int32 numpy `[W]`, ids of its words in the joint table.
        back: int32 numpy `[W']`, own ids of the joint words, -2 for others.
        verb: index of its first verb.
        entry: index of its first entry.
        low: index of its first subgrammar.
        high: index after that of its last subgrammar.
    """

    grammar: Grammar
    ids: np.ndarray
    back: np.ndarray
    verb: int
    entry: int
    low: int
    high: int

    def subgrammar(self, joint: Array | int) -> Array:
        """Returns the subgrammar within the grammar."""
        return jnp.clip(joint - self.low, 0, self.grammar.num_subgrammars - 1)


def own_action(grammar: Grammar, verb: Array, args: Array, first: int) -> tuple[Array, Array]:
    """Returns verb and args of a joint grammar as those of the part whose first verb is `first`; others are clipped."""
    verb = jnp.clip(verb - first, 0, len(grammar.templates) - 1)
    return verb, args[..., : grammar.max_args, : grammar.max_length]


def widen(args: Array, grammar: Grammar) -> Array:
    """Returns args, padded in the last two axes to the size of a larger grammar."""
    rows, length = grammar.max_args - args.shape[-2], grammar.max_length - args.shape[-1]
    return jnp.pad(args, [(0, 0)] * (args.ndim - 2) + [(0, rows), (0, length)], constant_values=-1)


def join_grammars(*grammars: Grammar, together: bool = False) -> Grammar:
    """Joins grammars. Verbs and entries are those of the first grammar, then those of the second, and so on.

    Args:
        *grammars: grammars, at least one.
        together: False: each of them becomes separate subgrammars, in order, which may share words and actions; an
            argument of `parse` determines which one is used. True: all are used at once, and only the first one may
            have subgrammars.

    Returns:
        The grammar.

    Raises:
        ValueError: grammars that are used together have the same action, or a later one has subgrammars.
    """
    if together:
        if any(grammar.num_subgrammars > 1 for grammar in grammars[1:]):
            raise ValueError("`grammars` must have one subgrammar each but the first, to be spoken together.")
        if grammars[0].num_subgrammars == 1:
            require_one_reading([row for grammar in grammars for row in grammar.elements])
    words, ids = make_words(*(grammar.words for grammar in grammars))
    parts = _parts(grammars, ids, len(words), together)
    max_words = max(grammar.max_words for grammar in grammars)
    shape = (max(grammar.max_args for grammar in grammars), max(grammar.max_length for grammar in grammars))
    actions, action_entry = _list_actions(parts, max_words)
    examples = [_rows(part, part.grammar.examples, max_words) for part in parts]
    joint = replace(
        grammars[0],
        templates=sum((grammar.templates for grammar in grammars), ()),
        elements=sum((grammar.elements for grammar in grammars), ()),
        words=words,
        max_words=max_words,
        max_args=shape[0],
        max_length=shape[1],
        entry_verb=np.concatenate([part.grammar.entry_verb + part.verb for part in parts]),
        entry_args=np.concatenate([_wide(part.grammar.entry_args, shape) for part in parts]),
        actions=actions,
        action_entry=action_entry,
        examples=np.unique(np.concatenate(examples), axis=0) if actions is None else actions,
        pattern=(Choice(tuple(translate_pattern(part.grammar.pattern, part.ids) for part in parts)),),
        args=lambda *values: stack_args(values, shape),
        num_subgrammars=max(part.high for part in parts),
    )
    return replace(
        joint, parse=_make_parse(parts, joint), render=_make_render(parts, joint), draw=_make_draw(parts, joint)
    )


def _parts(grammars: Sequence[Grammar], ids, num_words: int, together: bool) -> list[_Part]:
    parts, verb, entry, subgrammar = [], 0, 0, 0
    for grammar in grammars:
        own = ids(*grammar.words)
        back = np.full(num_words, -2, np.int32)
        back[own] = np.arange(len(own))
        low, high = (0, grammars[0].num_subgrammars) if together else (subgrammar, subgrammar + grammar.num_subgrammars)
        parts.append(_Part(grammar, own, back, verb, entry, low, high))
        verb, entry = verb + len(grammar.templates), entry + grammar.num_entries
        subgrammar += grammar.num_subgrammars
    return parts


def _wide(args: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    rows, length = shape[0] - args.shape[1], shape[1] - args.shape[2]
    return np.pad(args, ((0, 0), (0, rows), (0, length)), constant_values=-1)


def _rows(part: _Part, rows: np.ndarray, max_words: int) -> np.ndarray:
    """Returns actions of a part in joint words, int32 `[A, max_words]`."""
    return pad_to(np.append(part.ids, -1)[rows], max_words)


def _list_actions(parts: Sequence[_Part], max_words: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Lists every action once, and its entry in every subgrammar."""
    if any(part.grammar.actions is None for part in parts):
        return None, None
    rows = np.concatenate([_rows(part, part.grammar.actions, max_words) for part in parts])
    number = {row: i for i, row in enumerate(dict.fromkeys(map(tuple, rows.tolist())))}
    if len(number) > MOST_LISTED:
        return None, None
    entries = np.full((max(part.high for part in parts), len(number)), -1, np.int32)
    for part in parts:
        own = [number[tuple(row)] for row in _rows(part, part.grammar.actions, max_words).tolist()]
        for subgrammar in range(part.low, part.high):
            table = np.atleast_2d(part.grammar.action_entry)
            inner = table[min(subgrammar - part.low, len(table) - 1)]
            known = inner >= 0
            entries[subgrammar, np.asarray(own)[known]] = inner[known] + part.entry
    return np.asarray(list(number), np.int32), entries if len(entries) > 1 else entries[0]


def _make_parse(parts: Sequence[_Part], joint: Grammar):
    def parse(action: Array, subgrammar: Array | int = 0) -> tuple[Array, Array, Array, Array]:
        found = jnp.zeros((), jnp.int32), jnp.full((joint.max_args, joint.max_length), -1, jnp.int32)
        verb, args, entry, known = *found, jnp.zeros((), jnp.int32), jnp.zeros((), bool)
        outside = jnp.where(action == -1, -1, -2)
        for part in parts:
            size, inside = part.grammar.max_words, (action >= 0) & (action < len(part.back))
            local = jnp.where(inside, jnp.asarray(part.back)[jnp.where(inside, action, 0)], outside)
            own = part.grammar.parse(local[:size], part.subgrammar(subgrammar))
            here = own[3] & jnp.all(local[size:] == -1) & (subgrammar >= part.low) & (subgrammar < part.high) & ~known
            verb = jnp.where(here, own[0] + part.verb, verb)
            args = jnp.where(here, widen(own[1], joint), args)
            entry, known = jnp.where(here, own[2] + part.entry, entry), known | here
        return verb, args, entry, known

    return parse


def _make_render(parts: Sequence[_Part], joint: Grammar):
    def render(verb: Array, args: Array) -> Array:
        action = jnp.full(joint.max_words, -1, jnp.int32)
        for part in parts:
            own = part.grammar.render(*own_action(part.grammar, verb, args, part.verb))
            own = jnp.pad(translate(own, part.ids), (0, joint.max_words - own.shape[0]), constant_values=-1)
            action = jnp.where(verb >= part.verb, own, action)
        return action

    return render


def _make_draw(parts: Sequence[_Part], joint: Grammar):
    def draw(key: Array, entry: Array) -> tuple[Array, Array]:
        verb, args = jnp.zeros((), jnp.int32), jnp.full((joint.max_args, joint.max_length), -1, jnp.int32)
        for part in parts:
            own = part.grammar.draw(key, jnp.clip(entry - part.entry, 0, part.grammar.num_entries - 1))
            verb = jnp.where(entry >= part.entry, own[0] + part.verb, verb)
            args = jnp.where(entry >= part.entry, widen(own[1], joint), args)
        return verb, args

    return draw
