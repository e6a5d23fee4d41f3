"""Fits to results for several data sizes, or for several shares in a mixture."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class LogLinear(NamedTuple):
    """`y = slope * log2(n) + intercept`.

    Attributes:
        slope: increase of y when n doubles.
        intercept: value at n = 1.
    """

    slope: float
    intercept: float

    def needed(self, value: float) -> float:
        """Returns the n at which y reaches a value; `inf` if y does not grow."""
        return float(2.0 ** ((value - self.intercept) / self.slope)) if self.slope > 0.0 else float("inf")


def fit_log_linear(size: Sequence[float], value: Sequence[float]) -> LogLinear:
    """Fits a line over the logarithm of the size, by least squares.

    Args:
        size: n, positive, with at least two different values.
        value: y, such as success.

    Returns:
        The line.

    References:
        Li et al. (2024), "On the Effects of Data Scale on Computer Control Agents", section 5.2.
    """
    slope, intercept = np.polyfit(np.log2(np.asarray(size, float)), np.asarray(value, float), 1)
    return LogLinear(float(slope), float(intercept))


class Convex(NamedTuple):
    """`y = a + c |x - x0|^d` with c >= 0: the least y is a, at x0."""

    a: float
    c: float
    x0: float
    d: float


def fit_convex(share: Sequence[float], value: Sequence[float]) -> Convex:
    """Fits a convex function of a source's share, by least squares over a grid of x0 and d.

    Args:
        share: x in [0, 1], with at least three different values.
        value: y, a loss.

    Returns:
        The function; x0 is a multiple of 0.01 and d one of 1, 1.25, ..., 3.

    References:
        Zhuang et al. (2025), "Hephaestus", section 3.3.
    """
    x, y = np.asarray(share, float), np.asarray(value, float)
    best = (np.inf, Convex(float(y.mean()), 0.0, float(x[np.argmin(y)]), 1.0))
    for x0 in np.arange(101) / 100:
        for d in np.arange(4, 13) / 4:
            basis = np.stack([np.ones_like(x), np.abs(x - x0) ** d], axis=1)
            (a, c), *_ = np.linalg.lstsq(basis, y, rcond=None)
            error = float(np.sum((basis @ [a, c] - y) ** 2))
            if c >= 0.0 and error < best[0] - 1e-12:
                best = (error, Convex(float(a), float(c), float(x0), float(d)))
    return best[1]
