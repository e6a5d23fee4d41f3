"""Number of seeds that an expectation needs, from the spread that was measured on search seeds."""

import math

import numpy as np
from scipy import special

from jaxagents.papers.expectations import START, Expectation
from jaxagents.papers.judge import HELD, decide
from jaxagents.papers.study import LEAST_SEEDS
from jaxagents.reporting.statistics import Interval, spent_levels

MOST_SEEDS = 200
_TRIALS = 20000


def power_of(expected: Expectation, effect: float, deviation: float, num_seeds: int, *, paired: bool = False) -> float:
    """Estimates how often an expectation will be HELD, from simulated means and variances of normal values.

    Args:
        expected: expectation with its rule, see `judge.decide`.
        effect: true mean of the measured quantity.
        deviation: standard deviation over seeds; for a difference of arms sqrt(s_a^2 + s_b^2), or that of the
            differences if paired.
        num_seeds: number of seeds of every arm.
        paired: whether arms are compared seed by seed.

    Returns:
        The share of simulations in which it is held.
    """
    rng, error = np.random.default_rng(num_seeds), deviation / math.sqrt(num_seeds)
    # Welch's degrees of freedom, for arms with equal variances.
    freedom = (1 if paired else len({*expected.arms} - {START})) * (num_seeds - 1)
    mean = rng.normal(effect, error, _TRIALS)
    spread = error * np.sqrt(rng.chisquare(freedom, _TRIALS) / freedom)
    half = special.stdtrit(freedom, 0.5 + expected.confidence / 2.0) * spread
    return float(np.mean([decide(expected, Interval(*of)) == HELD for of in zip(mean, mean - half, mean + half)]))


def seeds_needed(
    expected: Expectation, effect: float, deviation: float, power: float = 0.9, *, paired: bool = False
) -> int | None:
    """Returns the smallest number of seeds with that power; None above `MOST_SEEDS`."""
    low, high = LEAST_SEEDS, MOST_SEEDS
    if power_of(expected, effect, deviation, high, paired=paired) < power:
        return None
    while low < high:
        middle = (low + high) // 2
        if power_of(expected, effect, deviation, middle, paired=paired) >= power:
            high = middle
        else:
            low = middle + 1
    return low


def first_look(
    expected: Expectation, effect: float, deviation: float, most: int, power: float, *, paired: bool = False
) -> tuple[int, float]:
    """Returns the number of seeds of the first look, if the last look has `most` seeds, and the first look's power.

    The first of two looks may spend only a share of the error, see `statistics.spent_levels`: its interval is wider
    than that of all seeds. It comes after the smallest number of seeds with that power, or after all of them.
    """
    for count in range(min(LEAST_SEEDS, most), most + 1):
        share = spent_levels(sorted({count / most, 1.0}))[0]
        looked = expected._replace(confidence=1.0 - (1.0 - expected.confidence) * share)
        found = power_of(looked, effect, deviation, count, paired=paired)
        if found >= power:
            break
    return count, found
