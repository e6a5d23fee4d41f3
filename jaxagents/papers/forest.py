"""Results of expectations, relative to their margins: shapes for the templates `forest.html` and `forest.svg`."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxagents.papers.expectations import Expectation
from jaxagents.papers.judge import Finding
from jaxagents.reporting.tables import describe_interval

_LEAST, _MOST = -3.0, 5.0  # Range of the axis in margins; values beyond it are drawn at the border, as arrows.
_LEFT, _RIGHT, _WIDTH = 230.0, 560.0, 770.0
_TOP, _BOTTOM, _ROW = 10.0, 44.0, 34.0
_TICKS = (-2, -1, 0, 1, 2, 3, 4)
_CAPTION = "in margins (0: no difference, 1: the margin); green: what was expected"
_LABEL, _LINE = 24, 44  # Numbers of characters that fit.


class Row(NamedTuple):
    """One expectation.

    Attributes:
        label: label of the row's group; "" for all but its first row.
        subject: compared quantities.
        text: measured result.
        outcome: see `Finding`.
        y: vertical centre of the row.
        band: ends of the range in which the expectation holds.
        line: ends of the interval; None if nothing was measured.
        dot: position of the mean.
        beyond: whether the interval extends beyond the axis: left, right.
    """

    label: str
    subject: str
    text: str
    outcome: str
    y: float
    band: tuple[float, float]
    line: tuple[float, float] | None
    dot: float | None
    beyond: tuple[bool, bool]


class Forest(NamedTuple):
    """A picture.

    Attributes:
        title: title of the picture.
        caption: caption of the axis.
        width: width of the picture.
        height: height of the picture.
        axis: ends of the axis.
        ticks: positions and labels of the axis ticks.
        rows: rows from top to bottom.
    """

    title: str
    caption: str
    width: float
    height: float
    axis: tuple[float, float]
    ticks: list[tuple[float, str]]
    rows: list[Row]


def lay_out_forest(title: str, groups: Mapping[str, Sequence[Finding]]) -> Forest:
    """Lays out findings relative to their margins, with those of a group below each other.

    Args:
        title: title of the picture.
        groups: findings by the label of their group, such as the headlines of papers.
    """
    findings = [(label * (not i), one) for label, of_group in groups.items() for i, one in enumerate(of_group)]
    rows = [_lay_out_row(label, one, _TOP + _ROW * (i + 0.5)) for i, (label, one) in enumerate(findings)]
    height = _TOP + _BOTTOM + _ROW * len(rows)
    return Forest(
        title, _CAPTION, _WIDTH, height, (_LEFT, _RIGHT), [(_to_x(tick), f"{tick:g}") for tick in _TICKS], rows
    )


def in_margins(expected: Expectation, values: Sequence[float]) -> tuple[list[float], tuple[float, float]]:
    """Returns values in units of an expectation's margin, and the range of values in which it holds.

    The claim lies to the right: signs are reversed if lower values are expected, so that "lower by 0.2" holds from 1
    on, and "below 0.2" from -1 on. Differences that must be equal, and values that must be near a number, hold from -1
    to 1. Without a margin, the largest of the values becomes 2.

    Args:
        expected: expectation whose margin is the unit.
        values: values of the difference, or of the only arm.
    """
    sign = -1.0 if expected.kind in ("lower", "below") else 1.0
    unit = abs(expected.margin) or max(map(abs, values)) / 2.0 or 1.0
    scaled = [sign * (value - (expected.value if expected.kind == "near" else 0.0)) / unit for value in values]
    if expected.kind in ("equal", "near"):
        return scaled, (-expected.margin / unit, expected.margin / unit)
    return scaled, ((expected.margin if expected.kind == "lower" else sign * expected.margin) / unit, math.inf)


def _lay_out_row(label: str, finding: Finding, y: float) -> Row:
    expected, measured = finding.expectation, finding.measured
    values, (least, most) = in_margins(expected, measured or (0.0,))
    text = finding.outcome if measured is None else describe_interval(measured._asdict())
    row = Row(
        label=_cut(label, _LABEL),
        subject=_cut(_subject(expected), _LINE),
        text=text,
        outcome=finding.outcome,
        y=y,
        band=(_to_x(least), _to_x(most)),
        line=None,
        dot=None,
        beyond=(False, False),
    )
    if measured is None or not all(map(math.isfinite, values)):
        return row
    low, high = min(values), max(values)
    return row._replace(line=(_to_x(low), _to_x(high)), dot=_to_x(values[0]), beyond=(low < _LEAST, high > _MOST))


def _subject(expected: Expectation) -> str:
    first, second = expected.arms[0], expected.arms[-1]
    if expected.kind == "wins":
        return f"{first}: share of games won"
    if len(expected.arms) == 1:
        return f"{first}: {expected.metric}"
    if expected.than is not None:
        return f"{first}: {expected.metric} − {expected.than}"
    return f"{second} − {first}" if expected.kind == "lower" else f"{first} − {second}"


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 1]}…"


def _to_x(value: float) -> float:
    """Returns the x-coordinate of a number of margins, clipped to the border."""
    share = (min(max(value, _LEAST), _MOST) - _LEAST) / (_MOST - _LEAST)
    return round(_LEFT + share * (_RIGHT - _LEFT), 1)
