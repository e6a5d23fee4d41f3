"""Returns and speed of algorithms on their standard tasks, one file for each, so that a run goes on where it stood."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from jaxagents.benchmarks.training import train_seeds
from jaxagents.training.build import resolve
from jaxagents.training.composition import compose, merge_overrides
from jaxagents.training.config import config_hash


@dataclass(frozen=True)
class Row:
    """What one algorithm reached on one task.

    Attributes:
        name: `task/algorithm`.
        choices: arguments of `experiments/train.py`.
        returns: of the seeds, means over the evaluated episodes; undiscounted.
        seconds: of training all seeds, compilation apart.
        compile_seconds: of the first update.
        per_second: environment steps of all seeds together, or samples of fixed data.
        config_hash: of the composed run.
    """

    name: str
    choices: list[str]
    returns: list[float]
    seconds: float
    compile_seconds: float
    per_second: float
    config_hash: str


def rows_of(tasks: Mapping[str, Mapping[str, Any]], names: Sequence[str] | None) -> dict[str, list[str]]:
    """Lists the rows of the benchmark.

    Args:
        tasks: by name, with `choices` of the task and `rows`, lists of an algorithm and its further choices.
        names: of the rows; None for all.

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
    told: Callable[[str], None] = print,
) -> list[Row]:
    """Trains and evaluates what has not been measured yet; each row is written when it is done.

    Args:
        rows: see `rows_of`.
        config_folder: of the experiments.
        settings: with `folder` and `seeds`.
        told: hears of every row.

    Returns:
        The rows, those that were there among them.
    """
    results = []
    for name, choices in rows.items():
        config = compose(config_folder, *merge_overrides(choices, [f"seeds={settings['seeds']}"]))
        path, digest = Path(settings["folder"]) / f"{name}.json", config_hash(resolve(config))
        row = read_row(path)
        if row is None or row.config_hash != digest:
            measured, facts = train_seeds(config)
            returns = np.mean(np.atleast_2d(measured["episode_return"]), axis=-1).tolist()
            row = Row(name=name, choices=choices, returns=returns, config_hash=digest, **facts)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(asdict(row), indent=1) + "\n")
        told(f"{name}: {', '.join(f'{value:.4g}' for value in row.returns)} in {row.seconds:.0f} s")
        results.append(row)
    return results


def read_row(path: Path) -> Row | None:
    """Reads a row, None where there is none."""
    return Row(**json.loads(path.read_text())) if path.exists() else None
