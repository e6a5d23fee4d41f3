"""Turns the runs of a paper's arms into a verdict about its claim, computed when read and never stored."""

import fnmatch
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from jaxagents.papers.expectations import START, Expectation
from jaxagents.papers.metrics import curve_of, find_metrics, measure, parse_metric
from jaxagents.papers.runs import DIVERGED, ArmRuns, Run
from jaxagents.papers.study import LEAST_SEEDS, Paper
from jaxagents.reporting.statistics import (
    Interval,
    paired_or_welch_interval,
    spent_levels,
    t_interval,
)

HELD, NOT_HELD, UNDECIDED, MISSING = "held", "not held", "undecided", "not run"
REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE = "reproduced", "not reproduced", "inconclusive"
ABSENT, UNFINISHED, NOT_RUN = "phenomenon absent", "unfinished", "not run"
TRIAL = "trial, no verdict"
VERDICTS = (REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE, ABSENT, UNFINISHED, NOT_RUN)


class Finding(NamedTuple):
    """The result of one expectation.

    Attributes:
        expectation: see `Expectation.describe`.
        role: "headline", "secondary" or "check".
        outcome: HELD, NOT_HELD, UNDECIDED or MISSING.
        measured: difference (first arm minus second) or value of the only arm, with its interval.
        seeds: seeds that the finding counts.
        reason: reason why nothing was measured, or which thresholds were not reached.
    """

    expectation: Expectation
    role: str
    outcome: str
    measured: Interval | None = None
    seeds: tuple[int, ...] = ()
    reason: str = ""


class Verdict(NamedTuple):
    """What the runs say about a paper's claim.

    Attributes:
        word: one of `VERDICTS`.
        mechanism: whether only the mechanism of the claim was tested.
        headline: findings that decide.
        secondary: findings that are counted, but do not decide.
        checks: findings about the baselines of the study.
        seeds: seeds that decided, or for which the next look waits.
        done: number of stored runs of these seeds, over all arms.
        needed: number of runs of these seeds, over all arms.
        diverged: numbers of diverged runs among them, by arm.
        minutes: duration of the runs in minutes.
    """

    word: str
    mechanism: bool
    headline: tuple[Finding, ...]
    secondary: tuple[Finding, ...]
    checks: tuple[Finding, ...]
    seeds: tuple[int, ...]
    done: int
    needed: int
    diverged: Mapping[str, int]
    minutes: float

    def describe(self, *, trial: bool = False, changed: bool = False) -> str:
        """Returns the verdict in words, such as "unfinished (3 of 16 runs)".

        Args:
            trial: whether the runs are of small variants or other settings, which say nothing about the claim.
            changed: whether something differs from the registration; this is added after the verdict.
        """
        if changed:
            return f"{self.describe(trial=trial)}, changed since registered"
        if trial:
            return f"{TRIAL} ({self.done} of {self.needed} runs)"
        if self.word == UNFINISHED:
            return f"{self.word} ({self.done} of {self.needed} runs)"
        return f"{self.word} (mechanism)" if self.mechanism and self.word in VERDICTS[:4] else self.word

    def count_secondary(self) -> str:
        """Returns "5 held, 1 undecided, 1 not run"; "" without any."""
        counts = Counter(finding.outcome for finding in self.secondary)
        return ", ".join(f"{counts[word]} {word}" for word in (HELD, NOT_HELD, UNDECIDED, MISSING) if counts[word])


def decide(expectation: Expectation, interval: Interval) -> str:
    """Applies the rule for verdicts.

    With the difference d (first arm minus second; its sign reversed for "lower"), its mean over seeds, its interval
    `[low, high]` at the stated confidence, and the margin m:

    | expectation | held | not held |
    |---|---|---|
    | higher, lower | mean >= m and low > 0: the interval excludes 0, the mean reaches m | high < m, or high <= 0 |
    | equal, near (value minus the stated number instead of d) | -m <= low and high <= m | low >= m or high <= -m |
    | above, below, wins (value instead of d; signs reversed for below) | low >= m | high < m |

    Everything else is undecided; an interval of width zero (a deterministic function) never is. "Held" does not mean
    that the true difference reaches the margin: if it equals the margin, about half of all trials hold.

    Args:
        expectation: expected result.
        interval: interval of the difference, or of the only arm.

    Returns:
        HELD, NOT_HELD or UNDECIDED.
    """
    mean, low, high = interval
    margin, kind = expectation.margin, expectation.kind
    if kind in ("lower", "below"):
        mean, low, high = -mean, -high, -low
        margin = margin if kind == "lower" else -margin
    if kind == "near":
        low, high = low - expectation.value, high - expectation.value
    if kind in ("equal", "near"):
        held, broken = -margin <= low and high <= margin, low >= margin or high <= -margin
    elif kind in ("higher", "lower"):
        held, broken = mean >= margin and low > 0.0, high < margin or high <= 0.0
    else:
        held, broken = low >= margin, high < margin
    return HELD if held else NOT_HELD if broken else UNDECIDED


def judge(paper: Paper, runs: Mapping[str, ArmRuns]) -> Verdict:
    """Computes the verdict on a paper from the runs of exactly its committed seeds.

    Differences of arms have Welch's interval, see `statistics.paired_or_welch_interval` for the exception; values of
    one arm, differences within its runs and shares of games have Student's. Only the headline and the study's checks
    decide, in this order: a failed check means "phenomenon absent"; a missing run means "unfinished" ("not run" without
    any run); an undecided check means "inconclusive"; a headline that is not held means "not reproduced"; an undecided
    headline means "inconclusive"; otherwise the claim is "reproduced". If there are two headlines, both must hold,
    which needs no adjustment of their levels (Berger, 1982, an intersection-union test).

    With `looks`, the first look that decides gives the verdict. Every look spends part of the error, see
    `statistics.spent_levels`, so that all looks together err as often as a single one. With fewer than `LEAST_SEEDS`
    seeds, only "phenomenon absent" ends a paper.

    Args:
        paper: paper with its expectations.
        runs: runs of the arms by name, see `read_runs`; seeds other than the committed ones do not count.

    Returns:
        The verdict.

    Raises:
        ValueError: no arm logs a metric, for example because it is misspelt; the nearest names are offered.
    """
    for look, share in zip(paper.looks, spent_levels([look / len(paper.seeds) for look in paper.looks])):
        verdict = _judge(replace(paper, seeds=paper.seeds[:look], looks=()), runs, share)
        settled = verdict.word in (REPRODUCED, NOT_REPRODUCED) and look >= LEAST_SEEDS
        if settled or verdict.word in (ABSENT, UNFINISHED, NOT_RUN):
            return verdict
    return verdict if paper.looks else _judge(paper, runs, 1.0)


def _judge(paper: Paper, runs: Mapping[str, ArmRuns], share: float) -> Verdict:
    """Returns the verdict of one look, which may spend this share of the error."""
    runs = {arm.name: _committed(paper, runs.get(arm.name, ArmRuns({}))) for arm in paper.arms}
    _require_logged(paper, runs)
    groups = {"headline": paper.headline, "secondary": paper.secondary, "check": paper.study.checks}
    found = {
        role: tuple(_find(paper, role, expected, runs, share) for expected in expectations)
        for role, expectations in groups.items()
    }
    stored = [run for of_arm in runs.values() for run in of_arm.runs.values()]
    word = _word(found["headline"], found["check"], bool(stored))
    return Verdict(
        word=word,
        mechanism=paper.mechanism,
        headline=found["headline"],
        secondary=found["secondary"],
        checks=found["check"],
        seeds=paper.seeds,
        done=len(stored),
        needed=len(paper.seeds) * len(paper.arms),
        diverged={n: k for n, of in runs.items() if (k := sum(r.status == DIVERGED for r in of.runs.values()))},
        minutes=sum(run.minutes for run in stored),
    )


def _require_logged(paper: Paper, runs: Mapping[str, ArmRuns]) -> None:
    """Refuses metrics that no arm of an expectation logs, once each of these arms has a run that did not diverge.

    Once all arms have a run, this also refuses further reported metrics that no arm of the paper logs, except in a
    confirmation, whose study may report them for other arms.
    """
    groups = {"headline": paper.headline, "secondary": paper.secondary, "checks": paper.study.checks}
    named = [
        (
            f"`{role}[{i}]` of {paper.id}" if metric != paper.study.metric else f"study {paper.study.id}",
            one.arms,
            metric,
        )
        for role, of_role in groups.items()
        for i, one in enumerate(of_role)
        for metric in one.metrics
    ]
    reported = ((paper.id, paper.metrics), (f"study {paper.study.id}", paper.study.metrics))
    for owner, metrics in reported if paper.source is not None else ():
        named += [(f"`metrics` of {owner}", tuple(runs), metric) for metric in metrics]
    logged = {
        arm: {name for run in of_arm.runs.values() if run.status != DIVERGED for name in run.curves}
        for arm, of_arm in runs.items()
    }
    for where, arms, metric in named:
        of_arms = [logged[arm] for arm in arms if arm != START]
        if all(of_arms):
            try:
                find_metrics(metric, sorted(set.union(*of_arms)))
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from error


def values_of(runs: Mapping[int, Run], metric: str, *, at_start: bool = False) -> dict[int, float]:
    """Returns a metric of an arm by seed; seeds without a finite value, or without the metric, are left out.

    A run that diverged before it reached a threshold has no value, because it did not last until the horizon.

    Args:
        runs: runs of the arm by seed.
        metric: see `metrics.measure`.
        at_start: whether to return the metric of what the runs started from.
    """
    values = {}
    for seed, run in runs.items():
        try:
            value, reason = measure(metric, run.curves)
            if at_start:
                _, curve = curve_of(metric, run.curves)
                value, reason = curve["values"][0] if curve["steps"][0] == 0 else math.nan, ""
        except ValueError:
            continue
        if math.isfinite(value) and not (reason and run.status == DIVERGED):
            values[seed] = value
    return values


def _committed(paper: Paper, runs: ArmRuns) -> ArmRuns:
    return ArmRuns({seed: run for seed, run in runs.runs.items() if seed in paper.seeds}, runs.damaged)


def _word(headline: Sequence[Finding], checks: Sequence[Finding], any_run: bool) -> str:
    outcomes = {finding.outcome for finding in headline}
    checked = {finding.outcome for finding in checks}
    if NOT_HELD in checked:
        return ABSENT
    if MISSING in outcomes | checked:
        return UNFINISHED if any_run else NOT_RUN
    if UNDECIDED in checked:
        return INCONCLUSIVE
    if NOT_HELD in outcomes:
        return NOT_REPRODUCED
    return INCONCLUSIVE if UNDECIDED in outcomes else REPRODUCED


def _find(paper: Paper, role: str, expected: Expectation, runs: Mapping[str, ArmRuns], share: float) -> Finding:
    for arm in expected.arms:
        missing = [] if arm == START else [seed for seed in paper.seeds if seed not in runs[arm].runs]
        if missing:
            reason = f"{len(paper.seeds) - len(missing)} of {len(paper.seeds)} runs of {arm} are there."
            return Finding(expected, role, MISSING, reason=reason)
    if mixed := [arm for arm in expected.arms if arm != START and _starts(paper, runs[arm]) > 1]:
        reason = f"runs of {mixed[0]} must have one start, got {_starts(paper, runs[mixed[0]])}; see the field start."
        return Finding(expected, role, UNDECIDED, reason=reason)
    metrics = [expected.metric, expected.than or expected.metric][: len(expected.arms)]
    if expected.kind == "wins":  # Compared game by game, see `_share_won`.
        columns = [dict.fromkeys(runs[arm].runs, 0.0) for arm in expected.arms]
    else:
        own = [arm if arm != START else next(one for one in expected.arms if one != START) for arm in expected.arms]
        at_start = [arm == START for arm in expected.arms]
        columns = [values_of(runs[arm].runs, of, at_start=start) for arm, of, start in zip(own, metrics, at_start)]
    lacking = [i for i, values in enumerate(columns) if set(values) != set(paper.seeds)]
    if lacking:
        reason = _why(metrics[lacking[0]], expected.arms[lacking[0]], runs)
        return Finding(expected, role, UNDECIDED, reason=reason)
    table = [np.asarray([values[seed] for seed in paper.seeds]) for values in columns]
    confidence = 1.0 - (1.0 - expected.confidence) * share
    if len({*expected.arms} - {START}) == 2 and expected.kind != "wins" and not paper.study.deterministic:
        interval = paired_or_welch_interval(table[0], table[1], confidence)
    else:  # One number per run.
        if expected.kind == "wins":
            measured = _share_won(expected, [runs[arm].runs for arm in expected.arms], paper.seeds)
        else:
            measured = table[0] - table[1] if len(table) == 2 else table[0]
        exact = Interval(*[float(measured.mean())] * 3)
        interval = exact if paper.study.deterministic else t_interval(measured, confidence)
    reason = "; ".join(filter(None, (_censored(*of_arm, runs) for of_arm in zip(metrics, expected.arms))))
    return Finding(expected, role, decide(expected, interval), interval, paper.seeds, reason)


def _censored(metric: str, arm: str, runs: Mapping[str, ArmRuns]) -> str:
    """Returns a note on how many runs of an arm did not reach the threshold of a metric."""
    if arm == START or parse_metric(metric).reduction != "until":
        return ""
    count = sum(bool(measure(metric, run.curves).reason) for run in runs[arm].runs.values())
    return f"{count} of {len(runs[arm].runs)} runs of {arm} are censored at their end" if count else ""


def _starts(paper: Paper, runs: ArmRuns) -> int:
    """Returns how many different starts the runs of an arm have, if they must all share one."""
    return 1 if paper.study.start_seed is None else len({run.start for run in runs.runs.values()})


def _why(metric: str, arm: str, runs: Mapping[str, ArmRuns]) -> str:
    """Returns why an arm does not have a value of a metric in every run, with the first seed that lacks it."""
    of_arm = runs[arm].runs if arm in runs else {}
    for seed in sorted({*of_arm} - {*values_of(of_arm, metric)}):
        try:
            reason = measure(metric, of_arm[seed].curves).reason
        except ValueError as error:
            reason = str(error)
        if reason:
            return f"{metric} of {arm} is no number in every run: with seed {seed}, {reason}."
    return f"{metric} of {arm} has no finite value in every run."


def _share_won(expected: Expectation, arms: Sequence[Mapping[int, Run]], seeds: Sequence[int]) -> np.ndarray:
    """Computes, by seed, the share of games in which the first arm is best, or within the tolerance of the best."""
    sign = 1.0 if expected.higher_is_better else -1.0
    shares = []
    for seed in seeds:
        curves = [arm[seed].curves for arm in arms]
        games = set.intersection(*({n for n in of if fnmatch.fnmatch(n, expected.metric)} for of in curves))
        values = sign * np.asarray([[measure(game, of).value for game in sorted(games)] for of in curves])
        finite = np.isfinite(values).all(axis=0)
        won = values[0] >= values[1:].max(axis=0) - expected.tolerance
        shares.append(won[finite].mean() if finite.any() else 0.0)
    return np.asarray(shares)
