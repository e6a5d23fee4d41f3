"""Comparison of final returns of teams."""

import statistics
from collections.abc import Mapping


def compare_returns(ours: list[float], theirs: list[float]) -> Mapping[str, float]:
    """Compares final returns of independent runs.

    Args:
        ours: one final return per run.
        theirs: one final return per run.

    Returns:
        The means, their difference (ours minus theirs), and the half width of its interval of two standard errors; 0 if
        either side has fewer than two runs.
    """
    difference = statistics.mean(ours) - statistics.mean(theirs)
    enough = min(len(ours), len(theirs)) > 1
    squared = sum(statistics.variance(side) / len(side) for side in (ours, theirs)) if enough else 0.0
    return {
        "final_return": statistics.mean(ours),
        "final_return_of_jaxmarl": statistics.mean(theirs),
        "difference": difference,
        "two_standard_errors": 2.0 * squared**0.5,
    }
