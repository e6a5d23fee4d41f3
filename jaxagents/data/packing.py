"""Packing of token sequences of many lengths into rows of one length."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import struct

from jaxagents.types import Array


@struct.dataclass
class PackedBatch:
    """Rows of L tokens, each of which holds several sequences one after the other.

    A token must see those before it of its own segment only. Successful sequences share no row with others.

    Attributes:
        tokens: int32 `[B, L]`.
        token_mask: bool `[B, L]`, True = there is a token, False = padding.
        segment: int32 `[B, L]`, which sequence of its row a token belongs to, from 0; -1 for padding.
        positions: int32 `[B, L]`, from 0 in every segment; 0 for padding.
        loss_weight: float32 `[B, L]`, weight of the loss of predicting the token; 0 for padding, and for the first
            token of every segment, before which the model reads nothing.
        thought_mask: bool `[B, L]`, the token is part of a thought.
        success: bool `[B]`, the sequences of the row are known to have been successful; False for padding.
    """

    tokens: Array
    token_mask: Array
    segment: Array
    positions: Array
    loss_weight: Array
    thought_mask: Array
    success: Array


class TokenSequence(NamedTuple):
    """What goes into a row.

    Attributes:
        tokens: one or more.
        loss_weight: of each of them.
        thought_mask: whether each of them is part of a thought; None where none is.
        success: of the episode; None when unknown.
        num_lost: thoughts that a chat template left out.
    """

    tokens: Sequence[int]
    loss_weight: Sequence[float]
    thought_mask: Sequence[bool] | None = None
    success: bool | None = None
    num_lost: int = 0


def pack(sequences: Sequence[TokenSequence], length: int, *, pad: int, overlong: str = "raise") -> PackedBatch:
    """Packs sequences into as few rows as first-fit decreasing finds, the successful ones first and apart.

    Of either kind, sequences are taken by falling length, ties in their order, and each goes into the first row that
    has space, after what is there already. At most 11/9 of the fewest possible rows, and one more, are used. The first
    token of a sequence is read, not learned: its `loss_weight` becomes 0.

    Args:
        sequences: to be packed.
        length: L, tokens per row.
        pad: token id of padding.
        overlong: of sequences longer than a row: "raise" refuses them, "truncate" keeps their first `length` tokens,
            "skip" leaves them out.

    Returns:
        Rows as numpy arrays `[R, L]`; R is 0 when no sequence is left.

    Raises:
        ValueError: a sequence is empty, too long, or has another number of weights than tokens.

    References:
        Johnson (1973), Near-optimal bin packing algorithms; Dosa (2007) for the bound.
    """
    check_packing(length, overlong)
    sizes = np.asarray([len(sequence.tokens) for sequence in sequences], np.int64)
    for index, (size, sequence) in enumerate(zip(sizes, sequences)):
        weights = len(sequence.loss_weight)
        if size != weights or size == 0:
            raise ValueError(
                f"`sequences[{index}]` must have tokens and one weight for each, got {size} and {weights}."
            )
    too_long = sizes > length
    if overlong == "raise" and np.any(too_long):
        raise ValueError(
            f"`length` must hold the longest sequence, got {length} for {int(np.max(sizes))} tokens; "
            f'try {int(np.max(sizes))}, or overlong="truncate" or "skip".'
        )
    kept = ~too_long | (overlong == "truncate")
    order = np.flatnonzero(kept)[np.argsort(-sizes[kept], kind="stable")]
    used = np.minimum(sizes[order], length)
    success = np.asarray([bool(sequences[index].success) for index in order], bool)
    parts = [
        _fill([sequences[index] for index in order[here]], used[here].tolist(), length, pad)
        for here in (success, ~success)
    ]
    batch = jax.tree.map(lambda *rows: np.concatenate(rows), *parts)
    batch.success[: len(parts[0].tokens)] = True
    return batch


def check_packing(length: int, overlong: str) -> None:
    """Refuses rows shorter than one token, and unknown words for what to do with sequences that are longer."""
    if length < 1:
        raise ValueError(f"`length` of a row must be at least 1, got {length}.")
    if overlong not in ("raise", "truncate", "skip"):
        raise ValueError(f'`overlong` must be "raise", "truncate" or "skip", got {overlong!r}.')


def _fill(sequences: Sequence[TokenSequence], sizes: Sequence[int], length: int, pad: int) -> PackedBatch:
    """Returns the rows of sequences that come by falling length, of which the first `sizes` tokens are taken."""
    rows = _first_fit(sizes, length)
    batch = _empty_rows(max(rows, default=-1) + 1, length, pad)
    ends, num_segments = [0] * len(batch.tokens), [0] * len(batch.tokens)
    for sequence, size, row in zip(sequences, sizes, rows):
        place = slice(ends[row], ends[row] + size)
        batch.tokens[row, place] = sequence.tokens[:size]
        batch.token_mask[row, place] = True
        batch.segment[row, place] = num_segments[row]
        batch.positions[row, place] = np.arange(size)
        batch.loss_weight[row, place] = sequence.loss_weight[:size]
        batch.loss_weight[row, place.start] = 0.0  # What stands before it is of another sequence, or nothing.
        batch.thought_mask[row, place] = False if sequence.thought_mask is None else sequence.thought_mask[:size]
        ends[row] += size
        num_segments[row] += 1
    return batch


def _empty_rows(num_rows: int, length: int, pad: int) -> PackedBatch:
    shape = (num_rows, length)
    fields: dict[str, Any] = {
        "tokens": np.full(shape, pad, np.int32),
        "token_mask": np.zeros(shape, bool),
        "segment": np.full(shape, -1, np.int32),
        "positions": np.zeros(shape, np.int32),
        "loss_weight": np.zeros(shape, np.float32),
        "thought_mask": np.zeros(shape, bool),
        "success": np.zeros(num_rows, bool),
    }
    return PackedBatch(**fields)


def _first_fit(sizes: Sequence[int], length: int) -> list[int]:
    """Returns the first row with space for each size, in O(n log n): a tree holds the largest space below each node."""
    num_leaves = 1 << max(len(sizes) - 1, 0).bit_length()
    space = [length] * (2 * num_leaves)
    rows = []
    for size in sizes:
        node = 1
        while node < num_leaves:
            node *= 2
            node += space[node] < size
        rows.append(node - num_leaves)
        space[node] -= size
        while node > 1:
            node //= 2
            space[node] = max(space[2 * node], space[2 * node + 1])
    return rows
