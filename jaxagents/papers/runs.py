"""The store of runs: one immutable file each, `<results>/runs/<address>/<seed>.json`.

A run is found by what was asked for: its address is the hash of the resolved arm and of the versions of its study and
arm. Names of studies, papers and arms do not count, so that all papers that name the same arm share its runs. Files
are written once and never changed or deleted; `asked.json` beside them holds what the address is the hash of.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxagents.data.files import write_whole
from jaxagents.papers.metrics import Curves
from jaxagents.reporting.loggers import to_json
from jaxagents.training.store import read_record, write_record

RUNS_FOLDER = "runs"
ASKED_FILE = "asked.json"
DONE, DIVERGED = "done", "diverged"
DIGITS = 5  # Significant ones of stored numbers that are not whole.
_KEYS = ("seed", "status", "minutes", "start", "budget", "versions")


class Run(NamedTuple):
    """What came out of one seed of an arm.

    Attributes:
        address: of the arm, see `arms.Composed`.
        seed: of the run.
        status: DONE, or DIVERGED where parameters became infinite or NaN; curves end there.
        curves: everything that was logged, `{name: {"steps", "values"}}`; values have `DIGITS` digits, NaN where
            nothing was counted. With a shared start, evaluations begin at step 0 with that of the start.
        minutes: that it took.
        start: digest of the parameters that it started from; None: of its own random ones.
        budget: `[unit, length]` of its training; None of a function.
        versions: what it was made with, see `reporting.reports.versions`.
    """

    address: str
    seed: int
    status: str
    curves: Curves
    minutes: float
    start: str | None = None
    budget: list[Any] | None = None
    versions: Mapping[str, str] = {}


class ArmRuns(NamedTuple):
    """All stored runs of an arm.

    Attributes:
        runs: by seed.
        damaged: files that hold no run of this arm.
    """

    runs: Mapping[int, Run]
    damaged: tuple[Path, ...] = ()


def run_path(results: str | Path, address: str, seed: int) -> Path:
    """Returns the file of a run."""
    return Path(results) / RUNS_FOLDER / address / f"{seed}.json"


def read_runs(results: str | Path, address: str) -> ArmRuns:
    """Reads all runs of an arm; nothing is changed."""
    runs, damaged = {}, []
    for path in sorted(run_path(results, address, 0).parent.glob("[0-9]*.json")):
        try:
            run = read_run(path)
            runs[run.seed] = run
        except ValueError:
            damaged.append(path)
    return ArmRuns(dict(sorted(runs.items())), tuple(damaged))


def read_run(path: str | Path) -> Run:
    """Reads a run.

    Raises:
        ValueError: the file is damaged, or is that of another arm or seed.
    """
    path = Path(path)
    record = read_record(path)
    place = (path.parent.name, path.stem)
    asked, seed = record.get("asked"), record.get("seed")
    if (asked, str(seed)) != place:
        raise ValueError(
            f"`{path}` must hold the run of its place, got the seed {seed} of {asked}; move it back, or remove it."
        )
    try:
        fields = {name: record[name] for name in _KEYS}
        fields["curves"] = {
            name: {
                "steps": record["points"][index],
                "values": [math.nan if value is None else value for value in values],
            }
            for name, (index, values) in record["curves"].items()
        }
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"`{path}` must hold a run, got another record ({error}); remove it.") from error
    return Run(address=path.parent.name, **fields)


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
    for name, curve in sorted(rounded_curves(run.curves).items()):
        if curve["steps"] not in points:
            points.append(curve["steps"])
        curves[name] = [points.index(curve["steps"]), curve["values"]]
    fields = {"seed": run.seed, "status": run.status, "minutes": round(run.minutes, 4), "start": run.start}
    fields |= {"budget": run.budget, "points": points, "curves": curves}
    path = run_path(results, run.address, run.seed)
    return write_record(path, run.address, fields, made_with=run.versions, once=True)


def rounded_curves(curves: Curves) -> Curves:
    """Returns curves with the digits that are stored."""
    rounded = {}  # type: Curves
    for name, curve in curves.items():
        steps, values = [int(step) for step in curve["steps"]], [_rounded(value) for value in curve["values"]]
        rounded[name] = {"steps": steps, "values": values}
    return rounded


def write_asked(folder: Path, asked: Mapping[str, Any]) -> None:
    """Keeps beside results what the hash in their path is of."""
    text = json.dumps(to_json(asked), indent=1, sort_keys=True)
    write_whole(folder / ASKED_FILE, f"{text}\n".encode(), once=True)


def _rounded(value: float | None) -> float:
    if value is None or not math.isfinite(value):
        return math.nan
    # Whole numbers are kept as they are: counters of experience are exact.
    short = float(value) if float(value).is_integer() else float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
