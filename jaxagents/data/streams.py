"""Turns files of trajectories into packed rows of tokens."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from jaxagents.data.messages import text_of_call, text_of_result, to_messages
from jaxagents.data.packing import PackedBatch, TokenSequence, check_packing, pack
from jaxagents.data.schema import Trajectory, Turn
from jaxagents.data.trajectories import Report, read_lines
from jaxagents.types import ChatTemplate, Tokenizer

Paths = str | Path | Sequence[str | Path]
Sequences = list[TokenSequence]


class _Rows(NamedTuple):
    """Settings for packing sequences into rows."""

    length: int
    overlong: str


def encode(trajectory: Trajectory, tokenizer: Tokenizer, *, chat: ChatTemplate | None = None) -> Sequences:
    """Turns a trajectory into the tokens of its dialogue, one sequence for each agent that has a turn.

    The prompt comes first, then for every turn of the agent `[observation] o [act] a [end]`, or with a thought
    `[observation] o [think] t [act] a [end]`. Tool calls are JSON lines after the action, and their results are lines
    before the next observation. Thoughts and actions have the weight of their turn, by default 1, all else 0. The mark
    after the observation is given to the policy, and has weight 0; the policy ends its thoughts and actions itself, so
    that their closing marks have their weight.

    Args:
        trajectory: a trajectory.
        tokenizer: tokenizer with the marks "observation", "think", "act" and "end".
        chat: chat template that writes all messages, including tools, instead of the marks; the end of a turn is
            learned with it. None: uses the marks.

    Returns:
        The tokens, their weights, and which are thoughts; all sequences have the success of the trajectory.
    """
    agents = sorted({turn.agent for turn in trajectory.turns})
    return [_encode_agent(trajectory, agent, tokenizer, chat) for agent in agents]


def load_packed(
    paths: Paths,
    tokenizer: Tokenizer,
    *,
    row_length: int,
    on_error: str = "raise",
    overlong: str = "raise",
    chat: ChatTemplate | None = None,
    report: Report = warnings.warn,
) -> PackedBatch:
    """Reads and packs all trajectories in files.

    Args:
        paths: one file of trajectories or several.
        tokenizer: tokenizer of the model to train.
        row_length: L, number of tokens per row.
        on_error: "raise" refuses damaged lines, "skip" reports and leaves them out.
        overlong: treatment of sequences longer than a row: "raise", "truncate" or "skip"; the last two are reported.
        chat: see `encode`.
        report: called with messages about everything that is left out.

    Returns:
        All rows, numpy arrays `[R, L]`.

    Raises:
        ValueError: a mark is missing, there is no trajectory, or `on_error` or `overlong` refuse one.
    """
    rows = _Rows(row_length, overlong)
    found = _read_sequences(paths, _make_encoder(tokenizer, chat), rows, on_error, report)
    return pack(list(found), row_length, pad=tokenizer.marks["pad"], overlong=overlong)


def _make_encoder(tokenizer: Tokenizer, chat: ChatTemplate | None) -> Callable[[Trajectory], Sequences]:
    missing = {"pad", "end", "observation", "think", "act"} - tokenizer.marks.keys()
    if missing:
        raise ValueError(f"`tokenizer` must have the mark {sorted(missing)[0]!r}, got {sorted(tokenizer.marks)}.")
    return partial(encode, tokenizer=tokenizer, chat=chat)


def _encode_agent(trajectory: Trajectory, agent: int, tokenizer: Tokenizer, chat: ChatTemplate | None) -> TokenSequence:
    if chat is not None:
        return _encode_messages(trajectory, agent, chat)
    parts = _marked_parts(trajectory, agent, tokenizer)
    return TokenSequence(
        tokens=[token for _, ids, _ in parts for token in ids],
        loss_weight=[float(weight) for _, ids, weight in parts for _ in ids],
        thought_mask=[part == "thought" for part, ids, _ in parts for _ in ids],
        success=trajectory.success,
    )


def _encode_messages(trajectory: Trajectory, agent: int, chat: ChatTemplate) -> TokenSequence:
    """Returns the tokens that an agent read and wrote, as written by a chat template."""
    messages = trajectory.messages or to_messages(trajectory, agent=agent)
    written = chat.encode(messages, trajectory.tools or ())
    weights = [1.0 if message.get("weight") is None else float(message["weight"]) for message in messages]
    return TokenSequence(
        tokens=written.tokens,
        loss_weight=[0.0 if index < 0 else weights[index] for index in written.message],
        thought_mask=written.thought,
        success=trajectory.success,
        num_lost=written.num_lost,
    )


def _turns_of(trajectory: Trajectory, agent: int) -> Iterator[tuple[Turn, str]]:
    """Yields the turns of an agent and what it saw before each: results of its tool calls, then the observation."""
    results: list[str] = []
    for turn in (turn for turn in trajectory.turns if turn.agent == agent):
        seen = "\n".join([*results, turn.observation] if turn.observation or not results else results)
        results = [text_of_result(call.result) for call in turn.tool_calls if call.result is not None]
        yield turn, seen


def _marked_parts(trajectory: Trajectory, agent: int, tokenizer: Tokenizer) -> list[tuple[str, Sequence[int], float]]:
    """Returns the parts by kind, with their tokens between marks and their weights."""
    marks = tokenizer.marks
    parts: list[tuple[str, Sequence[int], float]] = [("prompt", tokenizer.encode(trajectory.prompt), 0.0)]
    for turn, seen in _turns_of(trajectory, agent):
        weight = 1.0 if turn.weight is None else turn.weight
        parts.append(("observation", [marks["observation"], *tokenizer.encode(seen)], 0.0))
        if turn.thought is not None:
            thought = [*tokenizer.encode(turn.thought), marks["act"]]
            parts += [("observation", [marks["think"]], 0.0), ("thought", thought, weight)]
        else:
            parts.append(("observation", [marks["act"]], 0.0))
        parts.append(("action", [*tokenizer.encode(_action_text(turn)), marks["end"]], weight))
    return parts


def _action_text(turn: Turn) -> str:
    return "\n".join([turn.action] * bool(turn.action) + [text_of_call(call) for call in turn.tool_calls])


def _read_sequences(
    paths: Paths, encoder: Callable[[Trajectory], Sequences], rows: _Rows, on_error: str, report: Report
) -> Iterator[TokenSequence]:
    """Yields the sequences of the trajectories in files that are kept."""
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
            yield from kept
    if num_long:
        done = {"truncate": "truncated", "skip": "skipped"}[rows.overlong]
        report(f"{num_long} sequences are longer than the {rows.length} tokens of a row: {done}.")
    if 0 < num_unknown < num_kept:
        report(f"{num_unknown} of {num_kept} sequences do not say whether they succeeded, and count as failures.")
    report_lost(num_lost, report)
    if not num_kept:
        raise ValueError(f"`paths` must hold a sequence of at most {rows.length} tokens, got none; try longer rows.")


def report_lost(num_lost: int, report: Report) -> None:
    """Reports how many thoughts a chat template has dropped, if any."""
    if num_lost:
        report(
            f"{num_lost} thoughts are left out by the chat template and not learned, as those of earlier turns are by "
            "some; try policy.thought_tokens, which puts them between the tags, or write the tags into the content."
        )
