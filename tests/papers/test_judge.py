"""Verdicts: the rule at its borders, seeds that count, and what decides."""

import math

import pytest

from jaxagents.papers.expectations import Expectation
from jaxagents.papers.judge import HELD, MISSING, NOT_HELD, UNDECIDED, decide, judge
from jaxagents.papers.runs import DIVERGED, DONE, ArmRuns, Run
from jaxagents.papers.study import make_paper, make_study
from jaxagents.reporting.statistics import Interval

STUDY = {"id": "f/s", "question": "q", "metric": "success", "seeds": "0-2", "experiment": "x", "start": "warm_start"}
PAPER = {
    "id": "p",
    "family": "f",
    "title": "t",
    "claim": "c",
    "minutes": 1,
    "study": "s",
    "arms": {"a": []},
    "headline": [{"better": "a", "worse": "b", "margin": 0.1}],
}


def runs_of(values, status=DONE, start="s", **curves):
    """Returns runs with these final values of `eval/success` by seed, from a start of 0.25."""
    return {
        seed: Run(
            address="t",
            seed=seed,
            status=status,
            curves={"eval/success": {"steps": [0, 8], "values": [0.25, value]}, **curves},
            minutes=1.0,
            start=start,
        )
        for seed, value in values.items()
    }


def stored(**arms):
    return {name: values if isinstance(values, ArmRuns) else ArmRuns(runs_of(values)) for name, values in arms.items()}


def seeds(*values):
    return dict(enumerate(values))


def verdict_of(runs, study=None, **changes):
    made = make_study(STUDY | {"arms": {"b": []}} | (study or {}))
    return judge(make_paper(PAPER | changes, made), runs)


def only_finding(runs, study=None, **changes):
    (finding,) = verdict_of(runs, study, **changes).headline
    return finding


def test_a_metric_that_no_arm_logs_is_refused():
    both = stored(a=seeds(0.9, 0.9, 0.9), b=seeds(0.1, 0.1, 0.1))
    misspelt = [{"metric": "sucess", "higher": "a", "lower": "b", "margin": 0.1}]
    with pytest.raises(ValueError, match=r"`headline\[0\]` of p: `metric` must be logged .* got 'sucess'; try success"):
        verdict_of(both, headline=misspelt)
    with pytest.raises(ValueError, match=r"`secondary\[0\]` of p: `metric` must be logged"):
        verdict_of(both, secondary=misspelt)
    # Where an arm has no run, or none that lasted, the name may still be right.
    diverged = ArmRuns(runs_of(seeds(0.1, 0.1, 0.1), status=DIVERGED))
    assert verdict_of(stored(a=seeds(0.9, 0.9, 0.9)), headline=misspelt).word == "unfinished"
    assert verdict_of({**both, "b": diverged}, headline=misspelt).word == "inconclusive"
    with pytest.raises(ValueError, match=r"got 'lat\(success\)'; try late"):
        verdict_of(both, headline=[{"metric": "lat(success)", "higher": "a", "lower": "b", "margin": 0.1}])


def test_a_trial_has_no_verdict():
    verdict = verdict_of(stored(a=seeds(0.9, 0.9, 0.9), b=seeds(0.1, 0.1, 0.1)))
    assert verdict.describe() == "reproduced"
    assert verdict.describe(trial=True) == "trial, no verdict (6 of 6 runs)"


@pytest.mark.parametrize(
    ("kind", "margin", "interval", "outcome"),
    [
        ("higher", 0.1, (0.1, 0.01, 0.19), HELD),
        ("higher", 0.1, (0.09, 0.01, 0.17), UNDECIDED),  # The order holds, but by less than the margin.
        ("higher", 0.1, (0.3, 0.0, 0.6), UNDECIDED),  # The order does not hold with confidence.
        ("higher", 0.1, (0.05, 0.01, 0.09), NOT_HELD),  # The margin is outside.
        ("higher", 0.0, (-0.1, -0.2, 0.0), NOT_HELD),
        ("higher", 0.0, (0.1, 0.01, 0.2), HELD),
        ("lower", 0.1, (-0.2, -0.3, -0.1), HELD),
        ("lower", 0.1, (0.2, 0.1, 0.3), NOT_HELD),
        ("equal", 0.1, (0.0, -0.09, 0.09), HELD),
        ("equal", 0.1, (0.05, -0.05, 0.15), UNDECIDED),
        ("equal", 0.1, (0.2, 0.1, 0.3), NOT_HELD),
        ("equal", 0.1, (-0.2, -0.3, -0.1), NOT_HELD),
        ("equal", 0.0, (0.0, 0.0, 0.0), HELD),  # Identical arms are equal.
        ("equal", 0.0, (0.1, 0.1, 0.1), NOT_HELD),
        ("near", 0.1, (0.5, 0.45, 0.59), HELD),  # Of 0.5.
        ("near", 0.1, (0.5, 0.35, 0.55), UNDECIDED),
        ("near", 0.1, (0.7, 0.61, 0.8), NOT_HELD),
        ("above", 0.5, (0.6, 0.5, 0.7), HELD),
        ("above", 0.5, (0.6, 0.4, 0.8), UNDECIDED),
        ("above", 0.5, (0.3, 0.2, 0.4), NOT_HELD),
        ("below", 0.5, (0.3, 0.2, 0.4), HELD),
        ("below", 0.5, (0.6, 0.51, 0.7), NOT_HELD),
        ("below", -0.5, (-0.6, -0.7, -0.51), HELD),
        ("wins", 0.5, (0.6, 0.6, 0.6), HELD),
        ("wins", 0.5, (0.4, 0.4, 0.4), NOT_HELD),
    ],
)
def test_the_rule(kind, margin, interval, outcome):
    arms = ("a",) if kind in ("above", "below", "near") else ("a", "b")
    assert decide(Expectation("success", kind, arms, margin, value=0.5), Interval(*interval)) == outcome


def test_differences_have_welch_intervals():
    # Means 0.5 and 0.2; squared errors 0.01 / 3 and 0.0001 / 3; degrees of freedom 2 x 0.0101^2 / (0.01^2 + 0.0001^2).
    finding = only_finding(stored(a=seeds(0.4, 0.5, 0.6), b=seeds(0.21, 0.2, 0.19)))
    assert (finding.outcome, finding.seeds) == (HELD, (0, 1, 2))
    # t(0.975, 2.040) = 4.22282, sqrt(0.0101 / 3) = 0.058023.
    assert finding.measured == pytest.approx((0.3, 0.3 - 0.24502, 0.3 + 0.24502), abs=1e-5)


def test_differences_are_paired_by_seed_where_that_pays():
    # The arms vary over seeds by far more than they differ.
    values = [0.9, 0.5, 0.3, 0.7, 0.2]
    runs = stored(a=seeds(*values), b=seeds(*[value - 0.12 for value in values]))
    finding = only_finding(runs, {"seeds": "0-4"})
    assert finding.outcome == HELD and finding.measured == pytest.approx((0.12,) * 3)


def test_thresholds_that_are_not_reached_are_censored():
    def timed(**status):
        last = {0: 0.9, 1: 0.9, 2: 0.4}
        curves = {s: {"steps": [0, 4, 8], "values": [0.0, value / 2, value]} for s, value in last.items()}
        made = {seed: Run("t", seed, DONE, {"eval/success": curve}, 1.0, "s") for seed, curve in curves.items()}
        return ArmRuns({**made, 2: made[2]._replace(**status)})

    headline = [{"metric": "until(success, 0.8)", "arm": "a", "near": 8.0, "margin": 1.0}]
    finding = only_finding({"a": timed()}, headline=headline)
    assert (finding.outcome, finding.measured.mean) == (HELD, 8.0)
    assert finding.reason == "1 of 3 runs of a are censored at their end"
    finding = only_finding({"a": timed(status=DIVERGED)}, headline=headline)  # It did not last to the horizon.
    assert finding.outcome == UNDECIDED and "with seed 2, success did not reach 0.8 within 8" in finding.reason


LOOKS = {"study": {"seeds": "0-15"}, "looks": [4, 8, 16]}


def spread(mean, num_seeds, size=0.1, period=2):
    """Returns values of half a period `size` below the mean, and half a period above."""
    return {seed: mean + (size if seed // (period // 2) % 2 else -size) for seed in range(num_seeds)}


def test_looks_decide_as_early_as_their_levels_allow():
    def at(num_seeds, difference):
        arms = {"a": spread(0.5 + difference, num_seeds), "b": spread(0.5, num_seeds, period=4)}  # Uncorrelated.
        return verdict_of(stored(**arms), **LOOKS)

    assert at(0, 0.0).word == "not run" and at(3, 1.0).describe() == "unfinished (6 of 8 runs)"
    # Four seeds decide nothing about the claim: the next look waits for eight.
    assert at(4, 1.0).describe() == "unfinished (8 of 16 runs)" and at(4, 1.0).seeds == tuple(range(8))
    verdict = at(8, 1.0)
    assert verdict.word == "reproduced" and (verdict.done, verdict.headline[0].seeds) == (16, tuple(range(8)))
    assert at(16, 1.0).seeds == tuple(range(8))  # What was run after a look that decides does not count.
    # s = 0.1069 and an error of 0.05345 of eight seeds. The second look of three has the level
    # 0.05 (ln 1.85914 - ln 1.42957) = 0.01314, and t(1 - 0.00657, 14) = 2.836: half a width of 0.1516, alone of 0.1146.
    assert at(8, 0.150).seeds == tuple(range(16)) and at(8, 0.153).word == "reproduced"
    assert at(16, 0.06).word == "inconclusive"


def test_an_absent_phenomenon_ends_the_looks_at_once():
    study = {"seeds": "0-15", "checks": [{"arm": "b", "above": 0.9}]}
    verdict = verdict_of(stored(b=spread(0.1, 4, 0.01)), study, looks=[4, 8, 16])
    assert verdict.word == "phenomenon absent" and verdict.seeds == (0, 1, 2, 3)


def test_exactly_the_committed_seeds_count():
    many = stored(a={0: 0.5, 1: 0.6, 2: 0.7, 5: 0.0, 100: 0.0}, b={0: 0.1, 1: 0.2, 2: 0.3, 4: 1.0, 101: 1.0})
    verdict = verdict_of(many)
    assert verdict.headline[0].measured.mean == pytest.approx(0.4) and (verdict.done, verdict.needed) == (6, 6)
    few = verdict_of(stored(a=seeds(0.9, 0.9), b=seeds(0.1, 0.1, 0.1)))
    assert few.word == "unfinished" and few.describe() == "unfinished (5 of 6 runs)"
    (finding,) = few.headline
    assert finding.outcome == MISSING and finding.measured is None
    assert finding.reason == "2 of 3 runs of a are there."
    assert verdict_of({}).describe() == "not run"


def test_lower_may_be_better():
    runs = stored(a=seeds(0.1, 0.1, 0.1), b=seeds(0.3, 0.3, 0.3))
    assert only_finding(runs).outcome == NOT_HELD
    assert only_finding(runs, study={"higher_is_better": False}).outcome == HELD


def test_a_metric_to_report_that_no_arm_logs_is_refused():
    both = stored(a=seeds(0.9, 0.9, 0.9), b=seeds(0.1, 0.1, 0.1))
    with pytest.raises(ValueError, match="`metrics` of p: `metric` must be logged .* got 'sucess'; try success"):
        verdict_of(both, metrics=["success", "sucess"])
    with pytest.raises(ValueError, match="`metrics` of study f/s: `metric` must be logged .* got 'lenght'"):
        verdict_of(both, {"metrics": ["lenght"]})
    one = ArmRuns(runs_of(seeds(0.1, 0.1, 0.1), length={"steps": [0], "values": [1.0]}))
    assert verdict_of({**both, "b": one}, {"metrics": ["length"]}).word == "reproduced"
    # Another arm may log it once it has run.
    assert verdict_of(stored(a=seeds(0.9, 0.9, 0.9)), metrics=["sucess"]).word == "unfinished"


def test_divergence_counts_with_its_last_evaluation():
    diverged = ArmRuns(runs_of(seeds(0.1, 0.1, 0.1), status=DIVERGED))
    verdict = verdict_of(stored(a=seeds(0.9, 0.9, 0.9), b=diverged))
    assert verdict.word == "reproduced" and verdict.diverged == {"b": 3}
    never = {"eval/success": {"steps": [4], "values": [math.nan]}}
    nothing = ArmRuns({seed: run._replace(curves=never) for seed, run in diverged.runs.items()})
    verdict = verdict_of(stored(a=seeds(0.9, 0.9, 0.9), b=nothing))
    assert verdict.word == "inconclusive" and "eval/success has no finite value" in verdict.headline[0].reason


def test_a_function_without_randomness_needs_one_seed():
    headline = [{"better": "a", "worse": "b", "margin": 0.1}, {"equal": ["a", "b"], "margin": 0.1}]
    study = {"deterministic": True, "seeds": [0]}
    verdict = verdict_of(stored(a=seeds(0.2), b=seeds(0.05)), study, headline=headline)
    assert [finding.outcome for finding in verdict.headline] == [HELD, NOT_HELD]
    assert verdict.word == "not reproduced"


def test_what_arms_start_from_is_in_their_curves():
    headline = [{"better": "a", "worse": "start", "margin": 0.2}]
    finding = only_finding(stored(a=seeds(0.5, 0.55, 0.6)), headline=headline)
    assert finding.outcome == HELD and finding.measured.mean == pytest.approx(0.3)


def test_an_arm_is_compared_with_itself():
    runs = runs_of(seeds(0.5, 0.55, 0.6))
    for run in runs.values():
        run.curves["eval/success"] = {
            "steps": [0, 4, 8],
            "values": [0.2, 0.9, run.curves["eval/success"]["values"][-1]],
        }
    headline = [{"metric": "max(success)", "than": "success", "arm": "a", "margin": 0.2}]
    finding = only_finding(stored(a=ArmRuns(runs)), headline=headline)
    assert finding.measured.mean == pytest.approx(0.35) and finding.outcome == HELD


def test_runs_of_two_starts_are_not_compared():
    mixed = ArmRuns(runs_of(seeds(0.9, 0.9)) | runs_of({2: 0.9}, start="other"))
    finding = only_finding(stored(a=mixed, b=seeds(0.1, 0.1, 0.1)))
    assert finding.outcome == UNDECIDED and "runs of a must have one start, got 2" in finding.reason
    assert only_finding(stored(a=mixed, b=seeds(0.1, 0.1, 0.1)), study={"start_seed": None}).outcome == HELD


def test_games_won_are_counted():
    def games(*values):
        return {f"gap_{name}": {"steps": [0], "values": [value]} for name, value in zip("uvw", values)}

    runs = {
        "a": ArmRuns(runs_of(seeds(0.0), **games(-1.0, -2.0, -3.0))),
        "b": ArmRuns(runs_of(seeds(0.0), **games(-0.5, -2.005, -4.0))),
        "c": ArmRuns(runs_of(seeds(0.0), **games(-0.7, -1.0, math.nan))),
    }
    study = {"deterministic": True, "seeds": [0], "metric": "gap_*", "higher_is_better": False}
    arms = {"a": [], "c": []}

    def share(against, within):
        headline = [{"wins": "a", "against": against, "within": within, "above": 0.6}]
        return only_finding(runs, study, arms=arms, headline=headline).measured.mean

    assert share(["b"], 0.01) == pytest.approx(2 / 3) and share(["b"], 0.001) == pytest.approx(1 / 3)
    assert share(["b", "c"], 0.01) == 1.0  # A game that is not played by all is none.


def test_only_headline_and_checks_decide():
    runs = stored(a=seeds(0.9, 0.95, 1.0), b=seeds(0.1, 0.15, 0.2))
    secondary = [{"arm": "a", "above": 0.99}, {"arm": "b", "above": 0.9}, {"arm": "b", "below": 0.9}]
    verdict = verdict_of(runs, secondary=secondary)
    assert verdict.word == "reproduced" and verdict.count_secondary() == "1 held, 1 not held, 1 undecided"
    assert verdict_of(runs).count_secondary() == ""
    two = [PAPER["headline"][0], {"arm": "a", "above": 0.95}]
    assert verdict_of(runs, headline=two).word == "inconclusive"
    assert verdict_of(runs, headline=[*two[:1], {"arm": "b", "above": 0.9}]).word == "not reproduced"
    assert verdict_of(runs, {"checks": [{"arm": "b", "below": 0.5}]}).word == "reproduced"
    undecided = {"checks": [{"arm": "b", "below": 0.15}]}
    assert verdict_of(runs, undecided).word == "inconclusive"
    # Whether there was anything to reproduce is open: what is not held says nothing.
    not_held = [{"arm": "b", "above": 0.9}]
    assert verdict_of(runs, headline=not_held).word == "not reproduced"
    assert verdict_of(runs, undecided, headline=not_held).word == "inconclusive"


def test_the_phenomenon_may_be_absent_before_the_treatment_is_run():
    study = {"checks": [{"arm": "b", "above": 0.5}]}
    verdict = verdict_of(stored(b=seeds(0.1, 0.15, 0.2)), study)
    assert verdict.word == "phenomenon absent" and verdict.checks[0].outcome == NOT_HELD
    assert verdict_of(stored(b=seeds(0.9, 0.9, 0.95)), study).word == "unfinished"


def test_mechanism_is_said_where_something_was_found():
    runs = stored(a=seeds(0.9, 0.95, 1.0), b=seeds(0.1, 0.15, 0.2))
    assert verdict_of(runs, mechanism=True).describe() == "reproduced (mechanism)"
    assert verdict_of({}, mechanism=True).describe() == "not run"
