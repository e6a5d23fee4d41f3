"""Word tables: ids, padding, numbers in digits, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import words as tables

WORDS, IDS = tables.make_words(("go to", "."), tables.DIGITS, (".", "fridge 1"))
DIGIT_IDS = IDS(*tables.DIGITS)


def write(number, num_digits):
    return tables.number_words(jnp.asarray(number), DIGIT_IDS, num_digits)


def test_words_keep_the_order_of_the_first_mention():
    assert list(WORDS) == ["go to", ".", *"0123456789", "fridge 1"]
    assert IDS("fridge 1", "go to").tolist() == [12, 0]
    assert IDS("go to").dtype == np.int32 and IDS().shape == (0,)


def test_unknown_phrase_is_refused_and_a_near_one_named():
    with pytest.raises(ValueError, match="got 'fridge 2'; try .*fridge 1"):
        IDS("fridge 2")


@pytest.mark.parametrize("phrase", ["", " a", "a ", "a\n"])
def test_phrases_that_text_cannot_hold_are_refused(phrase):
    with pytest.raises(ValueError, match="without white space around"):
        tables.make_words((phrase,))


def test_padding():
    assert tables.pad_to(np.asarray([3, 4]), 4).tolist() == [3, 4, -1, -1]
    assert tables.pad_to(np.asarray([[3], [4]]), 2).tolist() == [[3, -1], [4, -1]]
    assert tables.pad_all([np.asarray([1]), np.asarray([2, 3])]).tolist() == [[1, -1], [2, 3]]
    with pytest.raises(ValueError, match="`length` must be at least the 2 ids, got 1"):
        tables.pad_to(np.asarray([3, 4]), 1)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([-1, 5, -1, 0, 7], [5, 0, 7, -1, -1]),
        ([1, 2, 3], [1, 2, 3]),
        ([-1, -1], [-1, -1]),
        ([0], [0]),
    ],
)
def test_compact_closes_gaps(ids, expected):
    assert tables.compact(jnp.asarray(ids, jnp.int32)).tolist() == expected


@pytest.mark.parametrize("size", [39, 40, 100])
def test_compact_closes_gaps_of_short_and_long_texts(size):
    drawn = np.random.default_rng(0)
    rows = drawn.integers(-1, 2**20, (64, size)) * drawn.integers(0, 2, (64, size)) - 1
    rows = np.maximum(rows, -1).astype(np.int32)
    closed = np.asarray(jax.jit(jax.vmap(tables.compact))(rows))
    for row, found in zip(rows, closed, strict=True):
        kept = row[row >= 0]
        assert found.tolist() == [*kept, *[-1] * (size - len(kept))]


@pytest.mark.parametrize(
    ("number", "num_digits", "text"),
    [(0, 1, "0"), (0, 3, "0"), (7, 2, "7"), (40, 2, "4 0"), (105, 4, "1 0 5"), (99, 2, "9 9"), (123, 2, "9 9")],
)
def test_numbers_are_written_most_significant_digit_first(number, num_digits, text):
    ids = write(number, num_digits)
    assert ids.shape == (num_digits,) and ids.dtype == jnp.int32
    assert tables.sentence(WORDS, ids) == text
    assert (np.asarray(ids)[len(text.split()) :] == -1).all()


def test_rows_are_found_by_their_whole_content():
    rows = np.asarray([[1, -1], [1, 2], [2, 1]], np.int32)
    found = [tables.find_row(jnp.asarray(action), rows) for action in ([1, 2], [2, 1], [1, -1], [1, 0], [-1, -1])]
    assert [(int(row), bool(known)) for row, known in found] == [
        (1, True),
        (2, True),
        (0, True),
        (0, False),
        (0, False),
    ]
