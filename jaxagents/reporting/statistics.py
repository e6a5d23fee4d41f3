"""Means over seeds, their intervals, and comparisons of two training methods."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

_NUM_RESAMPLES = 2000  # Of a bootstrap interval.


class Interval(NamedTuple):
    """A mean and its interval; floats, or arrays `[...]`."""

    mean: Any
    low: Any
    high: Any


def t_interval(values: np.ndarray, confidence: float = 0.95) -> Interval:
    """Computes a mean over seeds and its Student interval, `mean +- t_{(1 + confidence) / 2, n - 1} s / sqrt(n)`.

    The coverage is right even for few seeds if the values are roughly normal, as means over many episodes are; the
    percentile bootstrap of five seeds is too narrow (a 95 % interval covers about 83 %).

    Args:
        values: `[..., seeds]`; values that are not finite count as missing.
        confidence: probability mass of the interval.

    Returns:
        The interval, `[...]`; its bounds are NaN where fewer than two seeds have a value.

    Raises:
        ValueError: no seed has a value.

    References:
        Student (1908).
    """
    values = np.asarray(values, np.float64)
    finite = np.isfinite(values)
    count = finite.sum(axis=-1)
    if not count.size or not np.all(count):
        raise ValueError(f"`values` must be finite, one at least, got {values.tolist()}.")
    mean = np.mean(values, axis=-1, where=finite)
    variance = np.mean(np.square(np.where(finite, values, 0.0) - mean[..., None]), axis=-1, where=finite)
    error = np.sqrt(variance / np.maximum(count - 1, 1))
    half = np.where(count > 1, _special().stdtrit(np.maximum(count - 1, 1), 0.5 + confidence / 2.0) * error, np.nan)[()]
    return Interval(mean=mean, low=mean - half, high=mean + half)


def welch_interval(first: np.ndarray, second: np.ndarray, confidence: float = 0.95) -> Interval:
    """Computes a difference of means and Welch's interval, `m_a - m_b +- t_{(1 + confidence) / 2, v} sqrt(e_a + e_b)`.

    With the squared errors `e = s^2 / n`, `v = (e_a + e_b)^2 / (e_a^2 / (n_a - 1) + e_b^2 / (n_b - 1))`.

    Args:
        first: `[seeds]`, finite.
        second: `[other seeds]`, finite.
        confidence: probability mass of the interval.

    Returns:
        The interval; its width is zero if neither sample varies, and its bounds are NaN if one has a single seed.

    References:
        Welch (1947), The generalization of Student's problem when several different population variances are involved.
    """
    mean, error, freedom = _welch(first, second)
    half = float(_special().stdtrit(freedom, 0.5 + confidence / 2.0) * error) if error else 0.0
    return Interval(mean, mean - half, mean + half)


def welch_p_value(first: np.ndarray, second: np.ndarray) -> float:
    """Computes the two-sided p-value of a difference of means by Welch's test, see `welch_interval`."""
    mean, error, freedom = _welch(first, second)
    return float(2.0 * _special().stdtr(freedom, -abs(mean) / error)) if error else float(mean == 0.0)


def _welch(first: np.ndarray, second: np.ndarray) -> tuple[float, float, float]:
    """Returns a difference of means, its standard error and the degrees of freedom; NaN for a single seed."""
    first, second = _finite(first), _finite(second)
    mean, sizes = float(first.mean() - second.mean()), np.array([first.size, second.size])
    if sizes.min() < 2:
        return mean, np.nan, np.nan
    squared = np.array([first.var(ddof=1), second.var(ddof=1)]) / sizes
    total = squared.sum()
    return mean, np.sqrt(total), total**2 / np.sum(squared**2 / (sizes - 1)) if total else np.nan


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusts the p-values of m comparisons: `p_(i) <- max_{j <= i} min(1, (m - j + 1) p_(j))`, in increasing order.

    The probability that any comparison falls below a level by chance is at most that level, however the comparisons
    depend on each other, for example through a common baseline.

    References:
        Holm (1979), A simple sequentially rejective multiple test procedure.
    """
    values = np.asarray(p_values, np.float64)
    order, adjusted = np.argsort(values), np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * np.arange(values.size, 0, -1)), 1.0)
    return adjusted.tolist()


def by_seed(first: Mapping[int, float], second: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
    """Aligns the values of two arms by seed, `[seeds]` each: NaN if an arm has no value for a seed."""
    seeds = sorted({*first, *second})
    own, other = (np.asarray([of_arm.get(seed, np.nan) for seed in seeds], np.float64) for of_arm in (first, second))
    return own, other


def paired_or_welch_interval(first: np.ndarray, second: np.ndarray, confidence: float = 0.95) -> Interval:
    """Computes the interval of a difference, paired by seed only if the measured correlation makes that worthwhile.

    Pairing divides the variance by `1 / (1 - r)` and halves the degrees of freedom. It helps if `r > 1 - (t_{2n-2} /
    t_{n-1})^2`; the difference is paired if the lower bound of the measured correlation (95 %, one-sided, Fisher's
    transformation) exceeds this: from r = 0.90 on with 5 seeds, 0.73 with 8. Correlations that five seeds have by
    chance lie below. Otherwise, the interval is Welch's.

    Args:
        first: `[seeds]`; NaN for missing values, see `by_seed`. Samples with different gaps are never paired.
        second: `[seeds]`, for the same seeds.
        confidence: probability mass of the interval.

    References:
        Fisher (1921), On the probable error of a coefficient of correlation deduced from a small sample.
    """
    paired, (first, second) = pairing_pays(first, second, confidence), map(_measured, (first, second))
    return t_interval(first - second, confidence) if paired else welch_interval(first, second, confidence)


def paired_or_welch_p_value(first: np.ndarray, second: np.ndarray) -> float:
    """Computes the two-sided p-value of a difference of means, paired if `paired_or_welch_interval` pairs."""
    paired, (first, second) = pairing_pays(first, second), map(_measured, (first, second))
    if not paired:
        return welch_p_value(first, second)
    difference = first - second
    error = difference.std(ddof=1) / np.sqrt(difference.size)
    mean = float(difference.mean())
    return float(2.0 * _special().stdtr(difference.size - 1, -abs(mean) / error)) if error else float(mean == 0.0)


def pairing_pays(first: np.ndarray, second: np.ndarray, confidence: float = 0.95) -> bool:
    """Tells whether `paired_or_welch_interval` pairs by seed."""
    if np.size(first) != np.size(second) or not np.array_equal(np.isnan(first), np.isnan(second)):
        return False
    first, second = _measured(first), _measured(second)
    if first.size < 4 or not (first.std() > 0.0 and second.std() > 0.0):
        return False
    quantiles = _special().stdtrit([2 * first.size - 2, first.size - 1], 0.5 + confidence / 2.0)
    least = np.arctanh(1.0 - (quantiles[0] / quantiles[1]) ** 2) + _special().ndtri(0.95) / np.sqrt(first.size - 3)
    return bool(np.corrcoef(first, second)[0, 1] > np.tanh(least))


def spent_levels(fractions: Sequence[float]) -> list[float]:
    """Computes the shares of the error that several looks at growing data may spend, which sum to 1.

    They are `f(t_k) - f(t_{k-1})` with Pocock's spending function `f(t) = ln(1 + (e - 1) t)`. The sum of the errors is
    Bonferroni's bound, which holds however the looks depend on each other, including Student's intervals of few seeds.

    Args:
        fractions: fraction of the data that each look sees, increasing to 1.

    References:
        Lan and DeMets (1983), Discrete sequential boundaries for clinical trials; Pocock (1977).
    """
    return np.diff(np.log1p((np.e - 1.0) * np.asarray(fractions, np.float64)), prepend=0.0).tolist()


def describe(values: np.ndarray) -> dict[str, float | None]:
    """Returns `mean`, `low` and `high` of the 95 % Student interval as plain data; a single value has bounds None."""
    return {name: float(v) if np.isfinite(v) else None for name, v in t_interval(values)._asdict().items()}


def interquartile_mean(values: np.ndarray) -> float:
    """Computes the mean of the middle half of all values: a quarter is cut off at either end.

    Args:
        values: `[...]`, such as `[seeds, tasks]`; all finite.

    References:
        Agarwal et al. (2021), section 4.3.
    """
    ordered = np.sort(_finite(values), axis=None)
    cut = ordered.size // 4
    return float(np.mean(ordered[cut : ordered.size - cut]))


def bootstrap_interval(values: Sequence[np.ndarray], statistic: Callable[[np.ndarray], float]) -> tuple[float, float]:
    """Computes the 95 % percentile interval of a statistic of all values, with seeds resampled within every task.

    Args:
        values: `[seeds]` for each task; tasks may have different numbers of seeds.
        statistic: function of the values of all tasks, `[n] -> float`.

    Returns:
        The bounds.

    Raises:
        ValueError: a value is not finite, or a task has no values.

    References:
        Agarwal et al. (2021), Deep reinforcement learning at the edge of the statistical precipice, section 4.1.
    """
    values, generator = [_finite(task) for task in values], np.random.default_rng(0)
    drawn = [task[generator.integers(task.size, size=(_NUM_RESAMPLES, task.size))] for task in values]
    outcomes = [statistic(row) for row in np.concatenate(drawn, axis=1)]
    low, high = np.quantile(outcomes, [0.025, 0.975])
    return float(low), float(high)


def performance_profile(values: Sequence[np.ndarray], thresholds: np.ndarray) -> np.ndarray:
    """Computes the share of seeds above each threshold, averaged over tasks.

    Args:
        values: scores `[seeds]` for each task; tasks may have different numbers of seeds.
        thresholds: `[n]`.

    Returns:
        `[n]`, in [0, 1].

    References:
        Agarwal et al. (2021), section 4.2, equation 4.
    """
    return np.mean([np.mean(_finite(task)[:, None] > thresholds, axis=0) for task in values], axis=0)


def _measured(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, np.float64)
    return _finite(values[~np.isnan(values)])


def _finite(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, np.float64)
    if values.size < 1 or not np.isfinite(values).all():
        raise ValueError(f"`values` must be finite and one at least, got {values.tolist()}.")
    return values


def _special() -> Any:
    # Imported where it is used, and not as scipy.stats, which takes half a second to import.
    from scipy import special

    return special
