"""Lexicons: words to tokens and back, for every kind of tokenizer."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagents.language.lexicon import make_lexicon, require_readable
from jaxagents.language.tokenizers import byte_level, from_huggingface, train_sentencepiece, word_level
from tests.fakes import byte_pairs

WORDS = ("go to", "fridge 1", "fridge 12", "take", "apple", ".", "you see", "Nothing", "go")
KINDS = ("word_level", "byte_level", "unigram", "bpe", "huggingface")
MAX_TOKENS, NUM_WORDS = 48, 4


@functools.cache
def lexicon_of(kind):
    tokenizer = {
        "word_level": word_level,
        "byte_level": byte_level,
        "unigram": functools.partial(train_sentencepiece, vocab_size=60),
        "bpe": functools.partial(train_sentencepiece, vocab_size=45, model_type="bpe", whole_words=False),
        "huggingface": lambda words: from_huggingface(words, byte_pairs(285, " ".join(WORDS)), add_special_tokens=True),
    }[kind](WORDS)
    return make_lexicon(WORDS, tokenizer)


@functools.cache
def compiled(kind):
    """Returns `render` and `parse` of a batch, compiled once for all tests."""
    lexicon = lexicon_of(kind)
    render = jax.jit(jax.vmap(lambda ids: lexicon.render(ids, MAX_TOKENS)))
    parse = jax.jit(jax.vmap(lambda tokens, mask: lexicon.parse(tokens, mask, NUM_WORDS)))
    return render, parse


def padded(ids, length=NUM_WORDS):
    return np.asarray([*ids, *[-1] * (length - len(ids))], np.int32)


def parse_tokens(kind, tokens, live=None):
    """Returns the word ids that are read from a list of tokens, or None where nothing is."""
    row = np.zeros((1, MAX_TOKENS), np.int32)
    row[0, : len(tokens)] = tokens
    mask = np.arange(MAX_TOKENS)[None, :] < len(tokens) if live is None else live
    word_ids, parsed = compiled(kind)[1](row, mask)
    assert word_ids.dtype == jnp.int32 and word_ids.shape == (1, NUM_WORDS) and parsed.dtype == bool
    ids = [i for i in word_ids[0].tolist() if i >= 0]
    assert word_ids[0].tolist() == padded(ids).tolist()
    assert bool(parsed[0]) == bool(ids)
    return ids if ids else None


def parse_text(kind, text):
    return parse_tokens(kind, lexicon_of(kind).tokenizer.encode(text))


def test_rendering_by_hand():
    lexicon = lexicon_of("word_level")
    tokens, mask = lexicon.render(jnp.asarray([0, 2, -1, 5, -1]), 4)
    np.testing.assert_array_equal(tokens, [5, 7, 10, 0])
    np.testing.assert_array_equal(mask, [True, True, True, False])
    assert tokens.dtype == jnp.int32 and mask.dtype == bool
    lexicon = lexicon_of("byte_level")
    tokens, mask = lexicon.render(jnp.asarray([-1, 8, 5, -1]), 6)
    np.testing.assert_array_equal(tokens, [ord("g") + 5, ord("o") + 5, 37, ord(".") + 5, 0, 0])
    np.testing.assert_array_equal(mask, [True] * 4 + [False] * 2)
    # Text that is too long is cut; ids out of range are no words.
    np.testing.assert_array_equal(lexicon.render(jnp.asarray([8, 5]), 3)[0], tokens[:3])
    np.testing.assert_array_equal(lexicon.render(jnp.asarray([9, 8, -2, 5, 100]), 6)[0], tokens)
    assert not lexicon.render(jnp.asarray([-1, -1]), 3)[1].any()


@pytest.mark.parametrize("kind", KINDS)
def test_rendering_is_encoding_and_is_read_back(kind):
    lexicon = lexicon_of(kind)
    render, parse = compiled(kind)
    ids = np.random.default_rng(0).integers(-1, len(WORDS), (64, NUM_WORDS)).astype(np.int32)
    tokens, mask = render(ids)
    word_ids, parsed = parse(tokens, mask)
    for row, row_tokens, row_mask, read, good in zip(ids, *map(np.asarray, (tokens, mask, word_ids, parsed))):
        expected = lexicon.tokenizer.encode(lexicon.text(row))
        assert row_tokens[row_mask].tolist() == expected == row_tokens[: len(expected)].tolist()
        assert (row_tokens[~row_mask] == lexicon.tokenizer.marks["pad"]).all()
        assert read.tolist() == padded(row[row >= 0]).tolist()
        assert good == (row >= 0).any()
    one = lexicon.render(jnp.asarray(ids[0]), MAX_TOKENS)  # Neither compiled nor in a batch.
    np.testing.assert_array_equal(one[0], tokens[0])
    np.testing.assert_array_equal(lexicon.parse(*one, NUM_WORDS)[0], word_ids[0])


@pytest.mark.parametrize("kind", KINDS)
def test_any_tokens_are_read_as_what_they_say_or_not_at_all(kind):
    lexicon = lexicon_of(kind)
    tokenizer, end = lexicon.tokenizer, lexicon.tokenizer.marks["end"]
    pieces = sorted({token for word in WORDS for token in tokenizer.encode(f"{word} {word}")})
    token = st.one_of(st.sampled_from(pieces), st.sampled_from(pieces), st.integers(-2, tokenizer.vocab_size + 1))
    word = st.sampled_from(WORDS).map(tokenizer.encode)

    @given(st.lists(st.one_of(word, token.map(lambda one: [one])), max_size=5))
    @settings(max_examples=150, deadline=None)
    def check(parts):
        tokens = [one for part in parts for one in part]
        ids = parse_tokens(kind, tokens)
        output = tokens[: tokens.index(end)] if end in tokens else tokens
        if ids is not None:
            assert set(ids) <= set(range(len(WORDS))) and not set(output) & set(tokenizer.marks.values())
            without_spaces = "".join(tokenizer.decode(output).split()).lower()
            assert without_spaces == "".join(lexicon.text(ids).split()).lower()

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_parsing_stops_at_the_end_and_refuses_everything_else(kind):
    tokenizer = lexicon_of(kind).tokenizer
    marks, take = tokenizer.marks, tokenizer.encode("take apple")
    assert parse_tokens(kind, take) == [3, 4]
    assert parse_tokens(kind, [*take, marks["end"], marks["act"], *take]) == [3, 4]
    assert parse_tokens(kind, [marks["end"], *take]) is None
    assert parse_tokens(kind, []) is None
    for mark in ("pad", "observation", "think", "act"):
        assert parse_tokens(kind, [*take, marks[mark]]) is None
        assert parse_tokens(kind, [marks[mark], *take]) is None
    for other in (-1, tokenizer.vocab_size, 2**31 - 1, -(2**31)):
        assert parse_tokens(kind, [*take, other]) is None
    assert parse_text(kind, "take take take apple") == [3, 3, 3, 4]
    assert parse_text(kind, "take take take apple apple") is None
    assert parse_text(kind, "go to fridge 12") == [0, 2]  # The longest words.
    # Only what the mask shows is there.
    live = np.arange(MAX_TOKENS)[None, :] < len(tokenizer.encode("take"))
    assert parse_tokens(kind, take, live) == [3]
    assert parse_tokens(kind, take, np.zeros_like(live)) is None
    assert parse_tokens(kind, [-1, *take], np.arange(MAX_TOKENS)[None, :] > 0) is None  # Padding may be anything,
    shown = (np.arange(MAX_TOKENS)[None, :] > 0) & (np.arange(MAX_TOKENS)[None, :] <= len(take))
    assert parse_tokens(kind, [-1, *take], shown) == [3, 4]  # and be on the left.


@pytest.mark.parametrize("kind", ["byte_level", "huggingface"])
def test_parsing_takes_what_models_write(kind):
    for text in ("Take apple", " take Apple", "\n\ntake  apple \n", "\t take\tapple", "takeapple"):
        assert parse_text(kind, text) == [3, 4]
    assert parse_text(kind, "nothing take") is None  # A word keeps its own capital.
    for text in ("take appl", "take pear", "take apples", "TAKE apple", "take, apple", "\ufffd", "  \n"):
        assert parse_text(kind, text) is None


def test_a_lone_space_of_sentencepiece_is_blank():
    tokenizer = lexicon_of("unigram").tokenizer
    go = tokenizer.encode("go")
    space = next(i for i in range(6, tokenizer.vocab_size) if tokenizer.decode([*go, i, *go]) == "go  go")
    assert parse_tokens("unigram", [space, *tokenizer.encode("take"), space, *tokenizer.encode("apple")]) == [3, 4]
    assert parse_tokens("unigram", [space]) is None


@pytest.mark.parametrize("kind", KINDS)
def test_max_tokens_is_the_longest_text(kind):
    lexicon = lexicon_of(kind)
    texts = [lexicon.text(ids) for n in (1, 2) for ids in itertools.product(range(len(WORDS)), repeat=n)]
    sizes = {text: len(lexicon.tokenizer.encode(text)) for text in texts}
    assert lexicon.max_tokens(0) == 0
    assert lexicon.max_tokens(1) == max(sizes[word] for word in WORDS)
    assert lexicon.max_tokens(2) == max(sizes.values())
    assert lexicon.max_tokens([[8, -1], [5], [-1]]) == sizes["go ."]
    assert lexicon.max_tokens([[-1], [1, 2], [-1, -1], [4]]) == sizes["fridge 12 apple"]
    assert lexicon.max_tokens(np.asarray([[0, 1], [3, -1]]).T) == max(sizes["go to fridge 1"], sizes["take fridge 1"])
    assert lexicon.max_tokens([[2, 8], [-1, 5]]) >= sizes["fridge 12"]
    # Phrases of several words, one of which may be none at all.
    assert lexicon.max_tokens([[[0, 1], [3, -1]]]) == max(sizes["go to fridge 1"], sizes["take"])
    assert lexicon.max_tokens([[[-1, -1], [4, 5]], [8]]) == len(lexicon.tokenizer.encode(lexicon.text([4, 5, 8])))


def test_text_on_the_host():
    lexicon = lexicon_of("byte_level")
    assert lexicon.text(np.asarray([0, 2, -1])) == "go to fridge 12"
    ids = lexicon.encode_words("go to  fridge 12 go")
    assert ids.tolist() == [0, 2, 8] and ids.dtype == np.int32
    with pytest.raises(ValueError, match="`text` must be made of the words, got 'pear'"):
        lexicon.encode_words("take pear")


def test_actions_that_read_as_others_are_refused():
    words = ("go", "to", "go to", "goto")
    actions = np.asarray([[2, -1], [1, 0]])
    require_readable(make_lexicon(words, byte_level()), actions)
    message = r"got 'go to' of the words \['go', 'to'\], which is read as \['go to'\]"
    for wrong in ([[0, 1]], [[2, -1], [0, 1]]):
        with pytest.raises(ValueError, match=message):
            require_readable(make_lexicon(words, byte_level()), np.asarray(wrong))
    # Phrases that are single tokens cannot be mistaken.
    require_readable(make_lexicon(words, word_level(words)), np.asarray([[0, 1], [2, -1]]))
    # A capital belongs first to the word that is written with it.
    require_readable(make_lexicon(("Mug", "mug"), byte_level()), np.asarray([[0, 1], [1, -1]]))
    # The longest word first may lead nowhere.
    dead_end = make_lexicon(("a", "a b", "b c"), byte_level())
    with pytest.raises(ValueError, match="got 'a b c', which is read as ''"):
        require_readable(dead_end, np.asarray([[0, 2]]))


def test_spaces_in_front_of_a_text_are_no_matter():
    """Some tokenizers begin every text with a space, so that words look the same everywhere."""
    backend = byte_pairs(285, " ".join(WORDS), add_prefix_space=True)
    lexicon = make_lexicon(WORDS, from_huggingface(WORDS, backend, add_special_tokens=True))
    tokens, mask = lexicon.render(jnp.asarray([3, 4]), 12)
    assert np.asarray(tokens)[np.asarray(mask)].tolist() == backend.encode("take apple").ids
    require_readable(lexicon, np.asarray([[0, 2], [3, 4], [5, -1]]))


def uncased(words):
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"go": 0, "see": 1, "[UNK]": 2}, unk_token="[UNK]"))
    backend.normalizer = tokenizers.normalizers.Lowercase()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return from_huggingface(words, backend, add_special_tokens=True)


@pytest.mark.parametrize(
    ("words", "tokenizer", "message"),
    [
        (("go", "see", "Go"), uncased, "must differ in tokens, got the same ones for 'go' and 'Go'"),
        (("go", "See"), uncased, "must be text that the tokenizer can write, got 'See'"),
        (("go", "look"), uncased, "must be text that the tokenizer can write, got 'look'"),
        (("go", "pot"), lambda words: train_sentencepiece(("go",), vocab_size=20), "can write, got 'pot'"),
        (("go", "a"), lambda words: uncased(words)._replace(encode=lambda text: [] if "a" in text else [0]), "'a'"),
        (("go", "go"), uncased, "`words` must be different, got 'go' twice"),
        ((), uncased, "`words` must hold at least one word"),
    ],
)
def test_words_that_the_tokenizer_cannot_tell_are_refused(words, tokenizer, message):
    with pytest.raises(ValueError, match=message):
        make_lexicon(words, tokenizer(words))


def test_words_of_marks_are_refused():
    backend = byte_pairs(285, " ".join(WORDS))
    tokenizer = from_huggingface(WORDS, backend, marks={"observation": "."}, add_special_tokens=True)
    with pytest.raises(ValueError, match="can write, got '.'"):
        make_lexicon(WORDS, tokenizer)


@pytest.mark.exhaustive
def test_three_hundred_words_of_many_tokens():
    """As large as a household, at byte level: the tree of tokens has thousands of nodes."""
    words = tuple(
        f"{name} {i}" for name in ("cabinet", "drawer", "countertop", "apple", "mug", "egg") for i in range(50)
    )
    lexicon = make_lexicon(words, byte_level())
    ids = np.random.default_rng(1).permutation(300).reshape(150, 2).astype(np.int32)
    require_readable(lexicon, ids)
    assert lexicon.max_tokens(2) == len("countertop 10 countertop 10")
