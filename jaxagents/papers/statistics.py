"""Numbers of runs: what a metric means, and means over seeds."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxagents.reporting.statistics import describe, interquartile_mean

Curves = dict[str, dict[str, list]]  # metric -> {"steps": [points], "values": [points]}
_REDUCTIONS: dict[str, Callable[[np.ndarray], float]] = {
    "last": lambda values: values[-1],
    "first": lambda values: values[0],
    "mean": np.mean,
    "std": np.std,
    "min": np.min,
    "max": np.max,
}


def parse_metric(metric: str) -> tuple[str, str]:
    """Splits "std(train/entropy)" into `("std", "train/entropy")`; "success" means `("last", "success")`.

    Raises:
        ValueError: an unknown reduction.
    """
    match = re.fullmatch(r"(?:(\w+)\()?([^()]+?)\)?", metric)
    reduction = (match.group(1) or "last") if match else None
    if reduction not in _REDUCTIONS or metric.endswith(")") != ("(" in metric):
        raise ValueError(f"`metric` must be a name, or one in {', '.join(_REDUCTIONS)}, got {metric!r}; try mean(x).")
    return reduction, match.group(2)


def find_metric(metric: str, names: Sequence[str]) -> str:
    """Returns the logged name that a metric means: itself, or under `eval/`.

    Raises:
        ValueError: nothing of this name is logged; the names are offered.
    """
    _, name = parse_metric(metric)
    for candidate in (name, f"eval/{name}"):
        if candidate in names:
            return candidate
    raise ValueError(f"`metric` must be logged by the experiment, got {metric!r}; it logs {', '.join(sorted(names))}.")


def measure(metric: str, curves: Curves) -> float:
    """Reduces a curve to the number that a metric means: "success" is the last value of `eval/success`.

    Args:
        metric: `<name>` or `<reduction>(<name>)`; reductions over training are last, first, mean, std, min and max.
        curves: of one seed.

    Returns:
        The number; values that are not finite (nothing was counted) do not count, NaN where there are no others.
    """
    values = np.asarray(curves[find_metric(metric, list(curves))]["values"], np.float64)
    values = values[np.isfinite(values)]
    return float(_REDUCTIONS[parse_metric(metric)[0]](values)) if values.size else float("nan")


def values_of(results: Mapping[str, Any], arm: str, metric: str) -> dict[int, float]:
    """Returns a metric of an arm by seed; seeds without a finite value, or without the metric, are left out."""
    values = {}
    for seed, run in results["arms"].get(arm, {"runs": {}})["runs"].items():
        try:
            value = measure(metric, run["curves"])
        except ValueError:
            continue
        if math.isfinite(value):
            values[int(seed)] = value
    return dict(sorted(values.items()))


def start_values(results: Mapping[str, Any], metric: str) -> dict[str, float]:
    """Returns a metric of what the arms start from, by digest."""
    name = parse_metric(metric)[1].removeprefix("eval/")
    values = {digest: start["evaluation"].get(f"eval/{name}") for digest, start in results["starts"].items()}
    return {digest: value for digest, value in values.items() if value is not None}


def summarize_arms(metrics: Sequence[str], results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Computes mean, 95 % Student interval and interquartile mean over seeds.

    Args:
        metrics: to summarise.
        results: see `store.read_results`.

    Returns:
        `{arm: {metric: {"mean", "low", "high", "interquartile_mean", "num_seeds"}}}`; what was not measured is missing.
    """
    summary: dict[str, dict[str, Any]] = {}
    for arm in results["arms"]:
        summary[arm] = {}
        for metric in metrics:
            values = np.asarray(list(values_of(results, arm, metric).values()))
            if values.size:
                middle = interquartile_mean(values)
                summary[arm][metric] = {**describe(values), "interquartile_mean": middle, "num_seeds": values.size}
    return summary
