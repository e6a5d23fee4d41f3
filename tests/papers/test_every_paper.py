"""Every paper runs from its YAML to a verdict, in quick mode: the arms of its first expectation."""

from dataclasses import replace

import pytest

from jaxagents.papers.execution import read_paper_runs, run_papers
from jaxagents.papers.judge import judge
from jaxagents.papers.library import load_paper, paper_files
from jaxagents.papers.plan import Request
from tests import CONFIGS

PAPERS = CONFIGS.parent / "experiments"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns where all papers keep their results: those of one study share starts and runs."""
    return tmp_path_factory.mktemp("papers")


def _of_arms(expectations, names):
    return tuple(expected for expected in expectations if names.issuperset(expected.arms))


@pytest.mark.exhaustive
@pytest.mark.parametrize("paper_id", paper_files(PAPERS))
def test_it_runs_in_quick_mode(paper_id, folder):
    paper = load_paper(PAPERS, paper_id)
    deciding = {*paper.headline[0].arms}
    arms = tuple(arm for arm in paper.arms if arm.name in deciding)
    # One seed has no interval, as a deterministic study has none.
    claims = {name: _of_arms(getattr(paper, name), deciding) for name in ("headline", "secondary")}
    checks = _of_arms(paper.study.checks, deciding)
    study = replace(paper.study, deterministic=True, checks=checks, metrics=())  # Other arms may log what is reported.
    paper = replace(paper, arms=arms, seeds=paper.seeds[:1], study=study, metrics=(), **claims)
    request = Request(CONFIGS, folder / "results", folder / "cache", quick=True, seeds=paper.seeds)
    assert run_papers([paper], request) == {}
    runs = read_paper_runs(paper, CONFIGS, folder / "results", quick=True)
    assert {name: len(of_arm.runs) for name, of_arm in runs.items()} == {arm.name: 1 for arm in paper.arms}
    verdict = judge(paper, runs)
    findings = (*verdict.headline, *verdict.secondary, *verdict.checks)
    unmeasured = [finding.reason for finding in findings if not finding.seeds]
    # A short run ends before the budget of `x@episodes=N`, or before `until(x, v)`: its reason says so, and no other.
    expected = ("was last measured at", "did not reach")
    assert not [reason for reason in unmeasured if not any(words in reason for words in expected)]
