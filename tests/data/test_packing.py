"""Packing of sequences into rows: nothing lost, nothing twice, no overlap."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagents.data.packing import TokenSequence, pack

PAD = -7


def ramp(size, start=0):
    """Returns a sequence with weights that name its tokens."""
    tokens = list(range(start, start + size))
    return TokenSequence(tokens, [token / 8 for token in tokens])


def unpack(batch):
    """Returns the sequences of a batch, by row and segment."""
    found = []
    for row in range(len(batch.tokens)):
        for segment in range(batch.segment[row].max(initial=-1) + 1):
            here = batch.segment[row] == segment
            (places,) = np.nonzero(here)
            np.testing.assert_array_equal(places, np.arange(places[0], places[0] + places.size))
            np.testing.assert_array_equal(batch.positions[row, here], np.arange(places.size))
            found.append(TokenSequence(batch.tokens[row, here].tolist(), batch.loss_weight[row, here].tolist()))
    return found


def test_rows_by_hand():
    sequences = [([1, 2], [0, 1]), ([3, 4, 5], [0, 0, 0.5]), ([6], [1]), ([7, 8, 9, 10], [1, 1, 1, 1])]
    batch = pack([TokenSequence(*sequence) for sequence in sequences], 5, pad=PAD)
    np.testing.assert_array_equal(batch.tokens, [[7, 8, 9, 10, 6], [3, 4, 5, 1, 2]])
    np.testing.assert_array_equal(batch.segment, [[0, 0, 0, 0, 1], [0, 0, 0, 1, 1]])
    np.testing.assert_array_equal(batch.positions, [[0, 1, 2, 3, 0], [0, 1, 2, 0, 1]])
    np.testing.assert_array_equal(batch.loss_weight, [[0, 1, 1, 1, 0], [0, 0, 0.5, 0, 1]])
    assert batch.token_mask.all()
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(batch)]
    assert dtypes == [np.int32, bool, np.int32, np.int32, np.float32, bool, bool]


def test_successes_share_no_row_with_others():
    sequences = [
        TokenSequence([1], [1], [True], success=False),
        TokenSequence([2, 3], [1, 1], [True, False], success=True),
        TokenSequence([4, 5, 6], [1, 1, 1]),
        TokenSequence([7], [1], success=True),
    ]
    batch = pack(sequences, 4, pad=PAD)
    np.testing.assert_array_equal(batch.tokens, [[2, 3, 7, PAD], [4, 5, 6, 1]])
    np.testing.assert_array_equal(batch.thought_mask, [[True, False, False, False], [False, False, False, True]])
    np.testing.assert_array_equal(batch.success, [True, False])


def test_padding():
    batch = pack([TokenSequence([1, 2], [1, 1])], 3, pad=PAD)
    np.testing.assert_array_equal(batch.tokens, [[1, 2, PAD]])
    np.testing.assert_array_equal(batch.token_mask, [[True, True, False]])
    np.testing.assert_array_equal(batch.segment, [[0, 0, -1]])
    np.testing.assert_array_equal(batch.positions, [[0, 1, 0]])
    np.testing.assert_array_equal(batch.loss_weight, [[0, 1, 0]])
    assert pack([], 3, pad=PAD).tokens.shape == (0, 3)


@given(st.lists(st.integers(1, 12), max_size=40), st.integers(1, 12), st.sampled_from(["truncate", "skip"]))
@settings(max_examples=100, deadline=None)
def test_nothing_is_lost_or_twice(sizes, length, overlong):
    sequences = [ramp(size, start=100 * index) for index, size in enumerate(sizes)]
    batch = pack(sequences, length, pad=PAD, overlong=overlong)
    if overlong == "skip":
        sequences = [sequence for sequence in sequences if len(sequence.tokens) <= length]
    expected = [TokenSequence(tokens[:length], [0.0, *weights[1:length]]) for tokens, weights, *_ in sequences]
    assert sorted(unpack(batch)) == sorted(expected)
    np.testing.assert_array_equal(batch.token_mask, batch.segment >= 0)
    assert (batch.tokens[~batch.token_mask] == PAD).all() and (batch.loss_weight[~batch.token_mask] == 0).all()
    check_first_fit(batch)


def check_first_fit(batch):
    """Checks that no sequence fits into an earlier row beside the sequences there that are as long or longer."""
    num_rows, length = batch.tokens.shape
    sizes = [np.bincount(batch.segment[row, batch.token_mask[row]]) for row in range(num_rows)]
    for row, later in itertools.combinations(range(num_rows), 2):
        for size in sizes[later]:
            assert np.sum(sizes[row], where=sizes[row] >= size) + size > length


def test_known_optimum():
    # Sizes 6 6 5 5 4 4 in rows of 10: first-fit decreasing finds the three full rows.
    batch = pack([ramp(size) for size in (4, 5, 6, 5, 6, 4)], 10, pad=PAD)
    assert batch.tokens.shape == (3, 10) and batch.token_mask.all()


@pytest.mark.parametrize(
    ("sequences", "length", "overlong", "message"),
    [
        ([([1, 2, 3], [1, 1, 1])], 2, "raise", "`length` must hold the longest sequence, got 2 for 3 tokens; try 3"),
        ([([1, 2], [1])], 2, "raise", r"`sequences\[0\]` must have tokens and one weight for each, got 2 and 1"),
        ([([], [])], 2, "raise", r"`sequences\[0\]` must have tokens and one weight for each, got 0 and 0"),
        ([], 0, "raise", "`length` of a row must be at least 1, got 0"),
        ([], 2, "cut", '`overlong` must be "raise", "truncate" or "skip", got \'cut\''),
    ],
)
def test_wrong_arguments_are_refused(sequences, length, overlong, message):
    with pytest.raises(ValueError, match=message):
        pack([TokenSequence(*sequence) for sequence in sequences], length, pad=PAD, overlong=overlong)
