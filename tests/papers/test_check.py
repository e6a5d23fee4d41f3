"""One stored seed of every arm again, and its difference in units of the spread over seeds."""

import math

import pytest

from jaxagents.papers.check import Check, check_papers
from jaxagents.papers.execution import run_papers
from jaxagents.papers.printing import print_checks
from tests.papers.requests import of_functions, read, request


def test_a_run_that_comes_out_again_is_the_same_in_every_digit(calls, tmp_path):
    paper = of_functions()
    run_papers([paper], request(tmp_path))
    before = {path: path.read_bytes() for path in (tmp_path / "results").rglob("*.json")}
    checks = check_papers([paper, of_functions(id="q")], request(tmp_path))  # What papers share is run once.
    assert calls[6:] == [(0, 1.0), (0, 0.0)]
    assert [(one.arm, one.seed, one.same, one.difference) for one in checks] == [
        ("treatment", 0, True, 0.0),
        ("baseline", 0, True, 0.0),
    ]
    assert {path: path.read_bytes() for path in (tmp_path / "results").rglob("*.json")} == before


def test_other_code_differs_in_units_of_the_spread(calls, tmp_path, monkeypatch, capsys):
    import functions_of_test

    paper = of_functions()
    run_papers([paper], request(tmp_path))

    def other(seed, offset=0.0):
        if offset == 0.0:
            raise RuntimeError("it broke")
        return {"score": seed / 10 + offset + 0.05, "curve": [0.0, offset]}

    monkeypatch.setattr(functions_of_test, "score", other)
    treatment, baseline = check_papers([paper], request(tmp_path, seeds=(1, 2)))
    # The seeds 1 and 2 score 1.1 and 1.2: a deviation of 0.1 / sqrt(2).
    assert (treatment.seed, treatment.stored, treatment.same) == (1, 1.1, False)
    assert treatment.today == pytest.approx(1.15) and treatment.spread == pytest.approx(0.1 / math.sqrt(2))
    assert treatment.difference == pytest.approx(math.sqrt(2) / 2) and baseline.failure == "it broke"
    print_checks([treatment, baseline, Check("p", "new", None, "score")])
    output = capsys.readouterr().out
    assert "+0.71" in output and "it broke" in output and "not run" in output
    assert read(paper, tmp_path)["treatment"].runs[1].curves["score"]["values"] == [1.1]


def test_without_a_spread_any_difference_is_infinite(calls, tmp_path):
    assert Check("p", "a", 0, "x", stored=1.0, today=0.5, spread=0.0).difference == -math.inf
    assert Check("p", "a", 0, "x", stored=1.0, today=1.0, spread=0.0).difference == 0.0
    (one, *_) = check_papers([of_functions()], request(tmp_path))
    assert one.seed is None and calls == []
