"""Numbers of arms: means over seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxagents.papers.judge import values_of
from jaxagents.papers.runs import Run
from jaxagents.reporting.statistics import describe, interquartile_mean


def summarize_arms(metrics: Sequence[str], arms: Mapping[str, Mapping[int, Run]]) -> dict[str, dict[str, Any]]:
    """Computes mean, 95 % Student interval and interquartile mean over seeds.

    Args:
        metrics: to summarise.
        arms: runs by name and seed.

    Returns:
        `{arm: {metric: {"mean", "low", "high", "interquartile_mean", "num_seeds"}}}`; what was not measured is missing.
    """
    summary: dict[str, dict[str, Any]] = {}
    for arm, runs in arms.items():
        summary[arm] = {}
        for metric in metrics:
            values = np.asarray(list(values_of(runs, metric).values()))
            if values.size:
                middle = interquartile_mean(values)
                summary[arm][metric] = {**describe(values), "interquartile_mean": middle, "num_seeds": values.size}
    return summary
