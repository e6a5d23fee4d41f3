"""Runs of earlier code that count today, because one seed that was run again logged the same.

Code is followed by name, so that a change of what a run never goes through makes it stale as well. One committed seed
of an arm, run again with today's code, tells: where every number that it logged is the stored one, this is written
down in `<results>/carried/<train>/<evaluation>/<code>/<earlier code>.json`, and the runs of that earlier code count for
today's. A record is believed only while both runs of its seed are there, undamaged and equal; pages say how many runs
are carried over.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxagents.papers.runs import Address, Run, content_digest, read_run, run_path, write_once

CARRIED_FOLDER = "carried"
_COMPARED = ("status", "start", "budget")


class Record(NamedTuple):
    """That one seed logged the same with two codes.

    Attributes:
        code: hash of today's.
        earlier: hash of the other one.
        seed: that was run with both.
        arm: `<paper>: <arm>`, for readers.
        commit: of the repository that ran it again; None outside of one.
    """

    code: str
    earlier: str
    seed: int
    arm: str
    commit: str | None


def differences(run: Run, other: Run) -> list[str]:
    """Returns the names of what two runs of a seed do not share; minutes and versions of packages do not count.

    Args:
        run: of a seed.
        other: of the same one.

    Returns:
        Names of curves whose steps or values differ in any stored digit, and "status", "start", "budget"; [] where the
        runs are equal.
    """
    found = [name for name in _COMPARED if getattr(run, name) != getattr(other, name)]
    for name in sorted({*run.curves, *other.curves}):
        first, second = run.curves.get(name), other.curves.get(name)
        if first is None or second is None or first["steps"] != second["steps"]:
            found.append(name)
            continue
        values = np.asarray(first["values"], np.float64), np.asarray(second["values"], np.float64)
        if not np.array_equal(values[0], values[1], equal_nan=True):
            found.append(name)
    return found


def write_record(results: str | Path, address: Address, record: Record) -> Path:
    """Writes down that the runs of an earlier code count for that of an address.

    Args:
        results: folder of the store.
        address: of the arm as it is now.
        record: what was compared.

    Returns:
        The file; where there was one already, it stays.
    """
    path = _folder(results, address) / f"{record.earlier}.json"
    told = record._asdict()
    write_once(path, (json.dumps({"digest": content_digest(told), **told}, indent=1) + "\n").encode())
    return path


def read_carried(results: str | Path, address: Address) -> tuple[dict[str, Record], tuple[Path, ...]]:
    """Reads which earlier codes count for that of an address.

    Args:
        results: folder of the store.
        address: of the arm as it is now.

    Returns:
        `(records by earlier code, files that are not believed)`: damaged ones, and those whose two runs are not there,
        damaged, or differ.
    """
    records, refused = {}, []
    for path in sorted(_folder(results, address).glob("*.json")):
        try:
            record = _read(path)
            earlier, today = (
                read_run(run_path(results, address._replace(code=code), record.seed))
                for code in (record.earlier, record.code)
            )
            if (record.code, record.earlier) != (address.code, path.stem) or differences(earlier, today):
                raise ValueError("it is of other runs")
        except (ValueError, OSError):
            refused.append(path)
            continue
        records[record.earlier] = record
    return records, tuple(refused)


def _read(path: Path) -> Record:
    content: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    try:
        told = {name: content[name] for name in Record._fields}
        if content["digest"] != content_digest(told):
            raise ValueError("its content is not that of its digest")
    except (KeyError, TypeError) as error:
        raise ValueError(f"it lacks {error}") from error
    return Record(**told)


def _folder(results: str | Path, address: Address) -> Path:
    return Path(results) / CARRIED_FOLDER / address.train / address.evaluation / address.code
