"""Packs token sequences of different lengths into rows of one length."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import struct

from jaxagents.types import Array


@struct.dataclass
class PackedBatch:
    """Rows of L tokens, each of which holds several consecutive sequences.

    A token may only see earlier ones of its own segment. Successful sequences share no row with others.

    Attributes:
        tokens: int32 `[B, L]`.
        token_mask: bool `[B, L]`, True = token, False = padding.
        segment: int32 `[B, L]`, index of the token's sequence in its row, from 0; -1 for padding.
        positions: int32 `[B, L]`, index of the token in its segment, from 0; 0 for padding.
        loss_weight: float32 `[B, L]`, weight of the loss of predicting the token; 0 for padding, and for the first
            token of every segment, which has no context.
        thought_mask: bool `[B, L]`, whether the token is part of a thought.
        success: bool `[B]`, whether the sequences of the row are known to be successful; False for padding rows.
    """

    tokens: Array
    token_mask: Array
    segment: Array
    positions: Array
    loss_weight: Array
    thought_mask: Array
    success: Array


class TokenSequence(NamedTuple):
    """A sequence to be packed.

    Attributes:
        tokens: token ids, at least one.
        loss_weight: weight of the loss of each token.
        thought_mask: whether each token is part of a thought; None if none is.
        success: whether the episode succeeded; None if unknown.
        num_lost: number of thoughts that a chat template dropped.
    """

    tokens: Sequence[int]
    loss_weight: Sequence[float]
    thought_mask: Sequence[bool] | None = None
    success: bool | None = None
    num_lost: int = 0


def pack(sequences: Sequence[TokenSequence], length: int, *, pad: int, overlong: str = "raise") -> PackedBatch:
    """Packs sequences into rows by first-fit decreasing, with successful sequences in separate rows, which come first.

    Of each kind, sequences are taken by decreasing length, with ties in the given order, and each is appended to the
    first row that has space. This uses at most 11/9 of the smallest possible number of rows, plus one. The first token
    of a sequence is read but not learned: its `loss_weight` becomes 0.

    Args:
        sequences: sequences to be packed.
        length: L, number of tokens per row.
        pad: token id of padding.
        overlong: treatment of sequences longer than a row: "raise" refuses them, "truncate" keeps their first `length`
            tokens, "skip" leaves them out.

    Returns:
        Rows as numpy arrays `[R, L]`; R is 0 if no sequence is left.

    Raises:
        ValueError: a sequence is empty, too long, or has a different number of weights than tokens.

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
    """Refuses rows shorter than one token, and unknown treatments of overlong sequences."""
    if length < 1:
        raise ValueError(f"`length` of a row must be at least 1, got {length}.")
    if overlong not in ("raise", "truncate", "skip"):
        raise ValueError(f'`overlong` must be "raise", "truncate" or "skip", got {overlong!r}.')


def _fill(sequences: Sequence[TokenSequence], sizes: Sequence[int], length: int, pad: int) -> PackedBatch:
    """Returns the packed rows of sequences in order of decreasing length, using the first `sizes` tokens of each."""
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
        batch.loss_weight[row, place.start] = 0.0  # The token before it belongs to another sequence, or there is none.
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
    """Returns the first row with space for each size, in O(n log n), by a tree of the largest space below each node."""
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
