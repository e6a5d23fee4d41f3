"""The store of results: one JSON file for every result, with a hash of its settings.

A record holds the hash of its settings, the versions and the commit that it was made with, its fields, and a digest of
all these, so that a damaged file is distinguished from an intact one, and a record of other settings from one of the
current settings. Records of earlier code are not distinguished: if a change of code changes what the settings mean, a
`version` among the settings is raised by hand.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxagents.data.files import write_whole
from jaxagents.reporting.loggers import to_json
from jaxagents.reporting.reports import versions

_OWN = ("digest", "asked", "versions")  # Keys that the fields of a record must not have.


def kept(path: Path, asked: str, make: Callable[[], Mapping[str, Any]], *, again: bool = False) -> dict[str, Any]:
    """Returns the result of these settings, which is made and written unless it exists.

    Args:
        path: path of the record; a record of other settings is replaced.
        asked: hash of the settings, see `config.config_hash`.
        make: function that returns the fields.
        again: whether to make the result even if it exists.

    Returns:
        The fields.

    Raises:
        ValueError: the file is damaged.
    """
    if again or not holds(path, asked):
        write_record(path, asked, make())
    return read_fields(path)


def holds(path: Path, asked: str) -> bool:
    """Tells whether a file holds a result of these settings; a damaged file is refused as by `read_record`."""
    return path.exists() and read_record(path).get("asked") == asked


def read_fields(path: Path) -> dict[str, Any]:
    """Returns the fields of a record, without what the store adds."""
    return {name: value for name, value in read_record(path).items() if name not in _OWN}


def read_record(path: str | Path) -> dict[str, Any]:
    """Reads a record with its `digest`, `asked` and `versions`.

    Raises:
        ValueError: the file is damaged, or in a format without a digest.
    """
    path = Path(path)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["digest"] != _digest(record):
            raise ValueError("its content is not that of its digest")
        return record
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"`{path}` must hold a result, got a damaged file ({error}); remove it, and run the command again."
        ) from error


def write_record(
    path: Path, asked: str, fields: Mapping[str, Any], *, made_with: Mapping[str, str] | None = None, once: bool = False
) -> bool:
    """Writes a record atomically: if the process is killed, the file is complete, or unchanged.

    Args:
        path: path of the record.
        asked: hash of the settings.
        fields: measured values.
        made_with: versions and commit; None: those of this process.
        once: whether to keep an existing file.

    Returns:
        Whether the file was written.
    """
    made_with = versions() if made_with is None else made_with
    record = to_json({"asked": asked, "versions": dict(made_with), **fields})
    lines = [f'"{name}": {json.dumps(value, separators=(",", ":"), allow_nan=False)}' for name, value in record.items()]
    text = "{" + ",\n".join([f'"digest": "{_digest(record)}"', *lines]) + "}\n"
    return write_whole(path, text, once=once)


def set_aside(path: Path) -> Path:
    """Renames a damaged file, so that its result counts as missing; returns its new path."""
    aside = path.with_name(f"{path.name}.damaged")
    os.replace(path, aside)
    return aside


def _digest(record: Mapping[str, Any]) -> str:
    content = {name: value for name, value in record.items() if name != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
