"""What metrics of papers mean, by hand: windows, budgets of experience, thresholds."""

import math

import pytest

from jaxagents.papers.metrics import curve_of, find_metrics, measure, parse_metric


def curve(values, steps=None):
    return {"steps": list(range(len(values))) if steps is None else steps, "values": values}


def test_metrics_are_reduced_over_training():
    curves = {"eval/success": curve([0.5, None, 1.0]), "reward": curve([3])}
    found = {
        name: measure(name, curves).value for name in ("success", "first(eval/success)", "mean(success)", "reward")
    }
    assert found == {"success": 1.0, "first(eval/success)": 0.5, "mean(success)": 0.75, "reward": 3.0}
    assert measure("std(success)", curves).value == 0.25 and measure("min(success)", curves).value == 0.5
    assert measure("last(success)", curves) == measure("success", curves) == (1.0, "")
    parsed = parse_metric("max(train/entropy)")
    assert (parsed.reduction, parsed.name) == ("max", "train/entropy")


@pytest.mark.parametrize(
    ("metric", "values"),
    [
        # Ten logs, at 10 to 100: each is the mean over the ten steps before it.
        ("early(x)", [1, 2, 3, 4, 5]),
        ("late(x)", [6, 7, 8, 9, 10]),
        ("tail(x)", [10]),
        ("early(x, 0.1)", [1]),
        ("early(x, 0.3)", [1, 2, 3]),
        ("late(x, 0.3)", [8, 9, 10]),
        ("late(x, 1)", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ("early(x, 1)", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ("early(x, 0.01)", [1]),
    ],
)
def test_windows_are_shares_of_the_steps(metric, values):
    curves = {"x": curve(list(range(1, 11)), steps=list(range(10, 101, 10)))}
    assert measure(metric, curves).value == sum(values) / len(values)


def test_windows_follow_steps_and_not_points():
    # A start at 0 counts to the first half, and so does its middle; dense points do not move it.
    uneven = {"x": curve([0.0, 1.0, 2.0, 3.0, 10.0], steps=[0, 10, 20, 50, 100])}
    assert measure("early(x)", uneven).value == 1.5 and measure("late(x)", uneven).value == 10.0
    # A hundred rounds of a function, 0 to 99: the first ten, and the last ten.
    rounds = {"x": curve(list(range(100)))}
    assert measure("early(x, 0.1)", rounds).value == 4.5 and measure("tail(x)", rounds).value == 94.5
    assert measure("late(x)", rounds).value == 74.5 and measure("late(x)", {"x": curve([7.0])}).value == 7.0
    diverged = {"x": curve([1.0, 2.0, None, None])}
    assert measure("early(x)", diverged).value == 1.5
    value, reason = measure("late(x)", diverged)
    assert math.isnan(value) and reason == "x has no finite value there"


COUNTED = {
    "eval/success": curve([0.0, 0.5, 1.0], steps=[0, 20, 40]),
    "rollout/turns": curve([30, 100, 130, 200], steps=[10, 20, 30, 40]),
    "rollout/tokens": curve([300, 400, 500, 600], steps=[10, 20, 30, 40]),
}


def test_values_at_equal_experience():
    at = {turns: measure(f"success@turns={turns}", COUNTED) for turns in (0, 50, 100, 150, 200)}
    assert {turns: found.value for turns, found in at.items()} == {0: 0.0, 50: 0.25, 100: 0.5, 150: 0.75, 200: 1.0}
    assert measure("success@tokens=4e2", COUNTED).value == 0.5
    value, reason = measure("success@turns=201", COUNTED)
    assert math.isnan(value) and reason == "success was last measured at 200 turns"
    late = {**COUNTED, "eval/success": curve([0.5, 1.0], steps=[20, 40])}
    assert measure("success@turns=99", late).reason == "success was first measured at 100 turns"
    # Two evaluations of one moment, as where a target stops a run: the later one holds.
    twice = {**COUNTED, "eval/success": curve([0.0, 0.4, 0.6], steps=[0, 20, 20])}
    assert measure("success@turns=100", twice).value == 0.6


def test_thresholds_that_are_not_reached_are_censored_at_the_end():
    assert measure("until(success, 0.5)", COUNTED).value == 20.0
    assert measure("until(success, 0.51)", COUNTED).value == 40.0
    assert measure("until(success, 0.5, turns)", COUNTED).value == 100.0
    assert measure("until(success, >=0, turns)", COUNTED).value == 0.0
    value, reason = measure("until(success, 1.1, tokens)", COUNTED)
    assert value == 600.0 and reason == "success did not reach 1.1 within 600 tokens"
    falling = {"gap": curve([0.4, 0.2, 0.3], steps=[5, 10, 15])}
    assert measure("until(gap, <=0.2)", falling).value == 10.0
    assert measure("until(gap, <=0.1)", falling).reason == "gap did not reach 0.1 within 15 steps"


def test_scores_are_crafters():
    # Percent 100, 0, 0 and 0: the mean of ln(1 + s) is ln(101) / 4.
    rates = {"eval/collect_wood": [0.0, 1.0], "eval/collect_iron": [0.0, 0.0], "eval/make_table": [0.0, 0.0]}
    rates |= {"eval/drink": [0.5, 0.0], "eval/success": [1.0, 1.0], "rollout/collect_wood": [1.0, 1.0]}
    curves = {name: curve(values, steps=[0, 10]) for name, values in rates.items()}
    score = "score(collect_, make_, drink)"
    assert measure(score, curves).value == pytest.approx(101 ** (1 / 4) - 1)
    assert measure("score(collect_wood)", curves).value == pytest.approx(100.0)
    assert measure("score(eval/collect_wood, collect_)", curves).value == pytest.approx(101**0.5 - 1)
    # Equal rates are their own score.
    equal = {f"eval/{name}": curve([0.01]) for name in ("a_1", "a_2", "a_3")}
    assert measure("score(a_)", equal).value == pytest.approx(1.0)
    name, found = curve_of(score, curves)
    assert (
        name == score and found["steps"] == [0, 10] and found["values"] == pytest.approx([51**0.25 - 1, 101**0.25 - 1])
    )
    assert find_metrics(score, list(curves)) == [
        f"eval/{name}" for name in ("collect_wood", "collect_iron", "make_table", "drink")
    ]


def test_scores_of_what_is_not_there_are_refused():
    curves = {"eval/a": curve([0.5]), "eval/b": curve([0.5, 0.5])}
    with pytest.raises(ValueError, match=r"must be logged by the experiment, got 'score\(a, c_\)'"):
        measure("score(a, c_)", curves)
    with pytest.raises(ValueError, match=r"rates that are logged together, got 'score\(a, b\)' of eval/a and eval/b"):
        measure("score(a, b)", curves)
    with pytest.raises(ValueError, match=r"must have the arguments of score\(x_, y\)"):
        parse_metric("score(a, )")
    missing = {"eval/a": curve([0.5, None]), "eval/b": curve([0.5, 0.5])}
    assert measure("score(a, b)", missing).value == pytest.approx(50.0)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("mean(success", "`metric` must be a name, <name>@<unit>=<number>, or one in last, first"),
        ("success)", "`metric` must be a name"),
        ("success@turns=1@tokens=2", "`metric` must be a name"),
        ("lat(success)", r"got 'lat\(success\)'; try late or last"),
        ("mean(success, 2)", r"`metric` must have the arguments of mean\(x\), got"),
        ("tail(success, 0.5)", r"`metric` must have the arguments of tail\(x\)"),
        ("until(success)", r"`metric` must have the arguments of until\(x, v\) or until\(x, <=v, turns\)"),
        ("until(success, half)", "`metric` must have a number where 'half' stands"),
        ("success@turn=5", "`metric` must be in episodes, turns, tokens, env_steps, got 'success@turn=5'; try turns"),
        ("late(success, 1.5)", r"`metric` must have a share between 0 and 1, got 'late\(success, 1.5\)'"),
    ],
)
def test_what_is_no_metric_is_refused(metric, message):
    with pytest.raises(ValueError, match=message):
        parse_metric(metric)


def test_metrics_are_found_among_what_is_logged():
    names = ["eval/success", "eval/success_level_1", "rollout/turns"]
    assert find_metrics("late(success)", names) == ["eval/success"]
    assert find_metrics("success@turns=5", names) == ["eval/success"]
    with pytest.raises(ValueError, match="got 'sucess'; try success; it logs eval/success, "):
        find_metrics("sucess", names)
    with pytest.raises(ValueError, match="a unit that the experiment counts, got 'success@tokens=5'; it counts turns"):
        find_metrics("success@tokens=5", names)
