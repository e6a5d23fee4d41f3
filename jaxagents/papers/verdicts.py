"""From what was measured to what it says about a paper's claim."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxagents.papers.spec import START, Expectation, Paper
from jaxagents.papers.statistics import start_values, summarize_arms, values_of
from jaxagents.papers.store import stale_arms
from jaxagents.reporting.statistics import Interval, probability_of_improvement, t_interval

REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE, REFUSED = "reproduced", "not reproduced", "inconclusive", "refused"
STALE = "stale: of earlier settings"
LEAST_SEEDS = 3


class Finding(NamedTuple):
    """What came out of one expectation.

    Attributes:
        expectation: in words.
        measured: the difference (first arm minus second), or the value of the only arm; with its interval.
        improvement: probability that a run of the first arm has the higher value; None for one arm.
        num_seeds: that both arms have.
        verdict: one of the words above.
        reason: of a refusal.
    """

    expectation: str
    measured: Interval | None
    improvement: float | None
    num_seeds: int
    verdict: str
    reason: str = ""


def decide(expectation: Expectation, interval: Interval) -> str:
    """Applies the rule of verdicts.

    With the difference d (first arm minus second; its sign turned for "lower"), its mean over seeds, the interval
    `[low, high]` at the stated confidence, and the margin m:

    | expectation | reproduced | not reproduced |
    |---|---|---|
    | higher, lower | mean >= m and low > 0: the order holds with confidence, by the margin | high < m, or high <= 0 |
    | equal | -m <= low and high <= m: those of identical arms, too | low >= m or high <= -m |
    | above, below (value in place of d; signs turned for below) | low >= m | high < m |

    Everything else is inconclusive; an interval without width (a function without randomness) never is.

    Args:
        expectation: what should come out.
        interval: of the difference, or of the only arm.

    Returns:
        REPRODUCED, NOT_REPRODUCED or INCONCLUSIVE.
    """
    mean, low, high = interval
    margin, kind = expectation.margin, expectation.kind
    if kind in ("lower", "below"):
        mean, low, high = -mean, -high, -low
        margin = margin if kind == "lower" else -margin
    if kind == "equal":
        held, broken = -margin <= low and high <= margin, low >= margin or high <= -margin
    elif kind in ("higher", "lower"):
        held, broken = mean >= margin and low > 0.0, high < margin or high <= 0.0
    else:
        held, broken = low >= margin, high < margin
    return REPRODUCED if held else NOT_REPRODUCED if broken else INCONCLUSIVE


def judge(paper: Paper, results: Mapping[str, Any]) -> tuple[list[Finding], str]:
    """Compares what was measured with what was expected.

    Differences are taken seed by seed: the runs of one seed share start, random keys and evaluated tasks. Their
    interval is Student's.

    Args:
        paper: its expectations.
        results: see `store.read_results`.

    Returns:
        `(findings, verdict of the paper)`: stale if any expectation is (an arm of it has results of earlier settings
        alone), else not reproduced if any is, else refused if any is (fewer than three seeds), else inconclusive if any
        is, else reproduced.
    """
    findings = [_find(paper, expected, results) for expected in paper.expect]
    verdicts = {finding.verdict for finding in findings}
    worst = next(v for v in (STALE, NOT_REPRODUCED, REFUSED, INCONCLUSIVE, REPRODUCED) if v in verdicts)
    return findings, worst


def conclude(paper: Paper, results: Mapping[str, Any]) -> dict[str, Any]:
    """Adds to results what they say: the claim, means and intervals, findings and verdict.

    Args:
        paper: its claim and expectations.
        results: see `store.read_results`.

    Returns:
        The results with these entries, as plain data.
    """
    metrics = reported_metrics(paper)
    findings, verdict = judge(paper, results)
    runs = [run for arm in results["arms"].values() for run in arm["runs"].values()]
    told = {name: getattr(paper, name) for name in ("title", "claim", "notes")}
    return {
        **results,
        **told,
        "metrics": metrics,
        "summary": summarize_arms(metrics, results),
        "stale": summarize_arms(metrics, {"arms": stale_arms(results)}),
        "start": {metric: start_values(results, metric) for metric in metrics},
        "findings": [
            {**finding._asdict(), "measured": finding.measured and finding.measured._asdict()} for finding in findings
        ],
        "verdict": verdict,
        "minutes": sum(run["minutes"] for run in runs),
        "minutes_planned": paper.minutes,
    }


def reported_metrics(paper: Paper) -> list[str]:
    """Returns the metrics of the verdict first, each once."""
    return list(dict.fromkeys([paper.metric, *(expected.metric for expected in paper.expect), *paper.metrics]))


def _find(paper: Paper, expected: Expectation, results: Mapping[str, Any]) -> Finding:
    earlier = {arm["name"] for arm in results.get("earlier", ())} - set(results["arms"])
    if stale := [arm for arm in expected.arms if arm in earlier]:
        reason = f"`results` must be of today's settings, got earlier ones of {' and '.join(stale)}; run reproduce.py."
        return Finding(expected.describe(), None, None, 0, STALE, reason)
    by_arm = [_of_arm(results, arm, expected) for arm in expected.arms]
    seeds = sorted(set.intersection(*({*values} for values in by_arm)))
    needed = 1 if paper.deterministic else LEAST_SEEDS
    if len(seeds) < needed:
        reason = f"`seeds` must be at least {needed} for a verdict, got {len(seeds)} that its arms have; try seeds=5."
        return Finding(expected.describe(), None, None, len(seeds), REFUSED, reason)
    columns = [np.asarray([values[seed] for seed in seeds]) for values in by_arm]
    measured = columns[0] - columns[1] if len(columns) == 2 else columns[0]
    if paper.deterministic:
        interval = Interval(*[float(measured.mean())] * 3)
    else:
        interval = t_interval(measured, expected.confidence)
    improvement = probability_of_improvement(*columns) if len(columns) == 2 else None
    return Finding(expected.describe(), interval, improvement, len(seeds), decide(expected, interval))


def _of_arm(results: Mapping[str, Any], arm: str, expected: Expectation) -> dict[int, float]:
    """Returns the values of an arm by seed; the start of the other arm is one number for all of its seeds."""
    if arm != START:
        return values_of(results, arm, expected.metric)
    other = next(name for name in expected.arms if name != START)
    start = start_values(results, expected.metric).get(results["arms"].get(other, {}).get("start"))
    return {} if start is None else dict.fromkeys(values_of(results, other, expected.metric), start)
