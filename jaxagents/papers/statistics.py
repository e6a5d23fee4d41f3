"""Numbers of arms: means over seeds."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxagents.papers.metrics import measure, parse_metric
from jaxagents.reporting.statistics import describe, interquartile_mean


def values_of(results: Mapping[str, Any], arm: str, metric: str) -> dict[int, float]:
    """Returns a metric of an arm by seed; seeds without a finite value, or without the metric, are left out."""
    values = {}
    for seed, run in results["arms"].get(arm, {"runs": {}})["runs"].items():
        try:
            value = measure(metric, run["curves"]).value
        except ValueError:
            continue
        if math.isfinite(value):
            values[int(seed)] = value
    return dict(sorted(values.items()))


def start_values(results: Mapping[str, Any], metric: str) -> dict[str, float]:
    """Returns a metric of what the arms start from, by digest."""
    name = parse_metric(metric).name.removeprefix("eval/")
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
