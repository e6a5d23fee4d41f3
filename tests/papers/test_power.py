"""Power: how often an expectation is decided, and how many seeds that needs."""

import math

import pytest

from jaxagents.papers.expectations import Expectation
from jaxagents.papers.power import plan_seeds, power_of, seeds_needed
from jaxagents.papers.runs import DONE, ArmRuns, Run
from jaxagents.papers.study import make_paper, make_study

HIGHER = Expectation("success", "higher", ("a", "b"), 0.05)


def test_a_margin_as_large_as_the_effect_has_half_of_the_power():
    # The mean is above its own expectation in half of the cases, however many seeds there are.
    for num_seeds in (10, 40):
        assert power_of(HIGHER, 0.05, 0.02, num_seeds) == pytest.approx(0.5, abs=0.02)


def test_seeds_grow_with_the_spread():
    # By hand at the normal limit, low > 0 is the harder half: n = (1.96 + 1.2816)^2 (sd / effect)^2 = 10.5 and 42.
    needed = [seeds_needed(HIGHER, 0.1, deviation) for deviation in (0.02, 0.1, 0.2)]
    assert needed[0] == 8 and needed[1] in range(11, 14) and needed[2] in range(42, 46)  # 8 are the least.
    assert seeds_needed(HIGHER, 0.1, 10.0) is None
    assert seeds_needed(Expectation("x", "near", ("a",), 0.05, value=0.5), 0.5, 0.036) in range(8, 11)


def test_lower_and_bounds_have_power_of_their_own():
    lower = HIGHER._replace(kind="lower")
    assert power_of(lower, -0.1, 0.02, 8) > 0.95 and power_of(lower, 0.1, 0.02, 8) < 0.01
    assert power_of(Expectation("x", "below", ("a",), 0.1), 0.05, 0.02, 8) > 0.95


def planned(pilots, **entry):
    study = make_study({"id": "f/s", "question": "q", "metric": "success", "seeds": "0-7", "experiment": "x"})
    headline = [{"better": "a", "worse": "b", "margin": 0.05} | entry]
    values = {"id": "p", "family": "f", "title": "t", "claim": "c", "minutes": 1, "study": "s"}
    paper = make_paper(values | {"arms": {"a": [], "b": []}, "headline": headline}, study)

    def runs(values):
        curves = [{"eval/success": {"steps": [8], "values": [value]}} for value in values.values()]
        made = [Run("t", seed, DONE, of, 1.0) for seed, of in zip(values, curves)]
        return ArmRuns({run.seed: run for run in made})

    (plan,) = plan_seeds(paper, {name: runs(pilots.get(name, {})) for name in "ab"})
    return plan


@pytest.mark.exhaustive
def test_a_plan_rests_on_search_seeds_alone():
    assert "no pilot: run seeds=100-103 first" in planned({"a": {0: 0.1, 1: 0.9}}).pilot
    plan = planned({"b": {0: 5.0, 100: 0.1, 101: 0.2}}, effect=0.2)
    assert (
        plan.deviation == pytest.approx(0.1) and "2 search seeds of b, times sqrt(2)" in plan.pilot
    )  # 0.0707 sqrt(2).
    assert plan.effect == 0.2 and plan.seeds >= 8 and 0.0 < plan.power <= 1.0
    plan = planned({"a": {100: 0.3, 101: 0.5, 102: 0.4}, "b": {100: 0.1, 101: 0.2, 102: 0.15}})
    assert plan.deviation == pytest.approx(math.hypot(0.1, 0.05)) and plan.effect == 0.1  # Twice the margin.
    assert plan.pilot == "3 search seeds of a and 3 search seeds of b"
