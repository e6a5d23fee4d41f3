"""The store of runs: one immutable file each, `<results>/runs/<train>/<evaluation>/<code>/<seed>.json`.

A run is found by its content: `train` is the hash of what it trains, `evaluation` that of how it is evaluated, `code`
that of the definitions that it runs through. Names of studies, papers and arms do not count, so that all papers that
name the same arm share its runs. Files are written once and never changed or deleted.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxagents.papers.metrics import Curves
from jaxagents.reporting.loggers import to_json

RUNS_FOLDER = "runs"
DONE, DIVERGED = "done", "diverged"
DIGITS = 5  # Significant ones of stored numbers that are not whole.
_KEYS = ("seed", "status", "minutes", "start", "budget", "points", "curves", "versions")


class Address(NamedTuple):
    """Where the runs of an arm are.

    Attributes:
        train: hash of what is trained: stages, or the function and its arguments; not names, seeds, devices, logs.
        evaluation: hash of the evaluations of all stages.
        code: hash of all definitions that are reached, and of the versions of packages.
    """

    train: str
    evaluation: str
    code: str


class Run(NamedTuple):
    """What came out of one seed of an arm.

    Attributes:
        address: of the arm.
        seed: of the run.
        status: DONE, or DIVERGED where parameters became infinite or NaN; curves end there.
        curves: everything that was logged, `{name: {"steps", "values"}}`; values have `DIGITS` digits, NaN where
            nothing was counted. With a shared start, evaluations begin at step 0 with that of the start.
        minutes: that it took.
        start: digest of the parameters that it started from; None: of its own random ones.
        budget: `[unit, length]` of its training; None of a function.
        versions: what it was made with, see `reporting.reports.versions`.
    """

    address: Address
    seed: int
    status: str
    curves: Curves
    minutes: float
    start: str | None = None
    budget: list[Any] | None = None
    versions: Mapping[str, str] = {}


def run_path(results: str | Path, address: Address, seed: int) -> Path:
    """Returns the file of a run."""
    return Path(results) / RUNS_FOLDER / address.train / address.evaluation / address.code / f"{seed}.json"


def read_run(path: str | Path) -> Run:
    """Reads a run.

    Raises:
        ValueError: the file is damaged.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        digest = content.pop("digest")
        if digest != content_digest(content):
            raise ValueError("its content is not that of its digest")
        if str(content["seed"]) != path.stem:
            raise ValueError(f"it is of the seed {content['seed']}")
        fields = {name: content[name] for name in _KEYS}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"`{path}` must hold a run, got a damaged file ({error}); it is set aside and run again."
        ) from error
    points = fields.pop("points")
    fields["curves"] = {
        name: {"steps": points[index], "values": [math.nan if value is None else value for value in values]}
        for name, (index, values) in fields["curves"].items()
    }
    return Run(address=Address(*(parent.name for parent in list(path.parents)[2::-1])), **fields)


def write_run(results: str | Path, run: Run) -> bool:
    """Writes a run; after a kill its file is whole, or not there.

    Args:
        results: folder of results.
        run: to store.

    Returns:
        False where the run was there already: the stored one stays.
    """
    points: list[list[int]] = []
    curves = {}
    for name, curve in sorted(run.curves.items()):
        steps = [int(step) for step in curve["steps"]]
        if steps not in points:
            points.append(steps)
        curves[name] = [points.index(steps), [_rounded(value) for value in curve["values"]]]
    told = {"seed": run.seed, "status": run.status, "minutes": round(run.minutes, 4), "start": run.start}
    told |= {"budget": run.budget, "versions": dict(run.versions), "points": points, "curves": curves}
    told = json.loads(json.dumps(to_json(told), allow_nan=False))
    lines = [f'"{name}": {json.dumps(value, separators=(",", ":"))}' for name, value in told.items()]
    text = "{" + ",\n".join([f'"digest": "{content_digest(told)}"', *lines]) + "}\n"
    return write_once(run_path(results, run.address, run.seed), text.encode())


def write_once(path: Path, content: bytes) -> bool:
    """Writes a file that is never changed again: to a temporary one, which is then linked to its place.

    Returns:
        False where it was there already.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def content_digest(content: Mapping[str, Any]) -> str:
    """Computes the hash of plain data; 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def set_aside(path: Path) -> Path:
    """Renames a damaged file, so that the run is missing again; returns where it is now."""
    aside = path.with_name(f"{path.name}.damaged")
    os.replace(path, aside)
    return aside


def _rounded(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    # Whole numbers are kept as they are: counters of experience are exact.
    short = float(value) if float(value).is_integer() else float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
