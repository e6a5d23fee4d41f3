"""The store of runs: one immutable file for each, `<results>/runs/<address>/<seed>.json`.

A run is found by its settings: its address is the hash of the resolved arm and of the versions of its study and arm.
Names of studies, papers and arms do not count, so that all papers with the same arm share its runs. Files are written
once and never changed or deleted; `asked.json` beside them holds the settings that the address is the hash of.
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
DIGITS = 5  # Number of significant digits of stored numbers that are not whole.
_KEYS = ("seed", "status", "minutes", "start", "budget", "versions")


class Run(NamedTuple):
    """The result of one seed of an arm.

    Attributes:
        address: address of the arm, see `arms.Composed`.
        seed: seed of the run.
        status: DONE, or DIVERGED if parameters became infinite or NaN; its curves end there.
        curves: everything that was logged, `{name: {"steps", "values"}}`; values have `DIGITS` digits, and are NaN if
            nothing was counted. With a shared start, evaluations begin at step 0 with that of the start.
        minutes: duration in minutes.
        start: digest of the parameters that the run started from; None: its own random ones.
        budget: `[unit, length]` of its training; None for a function.
        versions: versions of the software that made it, see `reporting.reports.versions`.
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
        runs: runs by seed.
        damaged: files that hold no valid run of this arm.
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
        ValueError: the file is damaged, or belongs to another arm or seed.
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
    """Writes a run; even after a kill its file is either complete or absent.

    Args:
        results: folder of results.
        run: run to store.

    Returns:
        False if the run was already stored; the stored one is kept.
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
    """Returns curves rounded to the stored digits."""
    rounded = {}  # type: Curves
    for name, curve in curves.items():
        steps, values = [int(step) for step in curve["steps"]], [_rounded(value) for value in curve["values"]]
        rounded[name] = {"steps": steps, "values": values}
    return rounded


def write_asked(folder: Path, asked: Mapping[str, Any]) -> None:
    """Stores beside results the settings that the hash in their path stands for."""
    text = json.dumps(to_json(asked), indent=1, sort_keys=True)
    write_whole(folder / ASKED_FILE, f"{text}\n".encode(), once=True)


def _rounded(value: float | None) -> float:
    if value is None or not math.isfinite(value):
        return math.nan
    # Whole numbers are kept exactly, because counters of experience must be exact.
    short = float(value) if float(value).is_integer() else float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
