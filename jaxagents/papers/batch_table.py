"""Results of a batch: every arm compared with a baseline, usually the first one, in words that follow from a rule."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from jaxagents.papers.arms import Composed
from jaxagents.papers.batch import Line
from jaxagents.papers.expectations import START, Expectation
from jaxagents.papers.judge import MISSING, NOT_HELD, UNDECIDED, Finding, decide
from jaxagents.papers.plan import reported_metrics
from jaxagents.papers.runs import DIVERGED
from jaxagents.papers.study import LEAST_SEEDS, Paper, Study
from jaxagents.reporting.statistics import (
    Interval,
    by_seed,
    holm,
    paired_or_welch_interval,
    paired_or_welch_p_value,
    t_interval,
)
from jaxagents.reporting.tables import describe_interval

BETTER, WORSE, NOT_SEPARATED, NO_HEADROOM = "better", "worse", "not separated", "no headroom"
BASELINE, METHOD, NOT_RUN, FEW = "baseline", "method", "not run", "too few seeds"
_LEVEL = 0.05


class Measured(NamedTuple):
    """One arm of a batch.

    Attributes:
        arm: name of the arm.
        role: BASELINE or METHOD.
        rival: baseline that the arm is compared with; "" for the first baseline, and for arms without a comparison.
        word: word that the rule of `describe` gives; "" without a rival.
        values: values of the study's metric by seed, without runs that diverged before their first evaluation.
        start: the metric of the parameters that the runs started from, by seed.
        further: values of the study's other metrics, by metric and seed.
        mean: mean with its 95 % interval; None without values.
        difference: difference from the rival with its 95 % interval, positive if the arm is better.
        p: p-value of the difference, adjusted by Holm over all arms of the batch.
        trials: number of settings that were tried on the arm besides its own.
        diverged: number of runs that ended in infinite or NaN parameters.
        minutes: minutes of all runs.
        cpu_minutes: CPU minutes of all runs, over all cores.
        failure: reason why the arm could not be run.
    """

    arm: str
    role: str
    rival: str
    word: str
    values: Mapping[int, float]
    start: Mapping[int, float]
    further: Mapping[str, Mapping[int, float]]
    mean: Interval | None
    difference: Interval | None
    p: float | None
    trials: int
    diverged: int
    minutes: float
    cpu_minutes: float
    failure: str = ""

    def values_of(self, metric: str, study: Study) -> Mapping[int, float]:
        """Returns the values of a metric of the study by seed."""
        return self.values if metric == study.metric else self.further.get(metric, {})

    def mean_of(self, metric: str) -> float:
        """Returns the mean of one of the study's other metrics; NaN without values."""
        values = [*self.further.get(metric, {}).values()]
        return float(np.mean(values)) if values else math.nan


def describe(difference: Interval, p: float, simultaneous: Interval, smallest: float) -> str:
    """Returns the word for a difference from the baseline.

    | word | when |
    |---|---|
    | better, worse | p, adjusted by Holm over the arms of the batch, is below 0.05 |
    | no difference within x | else, if the interval at level 1 - 0.05 / arms lies within the smallest effect x |
    | not separated | else |

    Args:
        difference: mean and 95 % interval, positive if the arm is better.
        p: adjusted p-value.
        simultaneous: simultaneous interval, which holds for all differences at once.
        smallest: smallest effect of practical interest.
    """
    if p < _LEVEL:
        return BETTER if difference.mean > 0.0 else WORSE
    if -smallest <= simultaneous.low and simultaneous.high <= smallest:
        return f"no difference within {smallest:g}"
    return NOT_SEPARATED


def measure_batch(
    batch: Paper, lines: Sequence[Line], composed: Mapping[str, Composed], failures: Mapping[str, str]
) -> tuple[list[Measured], list[Finding]]:
    """Returns the results of every arm, and of the study's checks.

    A failed check means that the setting cannot show a difference: then every arm has "no headroom".

    Args:
        batch: see `library.load_batch`.
        lines: all stored runs, see `batch.read_batch`.
        composed: current arms of the batch, by name.
        failures: reasons why arms could not be composed or run, by name.

    Returns:
        The arms, baselines first, then the others sorted by their difference; and the findings of the checks.
    """
    study, sign = batch.study, 1.0 if batch.study.higher_is_better else -1.0
    runs = counted_lines(batch, lines, composed)
    checks = [_check(one, runs, batch.seeds) for one in study.checks]
    stopped = any(finding.outcome == NOT_HELD for finding in checks)
    values = {name: _values([*of_arm.values()], study.metric) for name, of_arm in runs.items()}
    first = study.arms[0].name if study.arms else ""
    rivals = {arm.name: _rival_of(arm.name, study) for arm in batch.arms}
    base = {name: values.get(rival, {}) for name, rival in rivals.items()}
    compared = [name for name, of in values.items() if rivals[name] and min(len(of), len(base[name])) >= 2]
    pairs = {name: by_seed(values[name], base[name]) for name in compared}
    adjusted = dict(zip(compared, holm([paired_or_welch_p_value(*pairs[name]) for name in compared])))
    rows = []
    for name in (arm.name for arm in batch.arms):
        if name not in values and name not in failures:
            continue
        of_arm = values.get(name, {})
        mean = t_interval(np.asarray([*of_arm.values()])) if of_arm else None
        difference, word = None, "" if not rivals[name] else FEW if of_arm else NOT_RUN
        if name in adjusted:
            difference = _signed(paired_or_welch_interval(*pairs[name]), sign)
            at_once = _signed(paired_or_welch_interval(*pairs[name], 1.0 - _LEVEL / len(compared)), sign)
            word = describe(difference, adjusted[name], at_once, study.smallest_effect)
            word = NO_HEADROOM if stopped else word if min(len(of_arm), len(base[name])) >= LEAST_SEEDS else FEW
        mine = [*runs.get(name, {}).values()]
        tried = {tuple(line.overrides) for line in lines if line.arm == name and line.overrides}
        rows.append(
            Measured(
                arm=name,
                role=BASELINE if name in {arm.name for arm in study.arms} else METHOD,
                rival=rivals[name],
                word=word,
                values=of_arm,
                start=_values(mine, study.metric, at_start=True),
                further={metric: _values(mine, metric) for metric in reported_metrics(batch)[1:]},
                mean=mean,
                difference=difference,
                p=adjusted.get(name),
                trials=len(tried),
                diverged=sum(line.status == DIVERGED for line in mine),
                minutes=sum(line.minutes for line in mine),
                cpu_minutes=sum(line.cpu_minutes for line in mine),
                failure=failures.get(name, ""),
            )
        )
    order = {row.arm: -(row.difference.mean if row.difference is not None else -math.inf) for row in rows}
    rows.sort(key=lambda row: (row.role != BASELINE, row.arm != first, order[row.arm]))
    return rows, checks


def _rival_of(arm: str, study: Study) -> str:
    first = study.arms[0].name if study.arms else ""
    return "" if arm == first else study.rivals.get(arm, first) or ""


def counted_lines(batch: Paper, lines: Sequence[Line], composed: Mapping[str, Composed]) -> dict[str, dict[int, Line]]:
    """Returns the runs that the table counts, by arm and seed: those of the arms' current settings."""
    return {
        name: {line.seed: line for line in lines if line.address == arm.address and line.seed in batch.seeds}
        for name, arm in composed.items()
    }


def print_batch(batch: Paper, rows: Sequence[Measured], checks: Sequence[Finding]) -> None:
    """Prints the table of a batch."""
    console = Console(width=170, force_jupyter=False)
    metric = batch.study.metric
    table = Table(title=f"{batch.id}: {metric}, means over seeds with 95 % intervals")
    for column in columns_of(metric):
        table.add_column(column, justify="left" if column in ("arm", "beside the baseline") else "right")
    for row in filter(has_begun, rows):
        table.add_row(*cells_of(row))
    console.print(table)
    for line in notes_of(rows, checks):
        console.print(line, markup=False, highlight=False)


def _check(expected: Expectation, runs: Mapping[str, Mapping[int, Line]], seeds: Sequence[int]) -> Finding:
    """Decides a check of the study from the stored values, by the rule for verdicts."""
    if expected.kind == "wins":
        return Finding(expected, "check", UNDECIDED, reason="shares of games are not kept in a batch")
    columns = []
    for arm, metric in zip(expected.arms, (expected.metric, expected.than or expected.metric)):
        own = next(one for one in expected.arms if one != START) if arm == START else arm
        of_arm = [*runs.get(own, {}).values()]
        columns.append(_values(of_arm, metric, at_start=arm == START))
    if min(map(len, columns)) < (2 if len(seeds) > 1 else 1):
        return Finding(expected, "check", MISSING, reason="its runs are not there")
    if len(columns) == 2:
        interval = paired_or_welch_interval(*by_seed(*columns), expected.confidence)
    else:
        interval = t_interval(np.asarray([*columns[0].values()]), expected.confidence)
    return Finding(expected, "check", decide(expected, interval), interval, tuple(seeds))


def _values(lines: Sequence[Line], metric: str, *, at_start: bool = False) -> dict[int, float]:
    found = {line.seed: (line.start if at_start else line.values).get(metric) for line in lines}
    return {seed: value for seed, value in sorted(found.items()) if value is not None}


def _signed(interval: Interval, sign: float) -> Interval:
    mean, low, high = (sign * value for value in interval)
    return Interval(mean, min(low, high), max(low, high))


def has_begun(row: Measured) -> bool:
    """Returns whether an arm has a run, or a reason for having none."""
    return bool(row.values or row.diverged or row.failure)


def columns_of(metric: str) -> tuple[str, ...]:
    """Returns the header of a batch's table."""
    return ("arm", metric, "difference", "p", "beside the baseline", "seeds", "trials", "diverged", "CPU minutes")


def cells_of(row: Measured) -> list[str]:
    """Returns the table cells of an arm."""
    difference = "-" if row.difference is None else describe_interval(row.difference._asdict())
    return [
        row.arm,
        "-" if row.mean is None else describe_interval(row.mean._asdict()),
        difference,
        "-" if row.p is None else f"{row.p:.2g}",
        row.word or ("the baseline" if row.role == BASELINE else "-"),
        str(len(row.values)),
        str(row.trials),
        str(row.diverged),
        f"{row.cpu_minutes:.1f}",
    ]


def notes_of(rows: Sequence[Measured], checks: Sequence[Finding]) -> list[str]:
    """Returns the sentences below the table: checks, failures, missing runs, and separations expected by chance."""
    compared = sum(row.difference is not None for row in rows)
    lines = [
        f"Check, {one.outcome}: {one.expectation.describe()}"
        + (f"; measured {describe_interval(one.measured._asdict())}" if one.measured else f"; {one.reason}")
        for one in checks
    ]
    lines += [f"Failed: {row.arm}: {row.failure}" for row in rows if row.failure]
    waiting = [f"`{row.arm}`" for row in rows if not has_begun(row)]
    lines += [f"Not run: {', '.join(waiting)}."] if waiting else []
    minutes, cpu = sum(row.minutes for row in rows), sum(row.cpu_minutes for row in rows)
    lines.append(
        f"{compared} differences; without adjustment {_LEVEL * compared:.1f} of them would look separated by chance. "
        f"{minutes:.0f} minutes, {cpu:.0f} CPU minutes."
    )
    return lines
