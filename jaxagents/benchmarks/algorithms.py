"""Returns and speed of algorithms on their standard tasks, one file per row, so that a benchmark can be resumed."""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from jaxagents.benchmarks.training import ROOT, train_one_by_one, train_seeds
from jaxagents.ops.checks import require_positive
from jaxagents.training.build import resolve
from jaxagents.training.composition import compose, merge_overrides
from jaxagents.training.config import config_hash
from jaxagents.training.store import holds, kept, read_fields


@dataclass(frozen=True)
class Row:
    """Results of one algorithm on one task.

    Attributes:
        name: `task/algorithm`.
        choices: arguments of `experiments/train.py`.
        returns: undiscounted returns of the seeds, each the mean over the evaluated episodes.
        seconds: seconds for training all seeds, without compilation.
        compile_seconds: seconds of the first update.
        per_second: environment steps, or samples of fixed data, per second; in parallel, of all seeds together.
    """

    name: str
    choices: list[str]
    returns: list[float]
    seconds: float
    compile_seconds: float
    per_second: float


def rows_of(
    tasks: Mapping[str, Mapping[str, Any]], names: Sequence[str] | None, *, full: bool = False
) -> dict[str, list[str]]:
    """Lists the rows of the benchmark.

    Args:
        tasks: tasks by name, with `choices` of the task and `rows`, lists of an algorithm and its further choices; and
            optionally `full`, the choices of a longer training by algorithm.
        names: names of the rows; None for all.
        full: whether to list the longer training runs, and only these.

    Returns:
        The choices of each row, by `task/algorithm`.

    Raises:
        ValueError: a name is unknown.
    """
    rows = {
        f"{task}/{algorithm}": merge_overrides(settings["choices"].split(), choices)
        for task, settings in tasks.items()
        for algorithm, *choices in settings["rows"]
    }
    if full:
        longer = {f"{task}/{name}": choices for task, s in tasks.items() for name, choices in s.get("full", {}).items()}
        rows = {name: merge_overrides(rows[name], choices.split()) for name, choices in longer.items()}
    for name in names or ():
        if name not in rows:
            near = get_close_matches(name, rows, n=3) or sorted(rows)
            raise ValueError(f"`names` must be rows of the benchmark, got {name!r}; try {', '.join(near)}.")
    return {name: rows[name] for name in names or rows}


def run_rows(
    rows: Mapping[str, list[str]],
    config_folder: Path,
    settings: Mapping[str, Any],
    *,
    arguments: Sequence[str] = (),
    report: Callable[[str], None] = print,
) -> list[Row]:
    """Trains and evaluates the rows that are not yet measured; each row is written when it is done.

    Args:
        rows: see `rows_of`.
        config_folder: folder of the experiments' configs.
        settings: settings with `folder`, `seeds`, `side_by_side`, `again`, whether to measure existing rows again, and
            `workers`, the number of processes, each of which trains one row at a time.
        arguments: arguments of the command, which workers receive, too.
        report: function that is called with a message for every row.

    Returns:
        The rows, including those that existed.
    """
    require_positive("algorithms.workers", settings["workers"])
    configs = {name: compose(config_folder, *choices, "seeds=1") for name, choices in rows.items()}
    paths = {name: Path(settings["folder"]) / f"{name}.json" for name in rows}
    asked = {name: row_hash(config, settings["seeds"]) for name, config in configs.items()}
    missing = [name for name in rows if settings["again"] or not holds(paths[name], asked[name])]
    if settings["workers"] > 1 and len(missing) > 1:
        with ThreadPoolExecutor(settings["workers"]) as pool:
            list(pool.map(partial(_run_apart, arguments), missing))
        missing = []
    results = []
    for name, choices in rows.items():
        measure = partial(_measure, name, choices, configs[name], settings)
        row = Row(**kept(paths[name], asked[name], measure, again=name in missing))
        report(f"{name}: {', '.join(f'{value:.4g}' for value in row.returns)} in {row.seconds:.0f} s")
        results.append(row)
    return results


def row_hash(config: DictConfig, num_seeds: int) -> str:
    """Returns the hash of a row's settings: the composed run of one seed, without its name, and the number of seeds."""
    return config_hash({**resolve(config), "name": None, "seeds": num_seeds})


def _measure(name: str, choices: list[str], config: DictConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    if settings["side_by_side"]:
        several = config.copy()
        several.seeds = settings["seeds"]
        results, facts = train_seeds(several)
    else:
        results, facts = train_one_by_one(config, settings["seeds"])
    returns = np.mean(np.atleast_2d(results["episode_return"]), axis=-1).tolist()
    return asdict(Row(name=name, choices=choices, returns=returns, **facts))


def _run_apart(arguments: Sequence[str], name: str) -> None:
    """Measures a row in a separate process, which prints its own messages."""
    own = [f"algorithms.names=[{name}]", "algorithms.workers=1", "algorithms.cpu_threads=1"]
    command = [sys.executable, str(ROOT / "experiments" / "benchmark.py"), *arguments, *own]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def read_row(path: Path) -> Row | None:
    """Reads a row; None if it does not exist."""
    return Row(**read_fields(path)) if path.exists() else None
