"""Pictures of what the arms of a paper learned, drawn from their stored runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxagents.papers.metrics import find_metric, parse_metric
from jaxagents.papers.stored import ArmRuns
from jaxagents.papers.study import Paper
from jaxagents.reporting.comparison import Compared, draw_comparison, join_curves
from jaxagents.reporting.curves import Curve


def draw_arms(path: str | Path, paper: Paper, runs: Mapping[str, ArmRuns], arms: Sequence[str] | None = None) -> Path:
    """Draws the metric of the study over training, a curve per arm with its 95 % interval over the committed seeds.

    Args:
        path: of the picture.
        paper: whose arms they are.
        runs: of all of its arms.
        arms: to be drawn, the order of the colours; None: all of them.

    Returns:
        Absolute path of the picture.

    Raises:
        ValueError: an arm is unknown, or has none of the committed runs.
    """
    compared = []
    for arm in runs if arms is None else arms:
        if arm not in runs:
            raise ValueError(f"`arms` must be of {', '.join(runs)}, got {arm!r}.")
        found = [run for seed, run in runs[arm].runs.items() if seed in paper.seeds]
        if not found:
            raise ValueError(f"`arms` must have runs, got none of {arm}; try reproduce.py paper={paper.id} arms={arm}.")
        compared.append(_compare(arm, [_curve_of(run.curves, paper.study.metric) for run in found]))
    return draw_comparison(path, compared, paper.study.metric)


def _compare(arm: str, curves: Sequence[Curve]) -> Compared:
    joined = join_curves(curves)
    return Compared(arm, (), joined, joined.values[-1])


def _curve_of(curves: Mapping[str, Mapping[str, Sequence[float]]], metric: str) -> Curve:
    curve = curves[find_metric(parse_metric(metric).name, list(curves))]
    return Curve(np.asarray(curve["steps"], np.float64), np.asarray(curve["values"], np.float64)[:, None])
