"""Pictures of what the arms of a paper learned, drawn from their stored runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxagents.papers.metrics import Curves, curve_of
from jaxagents.papers.runs import ArmRuns
from jaxagents.papers.study import Paper, nearest
from jaxagents.reporting.comparison import Compared, draw_comparison, join_curves
from jaxagents.reporting.curves import Curve, style_axis
from jaxagents.reporting.statistics import t_interval


def draw_arms(
    path: str | Path,
    paper: Paper,
    runs: Mapping[str, ArmRuns],
    arms: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> Path:
    """Draws the metric of the study over seeds with its 95 % interval: a curve per arm over training.

    Functions that return one number have no curve: their values stand beside each other, a line per arm.

    Args:
        path: of the picture.
        paper: whose arms they are.
        runs: of all of its arms.
        arms: to be drawn, the order of the colours; None: all of them.
        seeds: of the runs; None: the committed ones.

    Returns:
        Absolute path of the picture.

    Raises:
        ValueError: an arm is unknown, or has no run of the seeds.
    """
    compared = []
    wanted, given = (paper.seeds, "") if seeds is None else (seeds, f" seeds=[{','.join(map(str, seeds))}]")
    for arm in runs if arms is None else arms:
        if arm not in runs:
            raise ValueError(f"`arms` must be of the paper {paper.id}, got {arm!r}; try {nearest(arm, runs)}.")
        found = [run for seed, run in runs[arm].runs.items() if seed in wanted]
        if not found:
            command = f"reproduce.py paper={paper.id} arms={arm}{given}"
            raise ValueError(f"`arms` must have runs, got none of {arm}; try {command}.")
        compared.append(_compare(arm, [_curve_of(run.curves, paper.study.metric) for run in found]))
    if all(one.curve.steps.size == 1 for one in compared):
        return _draw_values(path, {one.label: one.final for one in compared}, paper.study.metric)
    return draw_comparison(path, compared, paper.study.metric)


def _draw_values(path: str | Path, values: Mapping[str, np.ndarray], metric: str) -> Path:
    """Draws a line per arm: its mean, its interval, and the value of every seed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.4 + 0.4 * len(values)), layout="constrained", facecolor="white", dpi=130)
    axis = figure.subplots()
    for height, of_arm in enumerate(values.values()):
        axis.plot(of_arm, np.full(of_arm.size, height), ".", color="#9aa5b1")
        if of_arm.size > 1:
            interval = t_interval(of_arm)
            axis.plot([interval.low, interval.high], [height, height], color="#1f77b4", linewidth=2)
        axis.plot(of_arm.mean(), height, "o", color="#1f77b4")
    labels = [f"{arm} ({of_arm.size})" for arm, of_arm in values.items()]
    axis.set_yticks(range(len(values)), labels, fontsize=8)
    axis.set_ylim(len(values) - 0.5, -0.5)
    style_axis(axis, metric)
    axis.set_xlabel("mean with its interval, and every seed; in brackets the number of seeds", fontsize=8)
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(path)
    return path


def _compare(arm: str, curves: Sequence[Curve]) -> Compared:
    joined = join_curves(curves)
    return Compared(arm, (), joined, joined.values[-1])


def _curve_of(curves: Curves, metric: str) -> Curve:
    _, curve = curve_of(metric, curves)
    return Curve(np.asarray(curve["steps"], np.float64), np.asarray(curve["values"], np.float64)[:, None])
