"""Rows of the user's prompts, with any further columns: JSON lines, Parquet, Hugging Face data sets."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Prompt = str | list[dict[str, Any]]
_ROLES = ("system", "developer", "user", "assistant", "tool")


class PromptRows(NamedTuple):
    """Prompts and further columns.

    Attributes:
        prompts: texts, or lists of messages up to where the assistant speaks.
        columns: lists with one entry per row, by name; None if a row lacks it.
        places: returns the place of a row in its file, for messages.
    """

    prompts: list[Prompt]
    columns: dict[str, list[Any]]
    places: Callable[[int], str]


def read_prompt_rows(path: str | Path | None, rows: Sequence[Mapping[str, Any]] = ()) -> PromptRows:
    """Reads rows `{"prompt": ..., "answer": ..., ...}`, with `prompt` or `messages`.

    A prompt is a text, a number, or a list of messages `{"role": ..., "content": ...}`. Assistant messages at the end
    of a list are removed; without a column `answer`, the first of them is the answer.

    Args:
        path: path of a file `.jsonl` (or `.json`, with one object per line), of a file `.parquet`, or of a folder
            written by `Dataset.save_to_disk`.
        rows: the rows themselves, which are ignored if there is a path.

    Returns:
        The rows.

    Raises:
        ValueError: there are none, or one is damaged; the message gives its place.

    Examples:
        >>> rows = read_prompt_rows(None, [{"prompt": "2 + 2?", "answer": 4}, {"prompt": 7, "level": "easy"}])
        >>> rows.prompts, rows.columns
        (['2 + 2?', '7'], {'answer': [4, None], 'level': [None, 'easy']})
    """
    prompts: list[Prompt] = []
    kept: list[Mapping[str, Any]] = []
    places: list[str] = []
    for place, row in _find_rows(path, rows):
        prompt, answer = _read_prompt(row, place)
        others = {name: value for name, value in row.items() if name not in ("prompt", "messages")}
        if answer is not None:
            others.setdefault("answer", answer)
        prompts.append(prompt)
        kept.append(others)
        places.append(place)
    if not prompts:
        raise ValueError(f"`environment.path` must hold rows of prompts, got none in {path or '`environment.rows`'}.")
    names = dict.fromkeys(name for row in kept for name in row)
    if clash := [name for name in names if name in ("prompts", "completions", "completion_ids")]:
        raise ValueError(
            f"`environment.path` must have other columns than {clash[0]!r}, which reward functions are given."
        )
    columns = {name: [row.get(name) for row in kept] for name in names}
    return PromptRows(prompts=prompts, columns=columns, places=places.__getitem__)


def join_rows(one: PromptRows, other: PromptRows) -> PromptRows:
    """Appends rows to others; a column that only some rows have is None in the rest."""
    count = len(one.prompts)

    def column(rows: PromptRows, name: str) -> list[Any]:
        return rows.columns.get(name, [None] * len(rows.prompts))

    return PromptRows(
        prompts=[*one.prompts, *other.prompts],
        columns={name: column(one, name) + column(other, name) for name in {**one.columns, **other.columns}},
        places=lambda row: one.places(row) if row < count else other.places(row - count),
    )


def _find_rows(path: str | Path | None, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    if path is None:
        yield from ((f"row {number}", row) for number, row in enumerate(rows))
        return
    file = Path(path).expanduser()
    if not file.exists():
        raise ValueError(f"`environment.path` must be a file of rows, got {path}: there is none at {file.absolute()}.")
    if file.is_dir() or file.suffix == ".parquet":
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(_read_table(file)))
        return
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield f"{path}, line {number}", json.loads(line)
                except ValueError as error:
                    raise ValueError(
                        f"`environment.path` must hold a JSON object per line, got {path}, line {number}: {error}."
                    ) from error


def _read_table(file: Path) -> Sequence[Mapping[str, Any]]:
    needed = "datasets" if file.is_dir() else "pyarrow"
    try:
        if file.is_dir():
            from datasets import load_from_disk

            data = load_from_disk(str(file))
            if not hasattr(data, "column_names") or isinstance(data.column_names, Mapping):
                raise ValueError(
                    f"`environment.path` must be one split, got {file} with {', '.join(data)}; try {file}/train."
                )
            return data
        from pyarrow import parquet

        return parquet.read_table(file).to_pylist()
    except ImportError as error:
        raise ValueError(
            f"`environment.path` needs the package {needed!r} for {file}, which is not installed; try the extra "
            "`rows`, or JSON lines: `Dataset.to_json('rows.jsonl')`."
        ) from error
    except (OSError, FileNotFoundError) as error:
        raise ValueError(f"`environment.path` must be readable, got {file}: {str(error).splitlines()[0]}") from error


def _read_prompt(row: Any, place: str) -> tuple[Prompt, str | None]:
    """Returns the prompt of a row, and the assistant's text at its end."""
    if not isinstance(row, Mapping):
        raise ValueError(f'`environment.path` must hold objects, got {row!r} in {place}; try {{"prompt": "..."}}.')
    prompt = row.get("prompt", row.get("messages"))
    if isinstance(prompt, int | float) and not isinstance(prompt, bool):
        prompt = str(prompt)
    if isinstance(prompt, str) and prompt.strip():
        return prompt, None
    if not isinstance(prompt, Sequence) or isinstance(prompt, str) or not prompt:
        columns = ", ".join(map(str, row)) or "nothing"
        raise ValueError(
            f"`prompt` must be a text or a list of messages in every row, got {prompt!r} in {place}, which "
            f"has {columns}."
        )
    messages = [_read_message(message, f"{place}, message {index}") for index, message in enumerate(prompt)]
    answer = None
    while messages and messages[-1]["role"] == "assistant":
        answer = messages.pop().get("content")
    if not messages or messages[-1]["role"] not in ("user", "tool"):
        raise ValueError(f"`prompt` must end with what the user says, got other messages in {place}.")
    return messages, answer


def _read_message(message: Any, place: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
        raise ValueError(
            f"`prompt` must hold messages with a role among {', '.join(_ROLES)}, got {message!r} in {place}."
        )
    content = message.get("content")
    if isinstance(content, int | float) and not isinstance(content, bool):
        return {**message, "content": str(content)}
    if content is None and not message.get("tool_calls"):
        raise ValueError(f"`content` must stand in every message, got {dict(message)!r} in {place}.")
    return dict(message)
