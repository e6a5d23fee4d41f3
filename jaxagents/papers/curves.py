"""The picture of a paper's results: `experiments/results/<id>.png`."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxagents.papers.metrics import find_metric
from jaxagents.reporting.curves import Curve, style_axis
from jaxagents.reporting.statistics import t_interval

_COLUMNS, _MAX_PANELS = 2, 8
_STROKES = ("-", "--", ":")  # Of the first arms, one per color, of the next ones, and so on.
_COLORS = ("#d1495b", "#2e86ab", "#edae49", "#6a4c93", "#3a7d44", "#6b7280", "#e07a5f", "#0b3c49", "#b5838d", "#81b29a")


def write_paper_curves(path: str | Path, results: Mapping[str, Any]) -> Path:
    """Draws every reported metric: over training with a line and a 95 % band per arm, else a point per arm.

    Args:
        path: of the picture.
        results: see `verdicts.conclude`.

    Returns:
        The path.
    """
    # pyplot keeps a global list of figures and picks a window system; a figure of one's own needs neither.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = {name: curves for name in _names(results) if (curves := gather_arms(results, name))}
    panels = dict(list(panels.items())[:_MAX_PANELS])
    rows = max(1, math.ceil(len(panels) / _COLUMNS))
    figure = Figure(figsize=(5.2 * _COLUMNS, 3.2 * rows), layout="constrained", facecolor="white", dpi=110)
    axes = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
    looks = [{"color": color, "linestyle": stroke} for stroke in _STROKES for color in _COLORS]
    looks = dict(zip(results["arms"], looks * (1 + len(results["arms"]) // len(looks))))
    for axis, (name, curves) in zip(axes, panels.items()):
        draw = _draw_lines if max(curve.steps.size for curve in curves.values()) > 1 else _draw_points
        draw(axis, curves, looks)
        style_axis(axis, name)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    figure.suptitle(f"{results['paper']}: {results['verdict']}", fontsize=11, color="#1f2933")
    FigureCanvasAgg(figure).print_png(path)
    return Path(path)


def gather_arms(results: Mapping[str, Any], name: str) -> dict[str, Curve]:
    """Returns the curve of every arm that has the metric, with the steps that all of its seeds have."""
    gathered = {}
    for arm, content in results["arms"].items():
        curves = [run["curves"][name] for run in content["runs"].values() if name in run["curves"]]
        tables = [dict(zip(curve["steps"], curve["values"])) for curve in curves]
        steps = sorted(set.intersection(*map(set, tables))) if tables else []
        values = np.asarray([[table[step] for table in tables] for step in steps], np.float64)  # None becomes NaN.
        seen = np.isfinite(values).any(axis=1) if steps else np.zeros(0, bool)
        if seen.any():
            gathered[arm] = Curve(steps=np.asarray(steps, np.float64)[seen], values=values[seen])
    return gathered


def _names(results: Mapping[str, Any]) -> list[str]:
    """Returns the logged names behind the reported metrics, each once."""
    logged = {name for arm in results["arms"].values() for run in arm["runs"].values() for name in run["curves"]}
    names = []
    for metric in results["metrics"]:
        try:
            names.append(find_metric(metric, list(logged)))
        except ValueError:
            continue
    return list(dict.fromkeys(names))


def _draw_lines(axis: Any, curves: Mapping[str, Curve], looks: Mapping[str, Mapping[str, str]]) -> None:
    for arm, curve in curves.items():
        mean, low, high = t_interval(curve.values)
        axis.fill_between(curve.steps, low, high, color=looks[arm]["color"], alpha=0.15, linewidth=0)
        axis.plot(curve.steps, mean, **looks[arm], label=arm, linewidth=1.6)
    axis.legend(fontsize=7, frameon=False)


def _draw_points(axis: Any, curves: Mapping[str, Curve], looks: Mapping[str, Mapping[str, str]]) -> None:
    for place, (arm, curve) in enumerate(curves.items()):
        mean, low, high = (float(number[-1]) for number in t_interval(curve.values[-1:]))
        spread = [[mean - low], [high - mean]]
        axis.errorbar(mean, -place, xerr=spread, color=looks[arm]["color"], marker="o", capsize=3)
    axis.set_yticks([-place for place in range(len(curves))], list(curves))
