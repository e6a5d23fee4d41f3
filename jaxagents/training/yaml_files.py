"""Refuses YAML files that cannot be read, or that have a duplicate key, and names the line."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

_MOST_VALUES = 100_000  # Values of a YAML file; those of this repository have some hundreds.


def require_readable(arguments: Sequence[str]) -> None:
    """Refuses YAML files of `--config-dir` and `--config-path` that cannot be read.

    Raises:
        ValueError: see `read_events`.
    """
    for index, argument in enumerate(arguments):
        name, given, value = argument.partition("=")
        if name in ("--config-dir", "-cd", "--config-path", "-cp"):
            folder = Path(value if given else "".join(arguments[index + 1 : index + 2]))
            for path in sorted(folder.glob("**/*.yaml")):
                require_yaml(path)


def require_yaml(path: str | Path) -> None:
    """Refuses a YAML file that is damaged, or too large once its anchors are expanded.

    Args:
        path: path of the file.

    Raises:
        ValueError: the file is refused; says in which line, and why.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        size = _size(yaml.parse(text, Loader=yaml.SafeLoader))
        if size <= _MOST_VALUES:
            _require_plain(yaml.compose(text, Loader=yaml.SafeLoader), path)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be YAML{describe_yaml(error)}.") from error
    if size > _MOST_VALUES:
        raise ValueError(f"{path} must hold at most {_MOST_VALUES} values, got {size:,}, by anchors within anchors.")


def describe_yaml(error: Exception) -> str:
    """Returns what is wrong with a YAML file, and where."""
    mark: Any = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    where = "" if mark is None else f" in line {mark.line + 1}"
    hint = "; try spaces" if "\\t" in problem else ""
    return f", got a mistake{where}: {problem}{hint}"


def _size(events: Iterator[Any]) -> int:
    """Returns the number of values of a document, with those of an anchor counted again for every alias."""
    anchors: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []  # Anchors of collections, and the number of values before them.
    count = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            count += anchors.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            if event.anchor:
                anchors[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, count))
            count += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor:
                anchors[anchor] = count - before
    return count


def _require_plain(node: yaml.Node | None, path: Path) -> None:
    """Refuses duplicate keys of a mapping, of which the last would count, and tags of Python objects."""
    if node is None:
        return
    if not re.match("tag:yaml.org,2002:(?!python)", node.tag):
        raise ValueError(f"{path} must be of plain values, got {node.tag} in line {node.start_mark.line + 1}.")
    if isinstance(node, yaml.SequenceNode):
        for one in node.value:
            _require_plain(one, path)
    elif isinstance(node, yaml.MappingNode):
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            line = [key for key, _ in node.value if key.value == twice][1].start_mark.line + 1
            raise ValueError(f"{path} must have every key once, got {twice!r} again in line {line}.")
        for _, value in node.value:
            _require_plain(value, path)
