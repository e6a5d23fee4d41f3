"""Converts word ids to tokens and back inside jit, for any tokenizer; the host tokenises every word once."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.language.budgets import make_max_tokens
from jaxagents.language.tokenizers import phrase_reader, require_phrases
from jaxagents.types import Array, Pattern, Tokenizer

Pieces = tuple[int, ...]


class Frames(NamedTuple):
    """Texts of a dialogue with the surroundings that a chat template writes; functions of one text.

    Attributes:
        prompt: `(word_ids, length) -> (tokens [length], mask)`, see `Lexicon.render`.
        observation: `(word_ids, begun bool [], *, length) -> (tokens, mask)`; the last column is always a token.
        thought: like `prompt`, up to the tag that closes it.
        action: like `prompt`, up to its end token.
        openings: first tokens that observations can have.
        opening: last token of an observation.
        text_of_prompt: `(ids) -> ids` on the host, those of a prompt without its surroundings.
        text_of_observation: `(ids, begun) -> ids` on the host, those of an observation without its surroundings.
    """

    prompt: Callable[[Array, int], tuple[Array, Array]]
    observation: Callable[..., tuple[Array, Array]]
    thought: Callable[[Array, int], tuple[Array, Array]]
    action: Callable[[Array, int], tuple[Array, Array]]
    openings: tuple[int, ...]
    opening: int
    text_of_prompt: Callable[[list[int]], list[int]]
    text_of_observation: Callable[[list[int], bool], list[int]]


@dataclass(frozen=True, eq=False)
class Lexicon:
    """The words of a world as tokens of a model. Functions of arrays take one text; callers use `vmap`.

    Two sequences of words can be the same text: with the words "go", "to" and "go to", the ids of "go", "to" may be
    parsed as "go to". `require_readable` checks that this does not happen for a set of actions.

    Attributes:
        words: words; a word id is an index into them.
        tokenizer: tokenizer of the model.
        render: `(word_ids int32 [K], length) -> (tokens int32 [length], mask bool [length])`, the tokens of the text,
            left-aligned and without marks; ids out of range, such as -1, are skipped. Text of more than `length` tokens
            is cut off: `max_tokens` gives a sufficient length.
        parse: `(tokens int32 [A], mask bool [A], num_words) -> (word_ids int32 [num_words], parsed bool [])`, the words
            in the tokens up to the first end mark, -1 after the last. From left to right, the longest matching word is
            taken, with or without a space before it and a capital at its beginning; blank tokens between words and
            masked tokens are skipped. Anything else, no words, or more than `num_words`, gives -1s and False. A word
            that is split into other tokens than the tokenizer's own is not recognised.
        max_tokens: `(num_words)` or `(pattern) -> int`, the exact number of tokens of the longest such text. Places of
            a pattern may also be word ids `[A]`.
        text: `(word_ids) -> str`, on the host.
        encode_words: `(text) -> int32 numpy`, word ids, on the host; raises a ValueError for other text.
        later: tokens of each word after another word.
        frames: surroundings of texts by a chat template; None: marks.
        reads_cut: whether a text without an end is also parsed, as far as it goes.
    """

    words: tuple[str, ...]
    tokenizer: Tokenizer
    render: Callable[[Array, int], tuple[Array, Array]]
    parse: Callable[[Array, Array, int], tuple[Array, Array]]
    max_tokens: Callable[[int | Pattern], int]
    text: Callable[[Sequence[int]], str]
    encode_words: Callable[[str], np.ndarray]
    later: tuple[Pieces, ...]
    frames: Frames | None = None
    reads_cut: bool = False


def make_lexicon(words: Sequence[str], tokenizer: Tokenizer) -> Lexicon:
    """Makes the lexicon of words and a tokenizer.

    Args:
        words: words of a world, such as `Environment.text.words`.
        tokenizer: tokenizer of any kind.

    Returns:
        The lexicon.

    Raises:
        ValueError: see `require_phrases`; or the tokenizer cannot write and read a word, or writes two words alike.
    """
    words = require_phrases(words)
    if not words:
        raise ValueError("`words` must hold at least one word, got none.")
    first, later = _pieces_of_words(words, tokenizer)
    blanks, read = _blank_tokens(tokenizer, first[0]), phrase_reader(words)
    return Lexicon(
        words=words,
        tokenizer=tokenizer,
        render=_make_render(first, later, pad=tokenizer.marks["pad"]),
        parse=_make_parse(_spellings(words, first, later, blanks, tokenizer), blanks, tokenizer),
        max_tokens=make_max_tokens(first, later),
        text=lambda word_ids: " ".join(words[i] for i in np.asarray(word_ids).tolist() if i >= 0),
        encode_words=lambda text: np.asarray(read(text), np.int32),
        later=tuple(later),
    )


def begin_with(lexicon: Lexicon, first: Sequence[Pieces]) -> Lexicon:
    """Returns a lexicon whose texts begin with other tokens, for texts that follow the text of a chat template.

    Args:
        lexicon: lexicon of the words.
        first: tokens of each word at the beginning of a text.

    Returns:
        The lexicon; it parses like the original one.
    """
    render = _make_render(first, lexicon.later, pad=lexicon.tokenizer.marks["pad"])
    return replace(lexicon, render=render, max_tokens=make_max_tokens(first, lexicon.later))


def require_readable(lexicon: Lexicon, actions: np.ndarray) -> None:
    """Checks that the rendered text of every action is parsed as the same action.

    Args:
        lexicon: lexicon of the world.
        actions: int32 `[A, M]`, such as `Environment.text.actions`.

    Raises:
        ValueError: an action is parsed as another one.
    """
    actions = np.asarray(actions, np.int32)
    length = max(lexicon.max_tokens((actions,)), 1)
    back, _ = jax.jit(jax.vmap(lambda row: lexicon.parse(*lexicon.render(row, length), actions.shape[1])))(actions)
    for action, other in zip(actions, np.asarray(back), strict=True):
        if lexicon.text(action) != lexicon.text(other):
            raise ValueError(
                f"`actions` must be read back from their text, got {lexicon.text(action)!r}, which is read as "
                f"{lexicon.text(other)!r}; try words that do not begin with one another."
            )
        if action[action >= 0].tolist() != other[other >= 0].tolist():
            raise ValueError(
                f"`actions` must be read back from their text, got {lexicon.text(action)!r} of the words "
                f"{[lexicon.words[i] for i in action if i >= 0]}, which is read as "
                f"{[lexicon.words[i] for i in other if i >= 0]}; try words that do not begin with one another."
            )


# Host: the pieces of words.


def _pieces_of_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[list[Pieces], list[Pieces]]:
    """Returns the tokens of each word at the beginning of a text, and after another word."""
    first = [_encode(tokenizer, word) for word in words]
    later = [_continuation(tokenizer, word, pieces) for word, pieces in zip(words, first, strict=True)]
    for pieces in (first, later):
        owner: dict[Pieces, str] = {}
        for word, row in zip(words, pieces, strict=True):
            if row in owner:
                raise ValueError(
                    f"`words` must differ in tokens, got the same ones for {owner[row]!r} and {word!r}; try another "
                    "tokenizer or rename one."
                )
            owner[row] = word
    for word, start, rest in zip(words, first, later, strict=True):
        texts = {word: start, f"{words[0]} {word}": (*first[0], *rest)}
        if not all(start and rest and _reads(tokenizer, text, row) for text, row in texts.items()):
            raise ValueError(
                f"`words` must be text that the tokenizer can write, got {word!r}, which it writes as tokens "
                f"{start} and reads as {tokenizer.decode(start)!r}; try another tokenizer or rename it."
            )
    return first, later


def _continuation(tokenizer: Tokenizer, word: str, first: Pieces) -> Pieces:
    """Returns the tokens of " word" in the middle of a text."""
    twice = _encode(tokenizer, f"{word} {word}")
    # Not so if a tokenizer merges words, or adds a space to the front of a text.
    return twice[len(first) :] if twice[: len(first)] == first else _encode(tokenizer, f" {word}")


def _encode(tokenizer: Tokenizer, text: str) -> Pieces:
    return tuple(int(i) for i in tokenizer.encode(text))


def _reads(tokenizer: Tokenizer, text: str, pieces: Pieces) -> bool:
    return (
        not set(pieces) & {*tokenizer.marks.values(), *tokenizer.stops}
        and tokenizer.decode(pieces).split() == text.split()
    )


def _spellings(
    words: Sequence[str], first: Sequence[Pieces], later: Sequence[Pieces], blanks: np.ndarray, tokenizer: Tokenizer
) -> dict[Pieces, int]:
    """Returns the word for every sequence of tokens that stands for one; a word's own spellings take precedence.

    Leading blank tokens are removed, because parsing skips them before it looks for a word.
    """
    rows: dict[Pieces, int] = {}

    def add(row: Pieces, word: int) -> None:
        rows.setdefault(tuple(itertools.dropwhile(lambda token: blanks[token], row)), word)

    for pieces in (first, later):
        for i, row in enumerate(pieces):
            add(row, i)
    for i, word in enumerate(words):
        capital = word[0].upper() + word[1:]
        try:
            start = _encode(tokenizer, capital)
            variants = (start, _continuation(tokenizer, capital, start))
        except ValueError:  # The tokenizer can only write the words.
            continue
        for row in variants:
            if row and _reads(tokenizer, capital, row):
                add(row, i)
    return rows


def _blank_tokens(tokenizer: Tokenizer, word: Pieces) -> np.ndarray:
    """Returns bool `[V]`, tokens that add only whitespace between two words."""
    blank = np.zeros(tokenizer.vocab_size, bool)
    plain = tokenizer.decode([*word, *word])
    for i in set(range(tokenizer.vocab_size)) - {*tokenizer.marks.values(), *tokenizer.stops}:
        text = tokenizer.decode([*word, i, *word])
        blank[i] = text != plain and "".join(text.split()) == "".join(plain.split())
    return blank


# Host to device.


def _make_render(first: Sequence[Pieces], later: Sequence[Pieces], *, pad: int) -> Callable:
    num_words, same = len(first), list(first) == list(later)
    rows = [*first] if same else [*first, *later]
    sizes = np.asarray([len(row) for row in rows], np.int32)
    starts = (np.cumsum(sizes) - sizes).astype(np.int32)
    flat = np.asarray([token for row in rows for token in row], np.int32)

    def render(word_ids: Array, length: int) -> tuple[Array, Array]:
        present = (word_ids >= 0) & (word_ids < num_words)
        row = jnp.where(present, word_ids, 0)
        if not same:
            row = row + jnp.where(_running_sum(present) > 1, num_words, 0)
        size = jnp.where(present, jnp.asarray(sizes)[row], 0)
        end = _running_sum(size)
        place = jnp.arange(length, dtype=jnp.int32)
        word = jnp.sum(end[None, :] <= place[:, None], axis=1, dtype=jnp.int32)
        mask = place < end[-1]
        offset = jnp.asarray(starts)[row] - (end - size)
        index = jnp.where(mask, offset[jnp.minimum(word, word_ids.shape[0] - 1)] + place, 0)
        return jnp.where(mask, jnp.asarray(flat)[index], pad), mask

    return render


def _running_sum(values: Array) -> Array:
    return jnp.cumsum(values, dtype=jnp.int32)


class _Trie(NamedTuple):
    """A tree of token sequences in arrays, as a double array (Aoe, 1989).

    A node is a cell; its child by a token of kind k is cell `base[node] + k` if `parent` of that cell is the node. The
    root is cell 0. Kinds number the tokens that occur from 1, so that the arrays do not grow with the vocabulary.
    """

    base: np.ndarray
    parent: np.ndarray
    word: np.ndarray
    kind: np.ndarray
    depth: int


def _make_trie(rows: Mapping[Pieces, Any], vocab_size: int) -> _Trie:
    kind = np.zeros(vocab_size, np.int32)
    for k, token in enumerate(sorted({token for row in rows for token in row}), start=1):
        kind[token] = k
    children: list[dict[int, int]] = [{}]
    words = [-1]
    for row, word in rows.items():
        node = 0
        for k in kind[list(row)].tolist():
            if k not in children[node]:
                children[node][k] = len(children)
                children.append({})
                words.append(-1)
            node = children[node][k]
        words[node] = word
    # Parents come before their children. The first fit from the first free cell packs tightly.
    cell, bases, used, free = [0] * len(children), [0] * len(children), {0}, 1
    for node, kids in enumerate(children):
        if kids:
            first = max(free - min(kids), 0)
            bases[node] = next(b for b in itertools.count(first) if used.isdisjoint(b + k for k in kids))
            for k, child in kids.items():
                cell[child] = bases[node] + k
            used.update(cell[child] for child in kids.values())
            while free in used:
                free += 1
    size = max(cell) + int(kind.max()) + 1
    base, parent, word = np.zeros(size, np.int32), np.full(size, -1, np.int32), np.full(size, -1, np.int32)
    for node, kids in enumerate(children):
        base[cell[node]], word[cell[node]] = bases[node], words[node]
        parent[[cell[child] for child in kids.values()]] = cell[node]
    return _Trie(base=base, parent=parent, word=word, kind=kind, depth=max(map(len, rows)))


def _longest_match(trie: _Trie, kinds: Array) -> tuple[Array, Array]:
    """Returns the longest word at the start of kinds `[trie.depth]`, and its number of tokens; -1 and 0 if none."""
    base, parent, words = (jnp.asarray(array) for array in (trie.base, trie.parent, trie.word))
    node, word, size = jnp.zeros((), jnp.int32), jnp.full((), -1, jnp.int32), jnp.zeros((), jnp.int32)
    alive = jnp.ones((), bool)
    for depth in range(trie.depth):
        child = base[node] + kinds[depth]
        alive = alive & (parent[child] == node)
        node = jnp.where(alive, child, 0)
        found = words[node]
        word, size = jnp.where(found >= 0, found, word), jnp.where(found >= 0, depth + 1, size)
    return word, size


def _make_parse(rows: Mapping[Pieces, int], blanks: np.ndarray, tokenizer: Tokenizer) -> Callable:
    trie = _make_trie(rows, tokenizer.vocab_size)

    def parse(tokens: Array, mask: Array, num_words: int) -> tuple[Array, Array]:
        live = mask & (_running_sum(mask & tokenizer.is_end(tokens)) == 0)
        index = jnp.clip(tokens, 0, tokenizer.vocab_size - 1)
        known = live & (index == tokens)
        blank = ~live | (known & jnp.asarray(blanks)[index]) if blanks.any() else ~live
        kind = jnp.where(known, jnp.asarray(trie.kind)[index], 0)
        kind = jnp.pad(kind, (0, trie.depth))
        num_places = tokens.shape[0]
        place = jnp.where(blank, num_places, jnp.arange(num_places, dtype=jnp.int32))
        # The next place, from each one on, that is not blank.
        solid = jnp.pad(jax.lax.cummin(place, reverse=True), (0, 1), constant_values=num_places)

        def read(start: Array, _: None) -> tuple[Array, Array]:
            start = solid[start]
            word, size = _longest_match(trie, jax.lax.dynamic_slice(kind, (start,), (trie.depth,)))
            return start + size, word

        stop, words = jax.lax.scan(read, jnp.zeros((), jnp.int32), length=num_words)
        parsed = (words[0] >= 0) & (solid[stop] == num_places)
        return jnp.where(parsed, words, -1), parsed

    return parse
