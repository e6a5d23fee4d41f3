"""How many seeds a headline needs, from the spread of a pilot on search seeds."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy import special

from jaxagents.papers.expectations import START, Expectation
from jaxagents.papers.judge import HELD, decide, values_of
from jaxagents.papers.runs import ArmRuns
from jaxagents.papers.study import LEAST_SEEDS, SEARCH_SEEDS, Paper
from jaxagents.reporting.statistics import Interval

MOST_SEEDS = 200
_TRIALS = 20000


class Plan(NamedTuple):
    """The seeds that an expectation needs.

    Attributes:
        expectation: of the headline.
        deviation: of the difference, or of the value, from seed to seed; None without a pilot.
        pilot: what it was estimated from.
        effect: that is expected.
        seeds: that are needed; None without a pilot, or where `MOST_SEEDS` are not enough.
        power: of the committed number of seeds; None without a pilot.
    """

    expectation: Expectation
    deviation: float | None
    pilot: str
    effect: float
    seeds: int | None
    power: float | None


def plan_seeds(paper: Paper, runs: Mapping[str, ArmRuns], power: float = 0.9) -> list[Plan]:
    """Computes the seeds that every expectation of the headline needs.

    Args:
        paper: its headline.
        runs: of its arms; only search seeds are looked at.
        power: probability of the outcome HELD, if the effect is the one expected.

    Returns:
        One plan per expectation of the headline.
    """
    plans = []
    for expected in paper.headline:
        deviation, pilot = _deviation(expected, runs)
        effect = _effect(expected)
        if deviation is None:
            plans.append(Plan(expected, None, pilot, effect, None, None))
            continue
        needed = seeds_needed(expected, effect, deviation, power)
        plans.append(
            Plan(expected, deviation, pilot, effect, needed, power_of(expected, effect, deviation, len(paper.seeds)))
        )
    return plans


def power_of(expected: Expectation, effect: float, deviation: float, num_seeds: int) -> float:
    """Estimates how often an expectation comes out as HELD, from simulated means and variances of normal values.

    Args:
        expected: its rule, see `judge.decide`.
        effect: true mean of what is measured.
        deviation: from seed to seed; of a difference of arms sqrt(s_a^2 + s_b^2).
        num_seeds: of every arm.

    Returns:
        The share of the simulations.
    """
    rng, error = np.random.default_rng(num_seeds), deviation / math.sqrt(num_seeds)
    freedom = len({*expected.arms} - {START}) * (num_seeds - 1)  # Welch's, of arms that vary alike.
    mean = rng.normal(effect, error, _TRIALS)
    spread = error * np.sqrt(rng.chisquare(freedom, _TRIALS) / freedom)
    half = special.stdtrit(freedom, 0.5 + expected.confidence / 2.0) * spread
    return float(np.mean([decide(expected, Interval(*of)) == HELD for of in zip(mean, mean - half, mean + half)]))


def seeds_needed(expected: Expectation, effect: float, deviation: float, power: float = 0.9) -> int | None:
    """Returns the fewest seeds of that power, None above `MOST_SEEDS`."""
    low, high = LEAST_SEEDS, MOST_SEEDS
    if power_of(expected, effect, deviation, high) < power:
        return None
    while low < high:
        middle = (low + high) // 2
        if power_of(expected, effect, deviation, middle) >= power:
            high = middle
        else:
            low = middle + 1
    return low


def _effect(expected: Expectation) -> float:
    """Returns the expected mean of what is measured: the stated effect, or what `effect` says for None."""
    size = expected.effect
    if expected.kind in ("equal", "near"):
        return expected.value + (0.0 if size is None else size)
    if expected.kind in ("above", "below", "wins"):
        return expected.margin if size is None else size
    size = 2.0 * expected.margin if size is None else size
    return -size if expected.kind == "lower" else size


def _deviation(expected: Expectation, runs: Mapping[str, ArmRuns]) -> tuple[float | None, str]:
    """Estimates the spread of a difference from that of both arms, or of the one that has a pilot."""
    if expected.kind == "wins":
        return None, "a count of games has no spread to plan with"
    pilots = {}
    for arm in (name for name in expected.arms if name != START):
        searched = {seed: run for seed, run in runs[arm].runs.items() if seed >= SEARCH_SEEDS}
        values = values_of(searched, expected.metric)
        if len(values) >= 2:
            pilots[arm] = values
    if not pilots:
        return None, f"no pilot: run seeds={SEARCH_SEEDS}-{SEARCH_SEEDS + 3} first"
    variances = [float(np.var([*values.values()], ddof=1)) for values in pilots.values()]
    pilot = " and ".join(f"{len(values)} search seeds of {arm}" for arm, values in pilots.items())
    if len(expected.arms) == 2 and len(pilots) == 1:  # The other one is taken to vary as much.
        variances, pilot = variances * 2, f"{pilot}, times sqrt(2)"
    return math.sqrt(sum(variances)), pilot
