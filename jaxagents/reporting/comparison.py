"""Comparison of runs: the differences between them, their final returns, and their curves in one picture."""

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from jaxagents.data.files import write_whole
from jaxagents.reporting.curves import Curve, draw_curve, read_curves, read_stage_ends, style_axis
from jaxagents.reporting.loggers import METRICS_FILE, read_metrics
from jaxagents.reporting.reports import RESULT_FILE
from jaxagents.reporting.statistics import t_interval

_CONFIG_FILE = "config.yaml"
_ARGUMENTS_FILE = "arguments.yaml"  # Arguments of the command, see `training.composition.save_arguments`.
_SAME = ("seed", "seeds", "run_dir", "name", "devices", "logging")  # Sections that do not change the experiment.
_MAX_PARTS = 4  # Maximum number of differences in a label.
_MAX_NAMES = 3  # Maximum number of runs that a row names.
_MAX_PART = 60  # Maximum number of characters of a setting in a label.


class Compared(NamedTuple):
    """Runs that differ only by their seeds.

    Attributes:
        label: differences from the other runs.
        curve: curve of the metric, one column per seed; a seed that several runs have is taken from one of them.
        final: values at the end, `[seeds]`.
        finals: final values of all seeds of each run, by its name.
        unfinished: names of the runs that ended early or are not finished.
        repeated: seeds of a run that are taken from another run, by the name of the former.
    """

    label: str
    curve: Curve
    final: np.ndarray
    finals: Mapping[str, np.ndarray] = {}
    unfinished: tuple[str, ...] = ()
    repeated: Mapping[str, Sequence[int]] = {}

    @property
    def name(self) -> str:
        """Returns the names of the runs; of many, the first ones."""
        names, others = list(self.finals), len(self.finals) - _MAX_NAMES
        return ", ".join(names[:_MAX_NAMES]) + (f", {others} more" if others > 0 else "")


def find_runs(paths: Sequence[str | Path]) -> list[Path]:
    """Finds run directories in and below folders.

    Args:
        paths: run directories, or folders that contain some.

    Returns:
        The directories, without duplicates, sorted.

    Raises:
        ValueError: a path contains no run with metrics.
    """
    found = set()
    for path in map(Path, paths):
        runs = {file.parent for file in path.rglob(METRICS_FILE) if (file.parent / _CONFIG_FILE).is_file()}
        if not runs:
            of_papers = any(any(path.glob(pattern)) for pattern in ("*/train.json", "*/*/train.json"))
            hint = "; arms of papers are drawn by report.py paper=<id of the paper>" if of_papers else ""
            raise ValueError(
                f"`paths` must hold runs, directories with {_CONFIG_FILE} and {METRICS_FILE}, got {path}{hint}."
            )
        found |= runs
    return sorted(found)


def write_metrics_csv(path: str | Path, folders: Sequence[Path]) -> Path:
    """Writes the metrics of runs as one table of comma-separated values, for spreadsheets, pandas or R.

    Args:
        path: file to write; an existing file is replaced.
        folders: directories of the runs.

    Returns:
        The path. A row is a line of the log of one seed, with the columns `run`, `seed`, `update`, `step`, then all
        metrics by name; a metric that all seeds share is repeated. Values that were not logged, or are not finite, are
        left empty.
    """
    rows: list[dict[str, Any]] = []
    for name, folder in zip(name_runs(folders), folders, strict=True):
        first = int(_read_config(folder).get("seed", 0))
        for line in read_metrics(folder):
            count = max((len(value) for value in line.values() if isinstance(value, list)), default=1)
            for column in range(count):
                of_seed = {key: value[column] if isinstance(value, list) else value for key, value in line.items()}
                rows.append({"run": name, "seed": first + column, **{k: v for k, v in of_seed.items() if v == v}})
    head = ["run", "seed", "update", "step"]
    names = [*head, *sorted({key for row in rows for key in row} - {*head})]
    lines = io.StringIO(newline="")
    table = csv.DictWriter(lines, names, restval="")
    table.writeheader()
    table.writerows(rows)
    write_whole(Path(path), lines.getvalue())
    return Path(path)


def compare_runs(folders: Sequence[Path], metric: str) -> list[Compared]:
    """Groups runs that differ only by their seeds, and describes how the groups differ.

    A seed counts once: runs with the same config and seed are the same run, wherever they were trained, and together
    with whatever other seeds.

    Args:
        folders: directories of runs.
        metric: logged name, such as eval/episode_return.

    Returns:
        The groups, in the order of their first folder.

    Raises:
        ValueError: no run has the metric.
    """
    configs = [dict(_flatten(_read_config(folder))) for folder in folders]
    labels = describe_differences(configs, [_read_arguments(folder) for folder in folders])
    names = name_runs(folders)
    curves = {folder: read_curves(read_metrics(folder), read_stage_ends(folder)) for folder in folders}
    groups: dict[str, list[int]] = {}
    for index, config in enumerate(configs):
        if metric in curves[folders[index]]:
            groups.setdefault(_identity(config), []).append(index)
    if not groups:
        known = sorted({name for each in curves.values() for name in each})
        raise ValueError(f"`metric` must be logged by a run, got {metric!r}; they have {', '.join(known) or 'none'}.")
    compared = []
    for members in groups.values():
        own = {folders[index]: curves[folders[index]][metric] for index in members}
        seeds = {folders[index]: _seeds(configs[index], own[folders[index]]) for index in members}
        chosen = _choose_seeds(own, seeds)
        kept = {path: [column for column, seed in enumerate(seeds[path]) if chosen[seed] == path] for path in own}
        curve = join_curves([own[path]._replace(values=own[path].values[:, kept[path]]) for path in own if kept[path]])
        finals = {names[folders.index(path)]: one.values[-1] for path, one in own.items()}
        others = {names[folders.index(path)]: [s for s in seeds[path] if chosen[s] != path] for path in own}
        compared.append(
            Compared(
                label=labels[members[0]],
                curve=curve,
                final=curve.values[-1],
                finals=finals,
                unfinished=tuple(names[index] for index in members if not (folders[index] / RESULT_FILE).is_file()),
                repeated={name: repeated for name, repeated in others.items() if repeated},
            )
        )
    return compared


def _seeds(config: Mapping[str, Any], curve: Curve) -> list[int]:
    """Returns the seed of each column: a program with several seeds trains those of `seed`, `seed + 1`, ..."""
    return [int(config.get("seed", 0)) + column for column in range(curve.values.shape[1])]


def _choose_seeds(curves: Mapping[Path, Curve], seeds: Mapping[Path, Sequence[int]]) -> dict[int, Path]:
    """Returns the run from which each seed is taken: a finished run if possible, then the longest, then the first."""
    rank = {path: ((path / RESULT_FILE).is_file(), curve.steps[-1]) for path, curve in curves.items()}
    chosen: dict[int, Path] = {}
    for path in curves:
        for seed in seeds[path]:
            if seed not in chosen or rank[path] > rank[chosen[seed]]:
                chosen[seed] = path
    return chosen


def name_runs(folders: Sequence[Path]) -> list[str]:
    """Names runs by their directories; if two have the same name, by their paths below the common folder."""
    names = [folder.name for folder in folders]
    if len(set(names)) == len(names):
        return names
    common = os.path.commonpath([folder.absolute() for folder in folders])
    return [os.path.relpath(folder.absolute(), common) for folder in folders]


def describe_differences(
    configs: Sequence[Mapping[str, Any]], arguments: Sequence[Mapping[str, Any]] | None = None
) -> list[str]:
    """Names each of several flat configs by the keys in which they differ; configs that differ only by seeds are equal.

    Args:
        configs: values by dotted key.
        arguments: settings in the command of each run, including options such as `algorithm`; they come first.

    Returns:
        One label each, such as "learner.clip_epsilon=0.1"; the name of the run if nothing differs.
    """
    arguments = [{} for _ in configs] if arguments is None else arguments
    given = [key for key in dict.fromkeys(key for each in arguments for key in each) if not _is_same(key)]
    given = [key for key in given if _differ(c.get(key, own.get(key)) for c, own in zip(configs, arguments))]
    keys = sorted({key for config in configs for key in config if not _is_same(key)})
    varied = [key for key in keys if _differ(config.get(key) for config in configs)]
    short = [key for key in varied if not key.endswith(("_target_", "_partial_"))] or varied
    # A resolved config repeats a setting wherever another section refers to it; the shortest name is used.
    short = [key for key in short if key not in given and not any(_repeats(key, o, configs) for o in short)]
    labels = []
    for config, own in zip(configs, arguments):
        parts = [f"{key}={config.get(key, own.get(key))}" for key in given if key in config or key in own]
        parts += [f"{key}={config[key]}" for key in short if key in config]
        more = f", {len(parts) - _MAX_PARTS} more" if len(parts) > _MAX_PARTS else ""
        listed = ", ".join(part if len(part) <= _MAX_PART else f"{part[:_MAX_PART]}..." for part in parts[:_MAX_PARTS])
        labels.append(listed + more or str(config.get("name", "all alike")))
    return labels


def _is_same(key: str) -> bool:
    return key.partition(".")[0] in _SAME


def _differ(values: Iterable[Any]) -> bool:
    return len({json.dumps(value, default=str, sort_keys=True) for value in values}) > 1


def _identity(config: Mapping[str, Any]) -> str:
    """Returns everything that distinguishes the experiments of runs."""
    return json.dumps({key: value for key, value in config.items() if not _is_same(key)}, default=str, sort_keys=True)


def _plain(value: Any) -> Any:
    """Returns a setting in comparable form: a whole number is the same, written as 100000, 100000.0 or 1e5."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        try:
            value = float(value)  # YAML 1.1 reads 1e5 as a string.
        except ValueError:
            return value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _repeats(key: str, other: str, configs: Sequence[Mapping[str, Any]]) -> bool:
    return key.endswith(f".{other}") and all(config.get(key) == config.get(other) for config in configs)


def join_curves(curves: Sequence[Curve]) -> Curve:
    """Joins curves as seeds on the steps of the shortest curve; the others are interpolated."""
    steps, _, ends = min(curves, key=lambda curve: curve.steps[-1])
    columns = [np.interp(steps, curve.steps, column) for curve in curves for column in curve.values.T]
    return Curve(steps=steps, values=np.stack(columns, axis=1), ends=ends)


def draw_comparison(path: str | Path, compared: Sequence[Compared], metric: str) -> Path:
    """Draws a curve per group with its 95 % interval over seeds.

    Args:
        path: path of the picture.
        compared: see `compare_runs`.
        metric: name for the title.

    Returns:
        Absolute path of the picture.
    """
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(8, 4.5 + 0.22 * len(compared)), layout="constrained", facecolor="white", dpi=130)
    axis = figure.subplots()
    for index, one in enumerate(compared):
        label = f"{one.name}: {one.label}" if one.name else one.label
        draw_curve(axis, one.curve, label=f"{label} ({one.final.size})", color=colormaps["tab10"](index % 10))
    style_axis(axis, metric)
    axis.set_xlabel("steps of training; in brackets the number of seeds", fontsize=8, color="#52606d")
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.legend(loc="outside lower left", fontsize=8, frameon=False)
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(path)
    return path


def comparison_rows(compared: Sequence[Compared]) -> list[tuple[str, ...]]:
    """Returns rows, best first: runs, seeds, steps, the mean there with its interval, worst and best seed."""
    rows: list[tuple[str, ...]] = []
    for one in sorted(compared, key=lambda one: -np.nanmean(one.final)):
        mean = f"{np.nanmean(one.final):.4g}"
        if one.final.size > 1:
            _, low, high = t_interval(one.final[None])
            mean += f" ({low[0]:.4g} to {high[0]:.4g})"
        steps = f"{one.curve.steps[-1]:,.0f}" + (", unfinished" if one.unfinished else "")
        ends = (f"{one.final.min():.4g}", f"{one.final.max():.4g}")
        rows.append((one.name, str(one.final.size), steps, mean, *ends))
    return rows


def tell_differences(compared: Sequence[Compared]) -> list[str]:
    """Returns lines with names, differences, unfinished runs and repeated seeds; none for a single plain group."""
    lines = []
    for one in sorted(compared, key=lambda one: -np.nanmean(one.final)):
        ends = f" (unfinished: {', '.join(one.unfinished)})" if one.unfinished else ""
        again = [f"{name} has {', '.join(map(str, seeds))}" for name, seeds in one.repeated.items()]
        once = f" (seeds of another run count once: {'; '.join(again)})" if again else ""
        lines.append(f"{one.name}: {one.label}{ends}{once}")
    return lines if len(compared) > 1 or any(one.unfinished or one.repeated for one in compared) else []


def _read_config(folder: Path) -> dict[str, Any]:
    return _plain(yaml.safe_load((folder / _CONFIG_FILE).read_text(encoding="utf-8")))


def _read_arguments(folder: Path) -> dict[str, Any]:
    """Returns the settings in the command of a run, by key; empty for runs that were started in Python."""
    file = folder / _ARGUMENTS_FILE
    written = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else None
    pairs = [str(one).lstrip("+~").partition("=") for one in written or () if not str(one).startswith("-")]
    return {key: _plain(value) for key, _, value in pairs}


def _flatten(node: Any, name: str = "") -> Any:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _flatten(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, node
