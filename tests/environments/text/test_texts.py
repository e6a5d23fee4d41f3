"""Texts: what is said, how long it can be, and in how many tokens."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text.texts import (
    board,
    cases,
    each,
    number,
    pick,
    refusal,
    text,
    when,
)
from jaxagents.environments.text.words import DIGITS, make_words, sentence
from jaxagents.environments.text.writing import num_words, pattern_of, words_of, write_text
from jaxagents.language.lexicon import make_lexicon
from jaxagents.language.tokenizers import byte_level, train_sentencepiece, word_level

YES = jnp.ones((), bool)
FRUIT = ("apple", "fig", ("dragon", "fruit"))


def say(phrase, valid=YES):
    words, ids = make_words(words_of(phrase))
    written = write_text(phrase, ids, valid)
    assert written.dtype == jnp.int32 and int((written >= 0).sum()) <= num_words(pattern_of(phrase, ids))
    return sentence(words, written)


@pytest.mark.parametrize(
    ("phrase", "expected"),
    [
        (text("you see", ("apple", "1"), None, "."), "you see apple 1 ."),
        (pick(FRUIT, 2), "dragon fruit"),
        (pick(FRUIT, -1), ""),
        (pick(FRUIT, 3), ""),
        (pick(FRUIT, jnp.asarray([1, -1, 0])), "fig apple"),
        (number(jnp.int32(105), 4), "1 0 5"),
        (text("have", number(jnp.int32(-1), 4)), "have"),
        (each(FRUIT, jnp.asarray([True, False, True])), "apple dragon fruit"),
        (when(jnp.asarray(False), "yes", text("no", ".")), "no ."),
        (when(jnp.asarray(False), "yes"), ""),
        (cases(1, "a", ("b", "c"), "d"), "b c"),
        (cases(3, "a", "b"), ""),
        (board("_#", jnp.asarray([[0, 1], [1, 1]])), "_ # / # #"),
        (board("_#", jnp.asarray([[0, -1], [1, -1], [-1, -1]])), "_ / #"),
        (text("a", refusal(), "b"), "a b"),
    ],
)
def test_what_is_said(phrase, expected):
    assert say(phrase) == expected


def test_a_refusal_is_said_where_it_stands():
    assert say(text("a", refusal(), "b"), jnp.zeros((), bool)) == "a nothing happens . b"


def test_choices_are_traced():
    def count(number_of):
        phrase = text(when(number_of > 1, pick(FRUIT, number_of), "one"), number(number_of, 2))
        return write_text(phrase, make_words(words_of(phrase))[1], YES)

    rows = jax.jit(jax.vmap(count))(jnp.asarray([1, 2]))
    words = make_words(["apple", "fig", "dragon", "fruit", "one", *DIGITS])[0]
    assert [sentence(words, row) for row in rows] == ["one 1", "dragon fruit 2"]


def test_phrases_are_needed():
    with pytest.raises(ValueError, match="`phrases` must hold at least one phrase, got none"):
        pick((), 0)
    with pytest.raises(ValueError, match="`mask` must have one entry per phrase, got \\(2,\\) for 3 phrases"):
        each(FRUIT, jnp.ones(2, bool))


def household(place, held, mask):
    """A text with optional parts, correlated choices, a subset and a number."""
    seen = cases(held, each(FRUIT, mask, most=2), each(FRUIT, mask, most=1), name="hand")
    return text(
        when(place > 5, "far"),
        cases(place, text("closed box"), "tablecloth", name="place"),
        cases(held, "nothing", pick(FRUIT, place), name="hand"),
        cases(place, None, seen, name="place"),
        when(place > 3, number(place, 2), refusal()),
    )


def everything(words):
    """All texts that the constructors above could say, on the host."""
    subsets = {count: [c for n in range(count + 1) for c in itertools.combinations(FRUIT, n)] for count in (1, 2)}
    ends = [[*str(n)] for n in (1, 22, 99)] + [["nothing happens", "."], []]
    for far, place, held in itertools.product((0, 1), (0, 1), (0, 1)):
        for fruit, seen in itertools.product(FRUIT, subsets[2 - held] if place else [()]):
            for end in ends:
                phrases = [["far"] * far, [("closed box", "tablecloth")[place]], ["nothing"] if not held else [fruit]]
                flat = [*sum(phrases, []), *seen, *end]
                yield [word for one in flat for word in ((one,) if isinstance(one, str) else one)]


@pytest.mark.parametrize(
    "kind",
    [word_level, byte_level, partial(train_sentencepiece, vocab_size=60, model_type="bpe", whole_words=False)],
    ids=["words", "bytes", "bpe"],
)
def test_the_room_for_the_longest_text_is_exact(kind):
    phrase = jax.eval_shape(household, jnp.int32(0), jnp.int32(0), jnp.ones(3, bool))
    words, ids = make_words(words_of(phrase))
    lexicon, pattern = make_lexicon(words, kind(words)), pattern_of(phrase, ids)
    texts = list(everything(words))
    assert num_words(pattern) == max(map(len, texts))
    longest = max(len(lexicon.tokenizer.encode(" ".join(one))) for one in texts)
    assert lexicon.max_tokens(pattern) == longest


def test_a_text_that_begins_with_something_optional():
    # As bytes, a word that begins a text needs no space before it.
    phrase = text(when(True, "ox"), each(("cow", "camel"), jnp.ones(2, bool), most=1))
    words, ids = make_words(words_of(phrase))
    lexicon = make_lexicon(words, byte_level(words))
    assert lexicon.max_tokens(pattern_of(phrase, ids)) == len("ox camel")
    assert lexicon.max_tokens(pattern_of(each(("cow", "camel"), jnp.ones(2, bool), most=1), ids)) == len("camel")
    assert lexicon.max_tokens((np.asarray([[0]]),)) == len("ox") and lexicon.max_tokens(2) == len("camel camel")
