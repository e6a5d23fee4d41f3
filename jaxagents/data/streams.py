"""From files of trajectories to rows of tokens, by the pipelines of grain or all at once."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxagents.data.messages import text_of_call, text_of_result, to_messages
from jaxagents.data.packing import PackedBatch, TokenSequence, check_packing, pack, pad_rows
from jaxagents.data.schema import Trajectory, Turn
from jaxagents.data.trajectories import Report, parse_line, read_lines
from jaxagents.types import ChatTemplate, Tokenizer

Paths = str | Path | Sequence[str | Path]
Sequences = list[TokenSequence]

LOSS_WEIGHTS = MappingProxyType({"prompt": 0.0, "observation": 0.0, "thought": 1.0, "action": 1.0})
"""Weights of the loss of predicting the tokens of each part; the policy is trained on what it said."""


class _Rows(NamedTuple):
    """How sequences go into rows."""

    length: int
    overlong: str


def encode(
    trajectory: Trajectory,
    tokenizer: Tokenizer,
    *,
    weights: Mapping[str, float] = LOSS_WEIGHTS,
    chat: ChatTemplate | None = None,
) -> Sequences:
    """Turns a trajectory into the tokens that a dialogue of it has, one sequence for each agent that has a turn.

    The prompt comes first, then for every turn of the agent `[observation] o [act] a [end]`, or with a thought
    `[observation] o [think] t [act] a [end]`. Tool calls are JSON lines after the action, and their results lines
    before the next observation. The mark after the observation is given to the policy and weighted with it; the policy
    ends its thoughts and actions itself, so that their closing marks count as theirs.

    Args:
        trajectory: a trajectory.
        tokenizer: with the marks "observation", "think", "act" and "end".
        weights: weights in the loss by part; parts left out have those of `LOSS_WEIGHTS`.
        chat: writes the messages through a chat template instead of the marks, all of them, tools included; the end of
            a turn is learned with it.

    Returns:
        The tokens, their weights, and which are thoughts; all sequences have the success of the trajectory.
    """
    agents = sorted({turn.agent for turn in trajectory.turns})
    every = LOSS_WEIGHTS | dict(weights)
    return [_encode_agent(trajectory, agent, tokenizer, every, chat) for agent in agents]


def make_stream(
    paths: Paths,
    tokenizer: Tokenizer,
    *,
    row_length: int,
    batch_size: int,
    seed: int,
    num_epochs: int | None = None,
    window: int = 1024,
    on_error: str = "raise",
    overlong: str = "raise",
    weights: Mapping[str, float] = LOSS_WEIGHTS,
    report: Report = warnings.warn,
) -> Any:
    """Makes a stream of packed batches of trajectories in an order that `seed` decides, another one in every epoch.

    The files are read once to check them, before the first batch; then they are read line by line, and only places of
    lines are held in memory. Files that end in ".gz" allow no jumps and are held in memory as a whole. Nobody may
    change the lines that are there while the stream is in use.

    Args:
        paths: one file of trajectories or several.
        tokenizer: of the model to train.
        row_length: tokens per row.
        batch_size: rows per batch; with a last epoch, its last batch is filled up with rows of padding.
        seed: in `0 .. 2^32 - 1`.
        num_epochs: times that every trajectory is shown; None for no end.
        window: trajectories that are packed together; more of them leave less padding, and take more time at a resume.
        on_error: "raise" refuses damaged lines, "skip" reports and leaves them out.
        overlong: of sequences longer than a row: "raise", "truncate" or "skip"; the last two are reported.
        weights: as of `encode`.
        report: called with messages about all that is left out.

    Returns:
        A `grain.IterDataset` of `PackedBatch` of numpy arrays `[batch_size, row_length]`. `get_state()` of its iterator
        is a dict of JSON, and an iterator that was given it by `set_state` goes on with the same batches.

    Raises:
        ValueError: a number is out of range, a mark is missing, there is no trajectory, or what `on_error` and
            `overlong` refuse.
    """
    for name, value in (("batch_size", batch_size), ("window", window), ("num_epochs", num_epochs)):
        if value is not None and value < 1:
            raise ValueError(f"`{name}` must be at least 1, got {value}.")
    if not 0 <= seed < 2**32:
        raise ValueError(f"`seed` must be in 0 .. 2^32 - 1, got {seed}.")
    encoder, rows = _make_encoder(tokenizer, weights), _Rows(row_length, overlong)
    places = [place for place, _ in _read_sequences(paths, encoder, rows, on_error, report)]

    import grain  # Half a second that only streams pay.

    def pack_window(index: int, trajectories: Sequence[Sequences]) -> PackedBatch:
        sequences = [sequence for trajectory in trajectories for sequence in trajectory]
        batch, _ = pack(sequences, row_length, pad=tokenizer.marks["pad"], overlong=overlong)
        # Packing puts the long sequences into the first rows.
        order = np.random.default_rng((seed, index)).permutation(len(batch.tokens))
        return jax.tree.map(lambda array: array[order], batch)

    windows = (
        grain.MapDataset.source(places)
        .shuffle(seed=seed)
        .repeat(num_epochs)
        .map(lambda place: encoder(parse_line(_content_at(place))))
        .to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=window))
        .batch(window, batch_fn=list)
        .map_with_index(pack_window)
    )
    batches = grain.experimental.RebatchIterDataset(windows, batch_size=batch_size)
    return batches.map(partial(pad_rows, num_rows=batch_size, pad=tokenizer.marks["pad"]))


def load_packed(
    paths: Paths,
    tokenizer: Tokenizer,
    *,
    row_length: int,
    on_error: str = "raise",
    overlong: str = "raise",
    weights: Mapping[str, float] = LOSS_WEIGHTS,
    chat: ChatTemplate | None = None,
    report: Report = warnings.warn,
) -> PackedBatch:
    """Reads and packs all trajectories at once, for data that fit in memory.

    Args:
        paths: one file of trajectories or several.
        tokenizer: of the model to train.
        row_length: L, tokens per row.
        on_error: "raise" refuses damaged lines, "skip" reports and leaves them out.
        overlong: of sequences longer than a row: "raise", "truncate" or "skip"; the last two are reported.
        weights: as of `encode`.
        chat: as of `encode`.
        report: called with messages about all that is left out.

    Returns:
        All rows, numpy arrays `[R, L]`.

    Raises:
        ValueError: as `make_stream`.
    """
    rows = _Rows(row_length, overlong)
    found = _read_sequences(paths, _make_encoder(tokenizer, weights, chat), rows, on_error, report)
    sequences = [sequence for _, trajectory in found for sequence in trajectory]
    return pack(sequences, row_length, pad=tokenizer.marks["pad"], overlong=overlong)[0]


def _make_encoder(
    tokenizer: Tokenizer, weights: Mapping[str, float], chat: ChatTemplate | None = None
) -> Callable[[Trajectory], Sequences]:
    missing = {"pad", "end", "observation", "think", "act"} - tokenizer.marks.keys()
    if missing:
        raise ValueError(f"`tokenizer` must have the mark {sorted(missing)[0]!r}, got {sorted(tokenizer.marks)}.")
    unknown = weights.keys() - LOSS_WEIGHTS.keys()
    if unknown:
        raise ValueError(f"`weights` must be of {', '.join(LOSS_WEIGHTS)}, got {sorted(unknown)[0]!r}.")
    return partial(encode, tokenizer=tokenizer, weights=weights, chat=chat)


def _encode_agent(
    trajectory: Trajectory,
    agent: int,
    tokenizer: Tokenizer,
    weights: Mapping[str, float],
    chat: ChatTemplate | None,
) -> TokenSequence:
    if chat is not None:
        return _encode_messages(trajectory, agent, weights, chat)
    parts = _marked_parts(trajectory, agent, tokenizer, weights)
    return TokenSequence(
        tokens=[token for _, ids, _ in parts for token in ids],
        loss_weight=[float(weight) for _, ids, weight in parts for _ in ids],
        thought_mask=[part == "thought" for part, ids, _ in parts for _ in ids],
        success=trajectory.success,
    )


def _encode_messages(
    trajectory: Trajectory, agent: int, weights: Mapping[str, float], chat: ChatTemplate
) -> TokenSequence:
    """Returns the tokens of what an agent saw and said, as a chat template writes them."""
    messages = trajectory.messages or to_messages(trajectory, agent=agent)
    written = chat.encode(messages, trajectory.tools or ())
    factor = [1.0 if message.get("weight") is None else float(message["weight"]) for message in messages]

    def weight_of(index: int, thought: bool) -> float:
        return weights["observation"] if index < 0 else weights["thought" if thought else "action"] * factor[index]

    return TokenSequence(
        tokens=written.tokens,
        loss_weight=[weight_of(*token) for token in zip(written.message, written.thought)],
        thought_mask=written.thought,
        success=trajectory.success,
        num_lost=written.num_lost,
    )


def _turns_of(trajectory: Trajectory, agent: int) -> Iterator[tuple[Turn, str]]:
    """Yields the turns of an agent and what it saw before each: results of its calls, then the observation."""
    results: list[str] = []
    for turn in (turn for turn in trajectory.turns if turn.agent == agent):
        seen = "\n".join([*results, turn.observation] if turn.observation or not results else results)
        results = [text_of_result(call.result) for call in turn.tool_calls if call.result is not None]
        yield turn, seen


def _marked_parts(
    trajectory: Trajectory, agent: int, tokenizer: Tokenizer, weights: Mapping[str, float]
) -> list[tuple[str, Sequence[int], float]]:
    """Returns parts, their tokens between marks and their weights."""
    marks, read = tokenizer.marks, weights["observation"]
    parts: list[tuple[str, Sequence[int], float]] = [("prompt", tokenizer.encode(trajectory.prompt), weights["prompt"])]
    for turn, seen in _turns_of(trajectory, agent):
        factor = 1.0 if turn.weight is None else turn.weight
        parts.append(("observation", [marks["observation"], *tokenizer.encode(seen)], read))
        if turn.thought is not None:
            thought = [*tokenizer.encode(turn.thought), marks["act"]]
            parts += [("observation", [marks["think"]], read), ("thought", thought, weights["thought"] * factor)]
        else:
            parts.append(("observation", [marks["act"]], read))
        said = [*tokenizer.encode(_said(turn)), marks["end"]]
        parts.append(("action", said, weights["action"] * factor))
    return parts


def _said(turn: Turn) -> str:
    return "\n".join([turn.action] * bool(turn.action) + [text_of_call(call) for call in turn.tool_calls])


def _read_sequences(
    paths: Paths, encoder: Callable[[Trajectory], Sequences], rows: _Rows, on_error: str, report: Report
) -> Iterator[tuple[Any, Sequences]]:
    """Yields where each trajectory of the files is and the sequences of it that stay."""
    check_packing(*rows)
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    num_kept = num_long = num_unknown = num_lost = 0
    for path in [Path(path).resolve() for path in paths]:
        for line in read_lines(path, encoder, on_error=on_error, report=report):
            fitting = [sequence for sequence in line.value if len(sequence.tokens) <= rows.length]
            if rows.overlong == "raise" and len(fitting) < len(line.value):
                longest = max(len(sequence.tokens) for sequence in line.value)
                raise ValueError(
                    f"`row_length` must hold every sequence, got {rows.length} for the {longest} tokens of {path}, "
                    f'line {line.number}; try {longest}, or overlong="truncate" or "skip".'
                )
            num_long += len(line.value) - len(fitting)
            kept = fitting if rows.overlong == "skip" else line.value
            num_kept += len(kept)
            num_unknown += sum(sequence.success is None for sequence in kept)
            num_lost += sum(sequence.num_lost for sequence in kept)
            if kept:
                yield (line.content if path.suffix == ".gz" else (str(path), line.offset)), kept
    if num_long:
        done = {"truncate": "truncated", "skip": "skipped"}[rows.overlong]
        report(f"{num_long} sequences are longer than the {rows.length} tokens of a row: {done}.")
    if 0 < num_unknown < num_kept:
        report(f"{num_unknown} of {num_kept} sequences do not say whether they succeeded, and count as failures.")
    report_lost(num_lost, report)
    if not num_kept:
        raise ValueError(f"`paths` must hold a sequence of at most {rows.length} tokens, got none; try longer rows.")


def report_lost(num_lost: int, report: Report) -> None:
    """Says how many thoughts a chat template has left out, where it has."""
    if num_lost:
        report(
            f"{num_lost} thoughts are left out by the chat template and not learned, as those of earlier turns are by "
            "some; try policy.thought_tokens, which puts them between the tags, or write the tags into the content."
        )


def _content_at(place: bytes | tuple[str, int]) -> bytes:
    """Returns a line by its place: itself, or file and offset."""
    if isinstance(place, bytes):
        return place
    path, offset = place
    with open(path, "rb") as file:
        file.seek(offset)
        return file.readline()
