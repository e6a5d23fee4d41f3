"""Curves of several arms as vector graphics: shapes that the template `panels.html` draws."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxagents.reporting.curves import Curve, thin
from jaxagents.reporting.statistics import t_interval

_MAX_POINTS = 100
_LEFT, _RIGHT, _TOP, _BOTTOM, _WIDTH, _HEIGHT, _ROW = 50.0, 10.0, 10.0, 24.0, 360.0, 200.0, 20.0


class Line(NamedTuple):
    """One arm of a panel.

    Attributes:
        name: name of the arm.
        look: index of the arm, which determines colour and dashes.
        path: path of the mean over seeds, or of the interval of a point.
        band: path of the 95 % interval; "" if there is none.
        dot: position of the mean of a point; None for a line.
        text: description with the numbers.
    """

    name: str
    look: int
    path: str
    band: str
    dot: tuple[float, float] | None
    text: str


class Panel(NamedTuple):
    """The panel of one metric.

    Attributes:
        title: name of the metric.
        width: width of the picture.
        height: height of the picture.
        x_ticks: positions and labels.
        y_ticks: positions and labels.
        lines: lines of the arms.
    """

    title: str
    width: float
    height: float
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    lines: list[Line]


def lay_out_panel(title: str, curves: Mapping[str, Curve], order: Sequence[str]) -> Panel:
    """Lays out a metric: over training, a line with a 95 % band per arm; else, a point with its interval per arm.

    Args:
        title: title of the panel.
        curves: curves by arm, at least one.
        order: all arms of the page, in which an arm has the same style in every panel.
    """
    curves = {name: thin(curve, _MAX_POINTS) for name, curve in curves.items()}
    is_line = max(curve.steps.size for curve in curves.values()) > 1
    means = {name: t_interval(curve.values if is_line else curve.values[-1:]) for name, curve in curves.items()}
    bounds = [
        np.concatenate([of.mean, of.low[np.isfinite(of.low)], of.high[np.isfinite(of.high)]]) for of in means.values()
    ]
    low, high, ticks = _nice(np.concatenate(bounds))
    looks = {name: order.index(name) for name in curves}
    if not is_line:
        return _lay_out_points(title, means, looks, (low, high, ticks))
    steps = np.concatenate([curve.steps for curve in curves.values()])
    first, last, step_ticks = _nice(steps, tight=True)
    to_x = _scale(first, last, _LEFT, _WIDTH - _RIGHT)
    to_y = _scale(low, high, _HEIGHT - _BOTTOM, _TOP)
    lines = []
    for name, curve in curves.items():
        mean, below, above = means[name]
        band, has_band = "", np.isfinite(below)
        if has_band.any():
            x = to_x(curve.steps[has_band])
            band = _path([*zip(x, to_y(above[has_band])), *reversed([*zip(x, to_y(below[has_band]))])]) + "Z"
        path = _path([*zip(to_x(curve.steps), to_y(mean))])
        lines.append(Line(name, looks[name], path, band, None, f"{name}: {mean[-1]:.4g} at the end"))
    x_ticks = [(float(to_x(tick)), label(tick)) for tick in step_ticks]
    y_ticks = [(float(to_y(tick)), label(tick)) for tick in ticks]
    return Panel(title, _WIDTH, _HEIGHT, x_ticks, y_ticks, lines)


def label(value: float) -> str:
    """Formats a number of an axis: 1500 as 1.5k."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:.6g}"


def _lay_out_points(
    title: str, means: Mapping[str, tuple], looks: Mapping[str, int], axis: tuple[float, float, list[float]]
) -> Panel:
    low, high, ticks = axis
    height = _TOP + _BOTTOM + _ROW * len(means)
    to_x = _scale(low, high, _LEFT, _WIDTH - _RIGHT)
    lines = []
    for row, (name, interval) in enumerate(means.items()):
        mean, below, above = (float(value[-1]) for value in interval)
        y = _TOP + _ROW * (row + 0.5)
        ends = [(float(to_x(below)), y), (float(to_x(above)), y)] if math.isfinite(below) else []
        text = f"{name}: {mean:.4g}" + (f" ({below:.4g} to {above:.4g})" if ends else "")
        lines.append(Line(name, looks[name], _path(ends) if ends else "", "", (round(float(to_x(mean)), 1), y), text))
    return Panel(title, _WIDTH, height, [(float(to_x(tick)), label(tick)) for tick in ticks], [], lines)


def _nice(values: np.ndarray, tight: bool = False) -> tuple[float, float, list[float]]:
    """Returns the ends of an axis and about four round numbers on it."""
    low, high = float(np.min(values)), float(np.max(values))
    if high <= low:
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    size = 10.0 ** math.floor(math.log10((high - low) / 3.0))
    step = next(size * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if (high - low) / (size * factor) <= 4.0)
    if not tight:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    first = math.ceil(low / step - 1e-9)
    return low, high, [round(step * k, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _scale(low: float, high: float, start: float, end: float):
    return lambda value: np.round(start + (np.asarray(value) - low) / (high - low) * (end - start), 1)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
