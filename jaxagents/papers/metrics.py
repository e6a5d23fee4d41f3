"""Metrics of papers: which logged values they read, and how these become one number.

| metric | number |
|---|---|
| `x`, `last(x)`, `first(x)` | the last or the first value of x |
| `mean(x)`, `std(x)`, `min(x)`, `max(x)` | statistics over all of training |
| `early(x)`, `late(x)`, `tail(x)` | mean over the first half, the second half, the last tenth |
| `early(x, 0.1)`, `late(x, 0.2)` | mean over another share |
| `x@turns=N` | x at N turns, interpolated linearly; also at episodes, tokens or env_steps |
| `until(x, v)`, `until(x, <=v, turns)` | steps, or turns, until x is at least (at most) v; all if it never is |
| `score(x_, y)` | last exp(mean ln(1 + s)) - 1 of all s, in percent, whose names begin with x_ or y: Crafter's score |

References:
    Hafner (2022), Benchmarking the spectrum of agent capabilities (Crafter), equation 1: a geometric mean of success
    rates, in which rarely reached achievements count as much as easy ones.
    Royston and Parmar (2013), Restricted mean survival time: a time that is not reached is censored at the horizon, and
    the mean of min(time, horizon) is compared. For this, arms must be trained for the same length.
"""

import difflib
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from jaxagents.types import COUNTERS

Curves = dict[str, dict[str, list]]  # logged name -> {"steps": [points], "values": [points]}

_REDUCTIONS: dict[str, Callable[[np.ndarray], float]] = {
    "last": lambda values: values[-1],
    "first": lambda values: values[0],
    "mean": np.mean,
    "std": np.std,
    "min": np.min,
    "max": np.max,
    "score": lambda values: values[-1],
}
_SHARES = {"early": Fraction(1, 2), "late": Fraction(1, 2), "tail": Fraction(1, 10)}
_KNOWN = (*_REDUCTIONS, *_SHARES, "until")


@dataclass(frozen=True)
class Metric:
    """A parsed metric.

    Attributes:
        name: name of the logged value; for a score, beginnings of names, separated by commas.
        reduction: word before the parenthesis; "at" for `x@turns=N`.
        number: share of a window, threshold of `until`, or budget of `at`.
        unit: unit of the budget, one of `COUNTERS`; None: steps of the run.
        rising: whether `until` waits for values of at least the threshold; otherwise, of at most the threshold.
    """

    name: str
    reduction: str = "last"
    number: Fraction | None = None
    unit: str | None = None
    rising: bool = True


class Measured(NamedTuple):
    """A number of one run, with a reason if it is NaN, or the horizon because a threshold was not reached."""

    value: float
    reason: str = ""


def parse_metric(text: str) -> Metric:
    """Parses a metric, see the table of this module.

    Raises:
        ValueError: the text is not a metric; the message says what it lacks, and offers the nearest names.
    """
    if called := re.fullmatch(r"\s*(\w+)\(([^()]*)\)\s*", text):
        return _parse_call(text, called[1], [part.strip() for part in called[2].split(",")])
    if at := re.fullmatch(r"\s*([^()@=,\s]+)@(\w+)=([^()@=,\s]+)\s*", text):
        return Metric(name=at[1], reduction="at", number=_read_number(text, at[3]), unit=_read_unit(text, at[2]))
    if not re.fullmatch(r"\s*[^()@=,\s]+\s*", text):
        raise ValueError(
            f"`metric` must be a name, <name>@<unit>=<number>, or one in {', '.join(_KNOWN)}, got {text!r}; "
            "try late(success) or success@turns=1000."
        )
    return Metric(name=text.strip())


def find_metrics(metric: str, names: Sequence[str]) -> list[str]:
    """Returns the logged names that a metric reduces: the name itself, or under `eval/`; several for a score.

    Args:
        metric: see the table of this module.
        names: logged names.

    Raises:
        ValueError: no value of this name, or no counter of the unit, is logged; the nearest names are offered.
    """
    parsed = parse_metric(metric)
    if parsed.unit is not None and f"rollout/{parsed.unit}" not in names:
        counted = [unit for unit in COUNTERS if f"rollout/{unit}" in names]
        raise ValueError(
            f"`metric` must be in a unit that the experiment counts, got {metric!r}; it counts "
            f"{', '.join(counted) or 'nothing'}."
        )
    if parsed.reduction == "score":
        found = [_find(metric, beginning, names, str.startswith) for beginning in parsed.name.split(", ")]
    else:
        found = [_find(metric, parsed.name, names, operator.eq)]
    return list(dict.fromkeys(name for some in found for name in some))


def curve_of(metric: str, curves: Curves) -> tuple[str, dict[str, list]]:
    """Returns the name and the curve that a metric reduces: a logged value, or a score at every point.

    Raises:
        ValueError: see `find_metrics`; or the success rates of a score are logged at different points.
    """
    found = find_metrics(metric, list(curves))
    if parse_metric(metric).reduction != "score":
        return found[0], curves[found[0]]
    steps = curves[found[0]]["steps"]
    if different := [name for name in found if curves[name]["steps"] != steps]:
        raise ValueError(
            f"`metric` must be of rates that are logged together, got {metric!r} of {found[0]} and {different[0]}."
        )
    rates = np.asarray([curves[name]["values"] for name in found], np.float64)
    return metric, {"steps": steps, "values": list(np.expm1(np.mean(np.log1p(100.0 * rates), axis=0)))}


def measure(metric: str, curves: Curves) -> Measured:
    """Reduces the logged values of one run to the number that a metric defines.

    Args:
        metric: see the table of this module.
        curves: curves of one run; values that are not finite (nothing was counted) are skipped. The counters of
            experience, such as `rollout/turns`, count since the start of the run.

    Returns:
        The number, see `Measured`.

    Raises:
        ValueError: see `curve_of`.
    """
    parsed, (name, curve) = parse_metric(metric), curve_of(metric, curves)
    steps, values = (np.asarray(curve[key], np.float64) for key in ("steps", "values"))
    finite = np.isfinite(values)
    if parsed.reduction in _SHARES:
        finite &= _window(steps, parsed.reduction, parsed.number)
    if not finite.any():
        return Measured(math.nan, f"{name} has no finite value{' there' if parsed.reduction in _SHARES else ''}")
    if parsed.reduction in ("at", "until"):
        axis = steps if parsed.unit is None else _experience(curves[f"rollout/{parsed.unit}"], steps)
        reduce = _value_at if parsed.reduction == "at" else _reach
        return reduce(parsed, axis[finite], values[finite])
    return Measured(float(_REDUCTIONS.get(parsed.reduction, np.mean)(values[finite])))


def _parse_call(text: str, reduction: str, arguments: list[str]) -> Metric:
    if reduction not in _KNOWN:
        near = difflib.get_close_matches(reduction, _KNOWN, n=2, cutoff=0.4)
        raise ValueError(
            f"`metric` must be a name, or one in {', '.join(_KNOWN)}, got {text!r}; try {' or '.join(near) or 'mean'}."
        )
    if reduction == "score" and all(arguments):
        return Metric(name=", ".join(arguments), reduction=reduction)
    name, *rest = arguments
    most = {"early": 1, "late": 1, "until": 2}.get(reduction, 0)
    if not name or len(rest) > most or (reduction == "until" and not rest):
        forms = {"until": "until(x, v) or until(x, <=v, turns)", "score": "score(x_, y)"}
        form = forms.get(reduction, f"{reduction}(x)")
        raise ValueError(f"`metric` must have the arguments of {form}, got {text!r}.")
    if reduction == "until":
        rising, number = not rest[0].startswith("<="), rest[0].removeprefix("<=").removeprefix(">=")
        unit = _read_unit(text, rest[1]) if len(rest) > 1 else None
        return Metric(name=name, reduction=reduction, number=_read_number(text, number), unit=unit, rising=rising)
    share = _read_number(text, rest[0]) if rest else _SHARES.get(reduction)
    if share is not None and not 0 < share <= 1:
        raise ValueError(f"`metric` must have a share between 0 and 1, got {text!r}; try {reduction}({name}, 0.1).")
    return Metric(name=name, reduction=reduction, number=share)


def _find(metric: str, name: str, names: Sequence[str], fits: Callable[[str, str], bool]) -> list[str]:
    """Returns the names that match, or, if there are none, those that match under `eval/`."""
    for candidate in (name, f"eval/{name}"):
        if found := [logged for logged in names if fits(logged, candidate)]:
            return found
    near = difflib.get_close_matches(name, [logged.removeprefix("eval/") for logged in names])
    offered = f"try {' or '.join(near)}; " if near else ""
    raise ValueError(
        f"`metric` must be logged by the experiment, got {metric!r}; {offered}it logs {', '.join(sorted(names))}."
    )


def _read_number(text: str, number: str) -> Fraction:
    try:
        return Fraction(number.strip())
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"`metric` must have a number where {number!r} stands, got {text!r}; try 1000.") from error


def _read_unit(text: str, unit: str) -> str:
    if unit not in COUNTERS:
        near = difflib.get_close_matches(unit, COUNTERS, n=1, cutoff=0.4) or COUNTERS
        raise ValueError(f"`metric` must be in {', '.join(COUNTERS)}, got {text!r}; try {' or '.join(near)}.")
    return unit


def _window(steps: np.ndarray, reduction: str, share: Fraction) -> np.ndarray:
    """Returns which points are in the first or the last share of the steps, at least one.

    A value over training is a mean over the steps before it, so that a point in the middle belongs to the first half.
    """
    end = Fraction(steps[-1])
    if reduction == "early":
        inside = np.asarray([Fraction(step) <= share * end for step in steps])
        inside[0] = True
    else:
        inside = np.asarray([Fraction(step) > (1 - share) * end for step in steps])
        inside[-1] = True
    return inside


def _experience(counter: Mapping[str, list], steps: np.ndarray) -> np.ndarray:
    """Returns the experience that was counted up to each of the steps; 0 at step 0."""
    return np.interp(steps, [0.0, *counter["steps"]], [0.0, *counter["values"]])


def _value_at(metric: Metric, axis: np.ndarray, values: np.ndarray) -> Measured:
    budget, is_last = float(metric.number), np.append(np.diff(axis) > 0.0, True)
    if budget > axis[-1]:
        return Measured(math.nan, f"{metric.name} was last measured at {axis[-1]:.0f} {metric.unit}")
    if budget < axis[0]:
        return Measured(math.nan, f"{metric.name} was first measured at {axis[0]:.0f} {metric.unit}")
    return Measured(float(np.interp(budget, axis[is_last], values[is_last])))


def _reach(metric: Metric, axis: np.ndarray, values: np.ndarray) -> Measured:
    threshold = float(metric.number)
    reached = np.flatnonzero(values >= threshold if metric.rising else values <= threshold)
    if reached.size:
        return Measured(float(axis[reached[0]]))
    unit = metric.unit or "steps"
    return Measured(float(axis[-1]), f"{metric.name} did not reach {threshold:g} within {axis[-1]:.0f} {unit}")
