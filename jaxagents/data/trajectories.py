"""Files of trajectories: JSON lines, one `schema` object per line, with checks when reading and atomic writing."""

import gzip
import hashlib
import json
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import serialization

from jaxagents.data.files import write_whole
from jaxagents.data.messages import from_row
from jaxagents.data.schema import Json, Trajectory, Turn, from_json, to_json
from jaxagents.types import Episode, Tokenizer

Report = Callable[[str], Any]


class Line(NamedTuple):
    """A valid line of a file.

    Attributes:
        number: line number, from 1.
        value: what the trajectory was converted to.
    """

    number: int
    value: Any


def write_trajectories(path: str | Path, trajectories: Iterable[Trajectory]) -> int:
    """Writes trajectories to a file, either all of them or none.

    The file appears under its name only when it is complete. All trajectories are held in memory.

    Args:
        path: path of the file; it is compressed with gzip if it ends in ".gz".
        trajectories: trajectories to write.

    Returns:
        The number of trajectories written.

    Raises:
        ValueError: a trajectory is not valid, or there are none.
    """
    path = Path(path)
    lines = [_to_line(trajectory) for trajectory in trajectories]
    if not lines:
        raise ValueError("`trajectories` must hold at least one for a new file, got none.")
    content = b"".join(lines)
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    write_whole(path, content)
    return len(lines)


def read_trajectories(
    path: str | Path, *, on_error: str = "raise", report: Report = warnings.warn
) -> Iterator[Trajectory]:
    """Reads the trajectories of a file one after the other; a line with a chosen and a rejected answer gives two.

    Args:
        path: path of the file; it is decompressed if it ends in ".gz".
        on_error: "raise" stops at the first damaged line, "skip" reports and leaves out damaged lines.
        report: called with one message for every line left out, and at the end with the counts if there were any.

    Returns:
        An iterator.

    Raises:
        ValueError: `on_error` is unknown. During iteration: a damaged line, with file, line and field, or no valid line
            at all.
    """
    return (trajectory for line in read_rows(path, on_error=on_error, report=report) for trajectory in line.value)


def read_rows(path: str | Path, *, on_error: str = "raise", report: Report = warnings.warn) -> Iterator[Line]:
    """Reads lines like `read_trajectories`, with their numbers; each value is a list of one trajectory or a pair."""
    return _read_lines(path, parse_row, on_error, report)


def require_files(paths: str | Path | Sequence[str | Path]) -> None:
    """Refuses paths without a file.

    Args:
        paths: one file or several.

    Raises:
        ValueError: a file does not exist.
    """
    for path in [paths] if isinstance(paths, str | Path) else paths:
        if not Path(path).exists():
            raise ValueError(
                f"`collector.paths` must be files of JSON lines, got {path}: there is none at {Path(path).resolve()}."
            )


def read_lines(
    path: str | Path, convert: Callable[[Trajectory], Any], *, on_error: str = "raise", report: Report = warnings.warn
) -> Iterator[Line]:
    """Reads lines like `read_trajectories`, with their numbers.

    Args:
        path: see `read_trajectories`.
        convert: conversion of each trajectory; a line for which it raises a ValueError counts as damaged, too.
        on_error: see `read_trajectories`.
        report: see `read_trajectories`.
    """
    return _read_lines(path, lambda content: convert(parse_line(content)), on_error, report)


def _read_lines(path: str | Path, parse: Callable[[bytes], Any], on_error: str, report: Report) -> Iterator[Line]:
    if on_error not in ("raise", "skip"):
        raise ValueError(f'`on_error` must be "raise" or "skip", got {on_error!r}.')
    path = Path(path)
    path.stat()  # Fails here for a missing file, not in the first iteration.
    return _good_lines(path, parse, on_error, report)


def parse_line(content: bytes) -> Trajectory:
    """Parses one line of a file: a trajectory, or a Hugging Face conversation, see `parse_row`.

    Args:
        content: the bytes of the line.

    Returns:
        The trajectory; other fields of a conversation become its metadata.

    Raises:
        ValueError: the line is not UTF-8, not JSON or not a trajectory, or holds a pair of trajectories.
    """
    found = parse_row(content)
    if len(found) > 1:
        raise ValueError(
            "the line must be one conversation, got a chosen and a rejected one; try collector=preferences."
        )
    return found[0]


def parse_row(content: bytes) -> list[Trajectory]:
    """Parses one line of a file: a trajectory, or a row of a Hugging Face data set, which may be a pair.

    Args:
        content: the bytes of the line: a trajectory, or a row for `messages.from_row`.

    Returns:
        One trajectory, or the preferred one and the other one.

    Raises:
        ValueError: the line is not UTF-8, not JSON, or neither a trajectory nor such a row.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"the line must be UTF-8, got other bytes at {error.start}.") from error
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_doubled)
    except (json.JSONDecodeError, RecursionError) as error:
        cut = "" if content.endswith(b"\n") else "; it has no line end, so its writer may have been killed"
        raise ValueError(f"the line must be JSON, got {error}{cut}.") from error
    if isinstance(value, dict) and not {"version", "turns"} & value.keys():
        return from_row(value, id=hashlib.sha256(content).hexdigest()[:16])
    return [from_json(value)]


def from_episodes(
    episode: Episode,
    tokenizer: Tokenizer,
    *,
    world: str = "",
    level: int | None = None,
    agents: Sequence[str] = ("agent",),
    id_prefix: str = "episode",
    metadata: Mapping[str, Json] | None = None,
    frames: Any = None,
) -> list[Trajectory]:
    """Turns episodes into trajectories: the text of every turn is decoded from its tokens, which are also stored.

    Agents that speak in the same turn of a row get one turn each, with the same reward and flags.

    Args:
        episode: B episodes, on the host.
        tokenizer: tokenizer with which the episodes were made.
        world: name of the environment.
        level: difficulty of all episodes.
        agents: role of each agent.
        id_prefix: prefix of ids; row `b` has the id `<id_prefix>-<b>`.
        metadata: metadata of all trajectories; "group" is added, and in games "seat_returns".
        frames: `language.lexicon.Frames` of a policy with a chat template, whose pieces are left out of the texts; None
            without a chat template.

    Returns:
        One trajectory per row that has a turn.
    """
    episode = jax.tree.map(np.asarray, episode)
    rows = [jax.tree.map(lambda leaf, b=b: leaf[b], episode) for b in range(len(episode.tokens))]
    return [
        Trajectory(
            id=f"{id_prefix}-{b}",
            world=world,
            turns=turns,
            prompt=_prompt_of(row, tokenizer, frames),
            level=level,
            task=jax.tree.map(lambda leaf: leaf.tolist(), serialization.to_state_dict(row.task)),
            agents=tuple(agents),
            success=bool(row.success),
            episode_return=float(np.sum(row.reward, where=row.valid)),
            metadata={**(metadata or {}), "group": int(row.group), **_seat_returns(row)},
        )
        for b, row in enumerate(rows)
        if (turns := _turns_of(row, tokenizer, frames))
    ]


def _seat_returns(row: Episode) -> dict[str, Json]:
    """Returns the total reward of every player of a game."""
    return {} if row.seat_return is None else {"seat_returns": row.seat_return.tolist()}


def _prompt_of(row: Episode, tokenizer: Tokenizer, frames: Any) -> str:
    ids = row.prompt_tokens[row.prompt_mask].tolist()
    return tokenizer.decode(ids) if frames is None or not ids else tokenizer.decode(frames.text_of_prompt(ids)).strip()


def _turns_of(row: Episode, tokenizer: Tokenizer, frames: Any) -> tuple[Turn, ...]:
    """Returns the turns of one episode that took place, one for every agent that has tokens in them."""

    begun: set[int] = set()  # Agents that have had a turn.

    def make_turn(turn: int, agent: int) -> Turn:
        here = row.token_mask[turn] & (row.agent[turn] == agent)
        tokens, sampled = row.tokens[turn], row.action_mask[turn]

        def decode(mask: Any) -> str:
            return tokenizer.decode(tokens[here & mask].tolist())

        thought = sampled & row.thought_mask[turn]
        observation, action = decode(~sampled), decode(sampled & ~thought)
        if frames is not None and row.layout is not None:
            read = (here & ~sampled)[: row.layout.observation]
            ids = tokens[: row.layout.observation][read].tolist()
            observation = tokenizer.decode(frames.text_of_observation(ids, agent in begun)).strip()
            action = action.strip()
        begun.add(agent)
        return Turn(
            turn=turn,
            observation=observation,
            action=action,
            agent=agent,
            thought=decode(thought) if np.any(here & thought) else None,
            reward=float(row.reward[turn]),
            valid=bool(row.action_valid[turn]),
            terminated=bool(row.terminated[turn]),
            truncated=bool(row.truncated[turn]),
            fingerprint=int(row.fingerprint[turn]),
            tokens=tuple(tokens[here].tolist()),
            sampled=tuple(sampled[here].tolist()),
            behavior_log_prob=tuple(row.behavior_log_prob[turn][here].tolist()),
        )

    return tuple(
        make_turn(int(turn), int(agent))
        for turn in np.flatnonzero(row.valid)
        for agent in np.unique(row.agent[turn][row.token_mask[turn]])
    )


def _good_lines(path: Path, parse: Callable[[bytes], Any], on_error: str, report: Report) -> Iterator[Line]:
    num_good = num_skipped = 0
    for number, content in enumerate(_raw_lines(path), start=1):
        try:
            if isinstance(content, Exception):
                raise ValueError(f"the rest of the file must be gzip data, got {content}.")
            if not content.strip():
                continue
            value = parse(content)
        except ValueError as error:
            message = f"{path}, line {number}: {error}"
            if on_error == "raise":
                raise ValueError(f"{message} Or leave such lines out: on_error=skip.") from error
            num_skipped += 1
            report(f"{message} Skipped.")
            continue
        num_good += 1
        yield Line(number=number, value=value)
    if num_skipped:
        report(f"{path}: {num_good} trajectories read, {num_skipped} lines skipped.")
    if not num_good:
        found = f"{num_skipped} damaged lines" if num_skipped else "an empty file"
        raise ValueError(f"`path` must hold at least one trajectory, got {found}: {path}.")


def _raw_lines(path: Path) -> Iterator[bytes | Exception]:
    """Yields the bytes of every line, or an exception in place of the bytes if decompression ends early."""
    with _open(path) as file:
        try:
            yield from file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            yield error


def _open(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")


def _to_line(trajectory: Trajectory) -> bytes:
    try:
        text = json.dumps(to_json(trajectory), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        from_json(json.loads(text))  # Makes sure that what is written can be read.
        return text.encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise ValueError(f"`trajectories` must be valid, got {trajectory.id!r}: {error}") from error


def _refuse_doubled(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the line must have every field once, got {twice!r} twice.")
    return dict(pairs)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"numbers must be finite, got {name}.")
