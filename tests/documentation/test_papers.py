"""The guide to papers says what the code does: its tables are read and tried, its own study and paper are run."""

import dataclasses
import re

import pytest
import yaml

from jaxagents.papers.arms import compose_arms, start_address
from jaxagents.papers.execution import read_paper_runs, run_papers
from jaxagents.papers.expectations import Expectation, make_expectations
from jaxagents.papers.judge import ABSENT, UNFINISHED, decide, judge
from jaxagents.papers.library import load_paper
from jaxagents.papers.metrics import measure, parse_metric
from jaxagents.papers.plan import Request
from jaxagents.papers.runs import DONE, ArmRuns, Run
from jaxagents.papers.study import Paper, Study, make_paper, make_study
from jaxagents.reporting.statistics import Interval
from tests import ROOT

GUIDE = (ROOT / "experiments/docs/papers.md").read_text(encoding="utf-8")
STUDY = {"id": "f/s", "question": "q", "metric": "success", "seeds": "0-2"}
PAPER = {"id": "p", "family": "f", "title": "t", "claim": "c", "minutes": 1, "study": "s"}


def table(first_cell):
    """Returns the rows of the table whose head begins with this cell, a dictionary by column each."""
    lines = GUIDE[GUIDE.index(f"\n| {first_cell} |") + 1 :].partition("\n\n")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert rows and all(len(row) == len(head) for row in rows)
    return [dict(zip(head, row)) for row in rows]


def files_of_guide(folder):
    """Writes every block of code that begins with the path of a file into a folder."""
    for path, text in re.findall(r"^```\w+\n# (\S+\.(?:py|yaml))\n(.*?)^```", GUIDE, re.M | re.S):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder / "experiments"


def runs_of(outcome, against):
    """Returns runs of three seeds that make "higher than `against` by 0.1" come out in this way."""
    values = {
        "held": [0.5, 0.5, 0.5],
        "not held": [0.01, 0.01, 0.01],
        "undecided": [0.1, 0.5, -0.1],
        "not run": [0.5, 0.5],
    }[outcome]
    curves = [{"success": {"steps": [0], "values": [against + value]}} for value in values]
    return ArmRuns({seed: Run("t", seed, DONE, of, 1.0) for seed, of in enumerate(curves)})


STATES = {"all held": "held", "one undecided": "undecided", "one not run": "not run", "one not held": "not held"}


@pytest.mark.parametrize("headline", ["held", "not held", "undecided", "not run"])
@pytest.mark.parametrize("row", table("checks"), ids=lambda row: row["checks"])
def test_the_table_of_verdicts_is_that_of_the_judge(row, headline):
    function = {"_target_": "math.prod"}
    checks = [{"better": "good", "worse": "base", "margin": 0.1}]
    study = make_study(STUDY | {"arms": {"base": function, "good": function}, "checks": checks})
    arms = {"arms": {"own": function}, "headline": [{"better": "own", "worse": "base", "margin": 0.1}]}
    paper = make_paper(PAPER | arms, study)
    check = STATES[row["checks"].partition(",")[0]]
    verdict = judge(paper, {"base": runs_of("held", -0.5), "good": runs_of(check, 0.0), "own": runs_of(headline, 0.0)})
    assert (verdict.checks[0].outcome, verdict.headline[0].outcome) == (check, headline)
    assert verdict.word == row[f"headline {headline}"]


def test_the_table_of_verdicts_has_every_pair():
    rows = {row["checks"].partition(",")[0]: set(row.values()) - {row["checks"]} for row in table("checks")}
    assert list(rows) == list(STATES) and rows["one not held"] == {ABSENT} and rows["one not run"] == {UNFINISHED}


@pytest.mark.parametrize("row", table("in the file"), ids=lambda row: row["in the file"])
def test_every_form_of_an_expectation_is_printed_as_the_guide_says(row):
    node = yaml.safe_load(row["in the file"].strip("`"))
    (expected,) = make_expectations("x", [node], "success", True, "abc")
    assert expected.describe() == row["as it is printed"]
    if "better" in node:
        (expected,) = make_expectations("x", [node], "success", False, "abc")
        assert expected.kind == "lower"


def test_no_form_of_an_expectation_is_left_out():
    with pytest.raises(ValueError, match="must be {better") as refused:
        make_expectations("x", ["?"], "success", True, "abc")
    result = {tuple(re.findall(r"(\w+):", form)) for form in re.findall(r"{[^}]*}", str(refused.value))}
    shown = {tuple(re.findall(r"(\w+):", row["in the file"])) for row in table("in the file")}
    assert {frozenset(form) for form in result} == {frozenset({*form} - {"metric"}) for form in shown}


@pytest.mark.parametrize("row", table("mean"), ids=lambda row: row["interval"])
def test_the_examples_of_outcomes_are_those_of_the_rule(row):
    low, high = map(float, row["interval"].split(" to "))
    higher = Expectation("success", "higher", ("a", "b"), 0.1)
    assert decide(higher, Interval(float(row["mean"]), low, high)) == row["outcome"]


CURVES = {
    "x": {"steps": [10, 20, 30, 40], "values": [1.0, 2.0, 4.0, 3.0]},
    "rollout/turns": {"steps": [10, 20, 30, 40], "values": [100, 200, 300, 400]},
}


@pytest.mark.parametrize("row", table("metric"), ids=lambda row: row["metric"])
def test_metrics_are_the_numbers_of_the_guide(row):
    for metric in re.findall(r"`([^`]+)`", row["metric"]):
        assert measure(metric, CURVES).value == pytest.approx(float(row["here"]), abs=5e-4)


def test_no_function_of_metrics_is_left_out():
    with pytest.raises(ValueError, match="one in ") as refused:
        parse_metric("nothing(x)")
    known = set(re.search(r"one in ([\w, ]+), got", str(refused.value))[1].split(", "))
    shown = [metric for row in table("metric") for metric in re.findall(r"`([^`]+)`", row["metric"])]
    assert {parse_metric(metric).reduction for metric in shown} == known | {"at"}


@pytest.mark.parametrize(
    ("name", "record", "others"),
    [
        ("key of a study", Study, {"id"}),
        ("key of a paper", Paper, {"id", "family", "source", "files", "start_seed"}),  # The last one is its study's.
    ],
)
def test_every_key_of_a_file_is_in_its_table(name, record, others):
    named = [key for row in table(name) for key in re.findall(r"`(\w+)`", row[name])]
    assert sorted(named) == sorted({field.name for field in dataclasses.fields(record)} ^ others)


def test_the_paper_about_functions_is_reproduced(tmp_path, monkeypatch):
    configs = files_of_guide(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    paper = load_paper(configs, "drift")
    assert run_papers([paper], Request(configs, tmp_path / "results", tmp_path / "cache")) == {}
    verdict = judge(paper, read_paper_runs(paper, configs, tmp_path / "results"))
    assert verdict.word == "reproduced" and verdict.done == 20
    assert verdict.headline[0].measured.mean == pytest.approx(80)


def test_functions_of_a_trained_policy_are_called_with_what_the_guide_says(tmp_path, monkeypatch):
    paper = load_paper(files_of_guide(tmp_path), "five_votes")
    five, weaker, one = paper.arms
    assert five.function == {"_target_": "my_votes.vote", "num_votes": 5} and five.overrides == one.overrides
    assert weaker.overrides == (*five.overrides, "warm_start.training.total_steps=2560")
    monkeypatch.syspath_prepend(tmp_path)
    composed = compose_arms(paper, ROOT / "configs")
    starts = {name: start_address(arm.start) for name, arm in composed.items()}
    assert starts["five"] == starts["one"] != starts["five_weaker"]
    assert all(list(arm.start.stages) == ["warm_start"] and arm.recipe is None for arm in composed.values())
    with pytest.raises(ValueError, match="its study a `start` that it is called with"):
        make_study(STUDY | {"experiment": "x", "arms": {"one": {"function": dict(one.function)}}})


def test_other_studies_and_papers_of_the_guide_hold(tmp_path):
    configs = files_of_guide(tmp_path)
    (tmp_path / "experiments/studies/lm_sft").mkdir()
    shared = (ROOT / "experiments/studies/lm_sft/self_training.yaml").read_text()
    (tmp_path / "experiments/studies/lm_sft/self_training.yaml").write_text(shared)
    paper = load_paper(configs, "two_best")
    assert [arm.name for arm in paper.arms] == ["two_best", "grpo", "rejection", "good_turns"]
    assert compose_arms(paper, ROOT / "configs")["two_best"].start is not None
    values = yaml.safe_load((configs / "studies/own/my_question.yaml").read_text())
    assert make_study(values | {"id": "own/my_question"}).start_seed == 0
