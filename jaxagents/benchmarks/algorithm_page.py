"""The page of algorithms: interquartile means over seeds with their intervals, performance profiles, and speed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxagents.benchmarks.algorithms import Row, read_row
from jaxagents.reporting.statistics import bootstrap_interval, interquartile_mean, performance_profile

PAGE, PICTURE, FULL = "README.md", "profiles.png", "full"  # The last is the folder of longer training runs.
_HEAD = ("algorithm", "return", "95 %", "score", "published", "seeds", "steps/s", "min")
_OPENING = """# Algorithms on their standard tasks

Written by `python experiments/benchmark.py suite=algorithms`; do not edit.

- **return**: interquartile mean over the seeds, with a 95 % percentile bootstrap, which is too narrow for few seeds.
- **score**: 0 for random actions, 1 for a task that counts as solved.
- **published**: the return of another implementation, whose budget may differ; [sources](#commands) are below.
- **steps/s**: of one seed on one core of a CPU, without compilation; **min**: of all seeds, with compilation.
"""


def write_page(folder: str | Path, tasks: Mapping[str, Mapping[str, Any]]) -> Path:
    """Writes the page and its picture from the rows in a folder.

    Args:
        folder: folder with a file for every measured row.
        tasks: see `algorithms.rows_of`; with `scale`, the returns that score 0 and 1, and optionally `published`, a
            return and its source by algorithm.

    Returns:
        Path of the page.
    """
    folder = Path(folder)
    found = {task: _read(folder, task, settings) for task, settings in tasks.items()}
    scores = {task: {name: _scores(row, tasks[task]) for name, row in rows.items()} for task, rows in found.items()}
    scores = {task: of_task for task, of_task in scores.items() if of_task}
    parts = [_OPENING, _glance(scores)]
    for task, rows in found.items():
        settings = tasks[task]
        missing = [name for name, *_ in settings["rows"] if name not in rows]
        parts.append(f"## {task}\n\nScores from {settings['scale'][0]:g} to {settings['scale'][1]:g}.\n")
        lines = [_line(name, row, settings) for name, row in rows.items()]
        parts.append(_table(_HEAD, lines) if lines else "")
        parts.append(f"Not run: {', '.join(missing)}.\n" if missing else "")
        longer = [_line(name, row, settings) for name, row in _read(folder / FULL, task, settings).items()]
        parts.append(f"Trained for longer (`algorithms.full=true`):\n\n{_table(_HEAD, longer)}" if longer else "")
    parts.append(_over_tasks(scores))
    if draw_profiles(folder / PICTURE, scores):
        parts.append(f"![Share of seeds above every score]({PICTURE})\n")
        parts += ["## Commands\n", _duration([row for of_task in found.values() for row in of_task.values()])]
    parts += [_commands(task, rows, tasks[task]) for task, rows in found.items() if rows]
    path = folder / PAGE
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(part for part in parts if part))
    return path


def draw_profiles(path: Path, scores: Mapping[str, Mapping[str, np.ndarray]]) -> bool:
    """Draws the share of seeds above every score, one panel per task; False if there is nothing to draw."""
    if not scores:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(len(scores), 3)
    lines = -(-len(scores) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.6 * lines), layout="constrained", facecolor="white", dpi=110)
    thresholds = np.linspace(0.0, 1.05, 106)
    for place, (task, of_task) in enumerate(scores.items()):
        axes = figure.add_subplot(lines, columns, 1 + place)
        for number, (name, values) in enumerate(of_task.items()):
            shares = performance_profile([values], thresholds)
            axes.step(
                thresholds, shares, where="post", label=name, color=f"C{number % 10}", ls="-" if number < 10 else ":"
            )
        axes.set(title=task, xlabel="score", ylabel="share of seeds above", ylim=(-0.02, 1.02))
        axes.legend(fontsize=6, loc="lower left", ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(path)
    return True


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *lines))


def _read(folder: Path, task: str, settings: Mapping[str, Any]) -> dict[str, Row]:
    rows = {name: read_row(folder / task / f"{name}.json") for name, *_ in settings["rows"]}
    return {name: row for name, row in rows.items() if row is not None}


def _scores(row: Row, settings: Mapping[str, Any]) -> np.ndarray:
    low, high = settings["scale"]
    return (np.asarray(row.returns) - low) / (high - low)


def _line(name: str, row: Row, settings: Mapping[str, Any]) -> tuple[str, ...]:
    returns = np.asarray(row.returns)
    middle = interquartile_mean(returns)
    low, high = bootstrap_interval([returns], interquartile_mean)
    published = settings.get("published", {}).get(name)
    places = 1 if abs(settings["scale"][1] - settings["scale"][0]) > 20.0 else 2  # Decimal places.
    return (
        f"`{name}`",
        f"{middle:.{places}f}",
        f"{low:.{places}f} to {high:.{places}f}",
        f"{interquartile_mean(_scores(row, settings)):.2f}",
        "" if published is None else f"{published[0]:g}",
        str(returns.size),
        f"{row.per_second:,.0f}",
        f"{(row.seconds + row.compile_seconds) / 60.0:.1f}",
    )


def _commands(task: str, rows: Mapping[str, Row], settings: Mapping[str, Any]) -> str:
    """Lists the choices of every row, and the source of the published return."""
    sources = {name: f"; published: {source}" for name, (_, source) in settings.get("published", {}).items()}
    lines = [f"- `{name}`: `{' '.join(row.choices)}`{sources.get(name, '')}\n" for name, row in rows.items()]
    return f"{task}:\n\n{''.join(lines)}"


def _duration(rows: Sequence[Row]) -> str:
    minutes = sum(row.seconds + row.compile_seconds for row in rows) / 60.0
    return (
        f"All {len(rows)} rows take {minutes:.0f} minutes of one core, without the longer trainings. A command is "
        "`python experiments/train.py` with the choices of the row. `algorithms.names=[cartpole/ppo]` runs one row, "
        "`algorithms.again=true` also rows that are there.\n"
    )


def _glance(scores: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    """Returns the table of tasks with the algorithms that do not solve them."""
    lines = []
    for task, of_task in scores.items():
        means = {name: interquartile_mean(values) for name, values in of_task.items()}
        lines.append((task, str(len(means)), ", ".join(f"`{k}` {v:.2f}" for k, v in means.items() if v < 0.9)))
    return _table(("task", "algorithms", "scores below 0.9"), lines) if lines else ""


def _over_tasks(scores: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    """Returns the table of the algorithms that ran on two tasks or more."""
    lines = []
    for name in dict.fromkeys(name for of_task in scores.values() for name in of_task):
        values = {task: of_task[name] for task, of_task in scores.items() if name in of_task}
        if len(values) > 1:
            low, high = bootstrap_interval(list(values.values()), interquartile_mean)
            middle = interquartile_mean(np.concatenate(list(values.values())))
            lines.append((f"`{name}`", ", ".join(values), f"{middle:.2f}", f"{low:.2f} to {high:.2f}"))
    if not lines:
        return ""
    return "## Over tasks\n\n" + _table(("algorithm", "tasks", "interquartile mean of scores", "95 %"), lines)
