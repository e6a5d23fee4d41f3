"""Verdicts: the rule at its borders, seeds that are compared, and what is refused."""

import math

import pytest

from jaxagents.papers.spec import Expectation, make_paper
from jaxagents.papers.statistics import summarize_arms
from jaxagents.papers.verdicts import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REFUSED,
    REPRODUCED,
    STALE,
    decide,
    judge,
)
from jaxagents.reporting.statistics import Interval

PAPER = {
    "id": "p",
    "title": "t",
    "claim": "c",
    "minutes": 1,
    "experiment": "lm_frozenlake",
    "arms": {"a": [], "b": []},
    "metric": "success",
    "expect": [{"better": "a", "worse": "b", "margin": 0.1}],
}


def results_of(**arms):
    """Returns results with these final values of `eval/success` by seed; NaN as in a file."""

    def run(value):
        value = None if math.isnan(value) else value
        return {"minutes": 1.0, "curves": {"eval/success": {"steps": [0, 8], "values": [0.0, value]}}}

    runs = {name: {str(seed): run(value) for seed, value in values.items()} for name, values in arms.items()}
    return {
        "arms": {name: {"hash": "h", "start": "s", "runs": of_arm} for name, of_arm in runs.items()},
        "starts": {"s": {"evaluation": {"eval/success": 0.25}}},
    }


def seeds(*values):
    return dict(enumerate(values))


def only_finding(results, **changes):
    (finding,), verdict = judge(make_paper(PAPER | changes), results)
    assert verdict == finding.verdict
    return finding


@pytest.mark.parametrize(
    ("kind", "margin", "interval", "verdict"),
    [
        ("higher", 0.1, (0.1, 0.01, 0.19), REPRODUCED),
        ("higher", 0.1, (0.09, 0.01, 0.17), INCONCLUSIVE),  # The order holds, but by less than the margin.
        ("higher", 0.1, (0.3, 0.0, 0.6), INCONCLUSIVE),  # The order does not hold with confidence.
        ("higher", 0.1, (0.05, 0.01, 0.09), NOT_REPRODUCED),  # The margin is outside.
        ("higher", 0.0, (-0.1, -0.2, 0.0), NOT_REPRODUCED),
        ("higher", 0.0, (0.1, 0.01, 0.2), REPRODUCED),
        ("lower", 0.1, (-0.2, -0.3, -0.1), REPRODUCED),
        ("lower", 0.1, (0.2, 0.1, 0.3), NOT_REPRODUCED),
        ("equal", 0.1, (0.0, -0.09, 0.09), REPRODUCED),
        ("equal", 0.1, (0.05, -0.05, 0.15), INCONCLUSIVE),
        ("equal", 0.1, (0.2, 0.1, 0.3), NOT_REPRODUCED),
        ("equal", 0.1, (-0.2, -0.3, -0.1), NOT_REPRODUCED),
        ("equal", 0.0, (0.0, 0.0, 0.0), REPRODUCED),  # Identical arms are equal.
        ("equal", 0.0, (0.1, 0.1, 0.1), NOT_REPRODUCED),
        ("above", 0.5, (0.6, 0.5, 0.7), REPRODUCED),
        ("above", 0.5, (0.6, 0.4, 0.8), INCONCLUSIVE),
        ("above", 0.5, (0.3, 0.2, 0.4), NOT_REPRODUCED),
        ("below", 0.5, (0.3, 0.2, 0.4), REPRODUCED),
        ("below", 0.5, (0.6, 0.51, 0.7), NOT_REPRODUCED),
        ("below", -0.5, (-0.6, -0.7, -0.51), REPRODUCED),
    ],
)
def test_the_rule(kind, margin, interval, verdict):
    arms = ("a",) if kind in ("above", "below") else ("a", "b")
    assert decide(Expectation("success", kind, arms, margin, 0.95), Interval(*interval)) == verdict


def test_differences_are_taken_seed_by_seed():
    # The arms vary over seeds by far more than they differ. Differences: 0.2, 0.2, 0.23.
    results = results_of(a=seeds(0.9, 0.5, 0.33), b=seeds(0.7, 0.3, 0.1))
    finding = only_finding(results)
    assert (finding.verdict, finding.num_seeds) == (REPRODUCED, 3)
    assert finding.measured.mean == pytest.approx(0.21)
    # t(0.975, 2) = 4.302653, deviation 0.0173205 over sqrt(3): 0.01.
    assert finding.measured.high - finding.measured.mean == pytest.approx(0.0430265, abs=1e-6)
    assert finding.improvement == pytest.approx(7 / 9)


def test_only_seeds_that_both_arms_have_count():
    results = results_of(a={0: 0.5, 1: 0.6, 2: 0.7, 5: 0.0}, b={0: 0.1, 1: 0.2, 2: 0.3, 4: 1.0})
    finding = only_finding(results)
    assert finding.num_seeds == 3 and finding.measured.mean == pytest.approx(0.4)


def test_lower_may_be_better():
    results = results_of(a=seeds(0.1, 0.1, 0.1), b=seeds(0.3, 0.3, 0.3))
    assert only_finding(results).verdict == NOT_REPRODUCED
    assert only_finding(results, higher_is_better=False).verdict == REPRODUCED


def test_fewer_than_three_seeds_are_refused_and_numbers_kept():
    results = results_of(a=seeds(0.9, 0.9), b=seeds(0.1, 0.1))
    finding = only_finding(results)
    assert finding.verdict == REFUSED and finding.measured is None
    assert finding.reason == "`seeds` must be at least 3 for a verdict, got 2 that its arms have; try seeds=5."
    summary = summarize_arms(["success"], results)
    assert summary["a"]["success"]["mean"] == pytest.approx(0.9)


def test_results_of_earlier_settings_get_no_verdict():
    results = results_of(a=seeds(0.9, 0.9, 0.9), b=seeds(0.1, 0.1, 0.1))
    assert only_finding(results).verdict == REPRODUCED
    results["earlier"] = [{"name": "b", **results["arms"].pop("b")}]
    finding = only_finding(results)
    assert finding.verdict == STALE and finding.measured is None
    assert finding.reason == "`results` must be of today's settings, got earlier ones of b; run reproduce.py."


def test_an_arm_that_was_not_run_and_values_that_are_not_finite_do_not_count():
    assert only_finding(results_of(a=seeds(0.9, 0.9, 0.9))).num_seeds == 0
    # A curve whose last value is not finite ends at the one before, as a metric that counted nothing does.
    finding = only_finding(results_of(a=seeds(math.nan, 0.5, 0.5), b=seeds(0.0, 0.1, 0.1)))
    assert finding.num_seeds == 3


def test_a_function_without_randomness_needs_one_seed():
    expect = [{"better": "a", "worse": "b", "margin": 0.1}, {"equal": ["a", "b"], "margin": 0.1}]
    paper = make_paper(PAPER | {"deterministic": True, "expect": expect})
    findings, verdict = judge(paper, results_of(a=seeds(0.2), b=seeds(0.05)))
    assert [finding.verdict for finding in findings] == [REPRODUCED, NOT_REPRODUCED]
    assert verdict == NOT_REPRODUCED


def test_the_start_is_one_number_for_all_seeds():
    expect = [{"better": "a", "worse": "start", "margin": 0.2}]
    finding = only_finding(results_of(a=seeds(0.5, 0.55, 0.6)), start="warm_start", expect=expect)
    assert finding.verdict == REPRODUCED and finding.measured.mean == pytest.approx(0.3)


def test_the_worst_finding_decides():
    expect = [{"better": "a", "worse": "b", "margin": 0.1}, {"arm": "a", "above": 0.95}]
    results = results_of(a=seeds(0.9, 0.95, 1.0), b=seeds(0.1, 0.15, 0.2))
    findings, verdict = judge(make_paper(PAPER | {"expect": expect}), results)
    assert [finding.verdict for finding in findings] == [REPRODUCED, INCONCLUSIVE] and verdict == INCONCLUSIVE
    expect.append({"arm": "b", "above": 0.9})
    assert judge(make_paper(PAPER | {"expect": expect}), results)[1] == NOT_REPRODUCED
