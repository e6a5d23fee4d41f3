"""Learning curves of a run: `curves.png` from `metrics.jsonl`, and from `baselines.json` if it exists."""

import io
import json
import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxagents.reporting.loggers import read_metrics
from jaxagents.reporting.statistics import t_interval
from jaxagents.types import COUNTERS

CURVES_FILE = "curves.png"
BASELINES_FILE = "baselines.json"

_COLUMNS = 3
_MAX_FIRST = 7  # Panels of the main picture.
_MAX_PANELS = 24
_OUTLYING = 3.0  # Points further out than so many ranges of the middle 96 % of points may lie outside of the panel.
_FLAT = 1e-4  # Relative range within which a curve counts as flat.
_MAX_POINTS = 300  # Per curve; more points are averaged in windows.
# The most important metrics; the rest follows in the order of the phases and of the alphabet.
_FIRST = ("return", "success", "win", "reward", "episode", "loss", "entropy", "kl")
_COLORS = {"eval": "#d1495b", "rollout": "#2e86ab", "train": "#6a4c93", "time": "#6b7280"}
_BASELINE = "#616e7c"


class Curve(NamedTuple):
    """One metric over training.

    Attributes:
        steps: float64 `[points]`, in the unit of the collector.
        values: float64 `[points, seeds]`, NaN where a seed has no value.
        ends: steps at which a stage ended and the next one began; lines are interrupted there.
    """

    steps: np.ndarray
    values: np.ndarray
    ends: tuple[float, ...] = ()


def write_curves(run_dir: str | Path) -> Path | None:
    """Draws the most important metrics of a run over its steps; for several seeds, means and their 95 % intervals.

    Baselines, `{name: {metric: value}}` in `baselines.json`, are dashed lines in the panels of their metrics. Lines are
    interrupted at the end of a stage, since the metrics of the next stage measure something else. The most important
    panel, a return if there is one, has the full width. Metrics with the same name, such as the return of rollouts and
    of evaluations, share a panel. A few outliers do not determine the scale.

    Args:
        run_dir: directory of the run.

    Returns:
        Path of the picture; None if there is nothing to draw.
    """
    curves = read_curves(read_metrics(run_dir), read_stage_ends(run_dir))
    panels = choose_panels(curves)[0]
    if not panels:
        return None
    path = Path(run_dir) / CURVES_FILE
    path.write_bytes(_draw(panels, curves, _read_baselines(run_dir), wide=True))
    return path


def draw_other_curves(run_dir: str | Path) -> bytes | None:
    """Draws the metrics of a run that `write_curves` leaves out.

    Args:
        run_dir: directory of the run.

    Returns:
        The picture as PNG; None if there is nothing left to draw.
    """
    curves = read_curves(read_metrics(run_dir), read_stage_ends(run_dir))
    panels = choose_panels(curves)[1][:_MAX_PANELS]
    return _draw(panels, curves, _read_baselines(run_dir), wide=False) if panels else None


def choose_panels(curves: Mapping[str, Curve]) -> tuple[list[list[str]], list[list[str]]]:
    """Separates the most important panels from all others, among which are those of constant metrics.

    Args:
        curves: curves by metric.

    Returns:
        Both lists of panels, in reading order, see `arrange_panels`.
    """
    panels = arrange_panels(list(curves))
    moving = [names for names in panels[1:] if any(np.nanstd(curves[name].values) > 0.0 for name in names)]
    first = panels[:1] + moving[: _MAX_FIRST - 1]
    return first, [names for names in panels if names not in first]


def _draw(
    panels: Sequence[Sequence[str]],
    curves: Mapping[str, Curve],
    baselines: Mapping[str, Mapping[str, float]],
    *,
    wide: bool,
) -> bytes:
    """Draws panels as PNG, the first one over the full width or like all others."""
    # pyplot keeps a global list of figures and chooses a window system; a separate figure needs neither.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    others = panels[1:] if wide else panels
    columns = min(_COLUMNS, max(len(others), 1))
    rows = math.ceil(len(others) / columns)
    heights = ([4.2] if wide else []) + [2.6] * rows
    engine = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.02, hspace=0.04)
    figure = Figure(figsize=(4.0 * _COLUMNS, sum(heights)), layout=engine, facecolor="white", dpi=130)
    grid = figure.add_gridspec(len(heights), columns, height_ratios=heights)
    places = [grid[0, :]] if wide else []
    places += [grid[len(places) + index // columns, index % columns] for index in range(len(others))]
    for place, names in zip(places, panels, strict=True):
        _draw_panel(figure.add_subplot(place), {name: curves[name] for name in names}, baselines)
    picture = io.BytesIO()
    FigureCanvasAgg(figure).print_png(picture)
    return picture.getvalue()


def _read_baselines(run_dir: str | Path) -> dict[str, dict[str, float]]:
    path = Path(run_dir) / BASELINES_FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def read_stage_ends(run_dir: str | Path) -> tuple[float, ...]:
    """Reads the steps at which the stages of a run ended from its last checkpoints; () for a run with one stage."""
    files = Path(run_dir).glob("checkpoints/*/last/*/metadata/metadata")
    saved = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    return tuple(sorted({float(one["steps"]) for one in saved if one["finished"]}))


def read_curves(rows: Sequence[dict[str, Any]], ends: Sequence[float] = ()) -> dict[str, Curve]:
    """Gathers the lines of `metrics.jsonl` by metric.

    Args:
        rows: lines, as `read_metrics` returns them.
        ends: ends of the stages, see `read_stage_ends`; only those before the last step of a metric are kept.

    Returns:
        A curve for each metric that has at least one finite value.
    """
    names = {name: None for row in rows for name in row if "/" in name}
    curves = {}
    for name in names:
        present = [row for row in rows if name in row]
        logged = [np.atleast_1d(np.asarray(row[name], np.float64)) for row in present]
        seeds = max(value.size for value in logged)
        values = np.stack([np.broadcast_to(value, (seeds,)) for value in logged])
        seen = np.isfinite(values).any(axis=1)
        if seen.any():
            steps = np.array([row["step"] for row in present], np.float64)
            steps, values = steps[seen], np.where(np.isfinite(values), values, np.nan)[seen]
            inner = tuple(end for end in ends if steps[0] <= end < steps[-1])
            curves[name] = thin(Curve(steps=steps, values=values, ends=inner), _MAX_POINTS)
    return curves


def arrange_panels(names: Sequence[str]) -> list[list[str]]:
    """Groups metrics `<phase>/<name>` by name, and sorts the panels into reading order.

    Args:
        names: names of metrics.

    Returns:
        One list of metrics per panel; the curve drawn last, on top, is that of the evaluation. Counters of experience,
        which only increase, are left out.
    """
    phases = list(_COLORS)
    panels: dict[str, list[str]] = {}
    names = [name for name in names if name.removeprefix("rollout/") not in COUNTERS]
    for name in sorted(names, key=lambda name: -phases.index(name.partition("/")[0])):
        panels.setdefault(name.partition("/")[2], []).append(name)

    def rank(short: str) -> tuple[int, int, str]:
        important = [index for index, word in enumerate(_FIRST) if word in short]
        phase = min(phases.index(name.partition("/")[0]) for name in panels[short])
        return (len(_FIRST) if phase == 3 else min(important, default=len(_FIRST)), phase, short)

    return [panels[short] for short in sorted(panels, key=rank)]


def split(curve: Curve) -> list[Curve]:
    """Splits a curve at the ends of stages; a point at an end belongs to the stage that ends."""
    cuts = np.searchsorted(curve.steps, curve.ends, side="right")
    parts = zip(np.split(curve.steps, cuts), np.split(curve.values, cuts))
    return [Curve(steps, values) for steps, values in parts if steps.size]


def thin(curve: Curve, num_points: int) -> Curve:
    """Averages a curve in windows, each within one stage, to about `num_points` points at most."""
    if len(curve.steps) <= num_points:
        return curve
    steps: list[float] = []
    values: list[np.ndarray] = []
    for part in split(curve):
        count = max(num_points * len(part.steps) // len(curve.steps), 1)
        steps += [window.mean() for window in np.array_split(part.steps, count)]
        for window in np.array_split(part.values, count):
            seen = np.isfinite(window).sum(axis=0)
            values.append(np.where(seen > 0, np.nansum(window, axis=0) / np.maximum(seen, 1), np.nan))
    return Curve(steps=np.array(steps), values=np.stack(values), ends=curve.ends)


def draw_curve(axis: Any, curve: Curve, *, label: str, color: Any, marker: str | None = None) -> None:
    """Draws a curve into matplotlib axes, one line per stage, for several seeds with its 95 % band."""
    for index, part in enumerate(split(curve)):
        mean = part.values[:, 0]
        if part.values.shape[1] > 1:
            mean, low, high = t_interval(part.values)
            axis.fill_between(part.steps, low, high, color=color, alpha=0.18, linewidth=0)
        dots = "o" if len(part.steps) == 1 else marker
        name = label if index == 0 else None
        axis.plot(part.steps, mean, color=color, label=name, linewidth=1.6, marker=dots, markersize=3)
    for end in curve.ends:
        axis.axvline(end, color=_BASELINE, linewidth=0.9, linestyle=":")


def robust_limits(values: Sequence[np.ndarray]) -> tuple[float, float] | None:
    """Computes limits of an axis that a few outliers do not determine.

    Args:
        values: `[points, seeds]` for every curve, NaN for missing values.

    Returns:
        Limits of the middle 96 % of the points, with a margin; None if no point lies far outside.
    """
    points = np.concatenate([value.ravel() for value in values])
    points = points[np.isfinite(points)]
    if not points.size:
        return None
    low, high = np.percentile(points, [2.0, 98.0])
    room = _OUTLYING * (high - low)
    if room == 0.0 or (points.min() >= low - room and points.max() <= high + room):
        return None
    margin = 0.1 * (high - low)
    return float(low - margin), float(high + margin)


def _draw_panel(axis: Any, curves: dict[str, Curve], baselines: Mapping[str, Mapping[str, float]]) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    for name, curve in curves.items():
        phase = name.partition("/")[0]
        draw_curve(axis, curve, label=phase, color=_COLORS[phase], marker="o" if len(curve.steps) <= 30 else None)
    phases = [name.partition("/")[0] for name in curves]
    metric = next(iter(curves)).partition("/")[2]
    style_axis(axis, next(iter(curves)) if len(phases) == 1 else metric)
    if {"eval", "rollout"} & set(phases):
        _draw_baselines(axis, {name: of[metric] for name, of in baselines.items() if metric in of})
    if (limits := robust_limits([curve.values for curve in curves.values()])) is not None:
        axis.set_ylim(*limits)
    # Ignores rounding errors: a flat curve has its value in the middle.
    if axis.get_ylim()[1] - axis.get_ylim()[0] < _FLAT * max(map(abs, axis.get_ylim())):
        middle = sum(axis.get_ylim()) / 2.0
        axis.set_ylim(middle - 0.05 * abs(middle), middle + 0.05 * abs(middle))
    cut = "; a stage ends at a dotted line" if any(curve.ends for curve in curves.values()) else ""
    axis.set_xlabel(f"steps of training{cut}", fontsize=8, color="#52606d")
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.yaxis.set_major_locator(MaxNLocator(5))
    large = max(abs(limit) for limit in axis.get_ylim()) >= 1e4
    axis.yaxis.set_major_formatter(EngFormatter(sep="") if large else "{x:g}")
    if len(phases) > 1:
        axis.legend(fontsize=8, frameon=False)


def _draw_baselines(axis: Any, baselines: Mapping[str, float]) -> None:
    sides = ((0.995, "right"), (0.5, "center"), (0.005, "left"))  # Labels of nearby lines are placed apart.
    for (name, value), (x, side) in zip(baselines.items(), cycle(sides)):
        axis.axhline(value, color=_BASELINE, linewidth=1.1, linestyle=(0, (5, 3)))
        place = {"xycoords": ("axes fraction", "data"), "ha": side, "va": "bottom"}
        axis.annotate(name, (x, value), **place, fontsize=8, color=_BASELINE)


def style_axis(axis: Any, title: str) -> None:
    """Applies the common style of all pictures to matplotlib axes."""
    axis.set_title(title, fontsize=10, loc="left", fontweight="bold", color="#1f2933")
    axis.tick_params(labelsize=8, colors="#52606d", length=0)
    axis.grid(color="#e4e7eb", linewidth=0.8)
    axis.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axis.spines[side].set_visible(False)
