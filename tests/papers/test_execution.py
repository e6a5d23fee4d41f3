"""Reproducing papers: seeds and their groups, shared starts, going on after a stop, and what is refused early."""

import json
import pathlib
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest
import yaml

from jaxagents.papers.arms import build_stages, compose_arm, logged_names
from jaxagents.papers.curves import gather_arms, write_paper_curves
from jaxagents.papers.execution import reproduce
from jaxagents.papers.pages import write_paper_report
from jaxagents.papers.plan import Request
from jaxagents.papers.seeds import train_seeds
from jaxagents.papers.spec import load_paper, make_paper, paper_files
from jaxagents.papers.starts import prepare_start, start_digest
from jaxagents.papers.store import read_results, write_results
from jaxagents.reporting.tables import print_paper
from jaxagents.training.composition import compose, merge_overrides
from jaxagents.training.launch import run

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
IDS = list(paper_files(CONFIGS / "paper"))
STUDY = """
calls = []

def score(seed, offset=0.0, fail=False):
    calls.append((seed, offset))
    if fail and not broken:
        broken.append(seed)
        raise KeyboardInterrupt
    return {"score": seed / 10 + offset, "curve": [0.0, offset]}

broken = []
"""
TINY = (
    *("environment=tmaze", "environment.corridor_length=2", "policy.encoder.hidden_sizes=[8]", "name=tiny"),
    *("learner.num_epochs=1", "learner.num_minibatches=2", "collector.num_envs=4", "collector.num_steps=8"),
    *("training.total_steps=128", "training.log_every_steps=64", "evaluation.every_steps=96"),
    *("evaluation.num_episodes=3", "devices.compilation_cache=null"),
)
PAPER = {
    "id": "p",
    "title": "A title",
    "claim": "A claim.",
    "minutes": 1,
    "metric": "score",
    "metrics": ["curve"],
    "seeds": 3,
    "expect": [{"better": "treatment", "worse": "baseline", "margin": 0.5}],
}


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Returns `(fail=False) -> Paper` of two functions that count their calls; its file is in `configs`."""
    (tmp_path / "study_of_test.py").write_text(STUDY)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("study_of_test", None)

    def make(fail=False, offset=1.0, **changes):
        target = {"_target_": "study_of_test.score"}
        arms = {"treatment": {**target, "offset": offset}, "baseline": {**target, "offset": 0.0, "fail": fail}}
        values = PAPER | {"arms": arms} | changes
        (tmp_path / "configs" / "paper" / "family").mkdir(parents=True, exist_ok=True)
        (tmp_path / "configs" / "paper" / "family" / "p.yaml").write_text(yaml.safe_dump(values))
        return make_paper(values)

    return make


def calls():
    import study_of_test

    return study_of_test.calls


def request(tmp_path, **options):
    return Request(CONFIGS, tmp_path / "results" / "p.json", tmp_path / "starts", **options)


def tiny_paper(**changes):
    arms = {"slow": ["optimizer.learning_rate=1e-4"], "fast": ["optimizer.learning_rate=1e-2"]}
    stages = "stages=[{name: first, learner: {optimizer: {learning_rate: 0.001}}}, {name: second}]"
    values = {"experiment": "ppo_cartpole", "overrides": [*TINY, stages], "arms": arms, "start": "first"}
    expect = [{"better": "fast", "worse": "slow", "margin": 0.0}]
    values |= {"metric": "episode_return", "budget": "env_steps", "metrics": ["mean(train/entropy)"], "expect": expect}
    return make_paper(PAPER | values | changes)


def test_a_study_is_run_judged_drawn_and_told(study, tmp_path, capsys):
    results = reproduce(study(), request(tmp_path))
    assert calls() == [(0, 1.0), (1, 1.0), (2, 1.0), (0, 0.0), (1, 0.0), (2, 0.0)]
    assert results["verdict"] == "reproduced"
    assert results["summary"]["treatment"]["score"]["mean"] == pytest.approx(1.1)
    assert results["findings"][0]["measured"]["mean"] == pytest.approx(1.0)
    assert json.loads((tmp_path / "results" / "p.json").read_text())["verdict"] == "reproduced"
    picture = write_paper_curves(tmp_path / "results" / "p.png", results)
    assert picture.read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    print_paper(results)
    told = capsys.readouterr().out
    for part in ("A claim.", "treatment", "1.1", "0.852 to 1.35", "Verdict: reproduced", "of 1 minutes", "measured 1 "):
        assert part in told
    page = write_paper_report(tmp_path / "results", tmp_path / "configs").read_text()
    for part in ("| [p](#p) | reproduced | score |", "A claim.", "**Reproduced.**", "![p](p.png)", "| treatment | 3 |"):
        assert part in page


def test_what_is_there_is_not_run_again(study, tmp_path):
    reproduce(study(), request(tmp_path, seeds=1, arms=("baseline",)))
    assert calls() == [(0, 0.0)]
    results = reproduce(study(), request(tmp_path, seeds=2))
    assert calls()[1:] == [(0, 1.0), (1, 1.0), (1, 0.0)]
    assert results["verdict"] == "refused" and "at least 3" in results["findings"][0]["reason"]
    assert results["summary"]["treatment"]["score"]["mean"] == pytest.approx(1.05)
    assert reproduce(study(), request(tmp_path, seeds=2))["summary"] == results["summary"] and len(calls()) == 4


def test_a_run_that_was_stopped_goes_on(study, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        reproduce(study(fail=True), request(tmp_path))
    assert calls() == [(0, 1.0), (1, 1.0), (2, 1.0), (0, 0.0)]
    with pytest.raises(ValueError, match="must be finished, got no verdict"):
        write_paper_report(tmp_path / "results", tmp_path)
    assert reproduce(study(fail=True), request(tmp_path))["verdict"] == "reproduced"
    assert calls()[4:] == [(0, 0.0), (1, 0.0), (2, 0.0)]


def test_results_of_earlier_settings_are_shown_as_stale_and_kept(study, tmp_path, capsys):
    path = request(tmp_path).results_file
    before = reproduce(study(), request(tmp_path))["arms"]
    # Changed in its YAML, and not run since: the numbers stand, the verdict does not.
    study(offset=2.0)
    page = write_paper_report(path.parent, tmp_path / "configs").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| [p](#p)"))
    assert "| stale: of earlier settings |" in row and "treatment (stale) 1.1 (0.852 to 1.35)" in row
    assert "baseline 0.1 (-0.148 to 0.348)" in row and "reproduced" not in row
    assert "got earlier ones of treatment; run reproduce.py" in page
    # Run again: new numbers get a verdict of their own, the earlier ones stay beside them.
    results = reproduce(study(offset=2.0), request(tmp_path))
    assert calls()[6:] == [(0, 2.0), (1, 2.0), (2, 2.0)] and results["verdict"] == "reproduced"
    assert results["findings"][0]["measured"]["mean"] == pytest.approx(2.0)
    assert [arm["runs"] for arm in read_results(path)["earlier"]] == [before["treatment"]["runs"]]
    capsys.readouterr()
    print_paper(results)
    told = capsys.readouterr().out
    assert "treatment (stale" in told and "Verdict: reproduced" in told
    # Set back: found again, and not run again.
    again = reproduce(study(), request(tmp_path))
    assert len(calls()) == 9 and again["arms"] == before
    assert again["findings"][0]["measured"]["mean"] == pytest.approx(1.0)


def test_redo_replaces_results_of_the_same_settings(study, tmp_path):
    reproduce(study(), request(tmp_path))
    results = reproduce(study(), request(tmp_path, redo=True, arms=("treatment",)))
    assert calls()[6:] == [(0, 1.0), (1, 1.0), (2, 1.0)] and results["earlier"] == []


def test_a_page_reads_results_by_the_settings_that_they_were_made_with(study, tmp_path):
    reproduce(study(when_full={"arguments": {"offset": 3.0}}), request(tmp_path, full=True))
    page = write_paper_report(tmp_path / "results", tmp_path / "configs").read_text()
    assert "| [p](#p) | not reproduced |" in page


def test_a_metric_that_was_not_reported_is_refused(study, tmp_path):
    reproduce(study(metrics=[]), request(tmp_path))
    with pytest.raises(ValueError, match="got curve, which is new to treatment; try redo=true"):
        reproduce(study(), request(tmp_path))


def test_functions_without_randomness_run_once(study, tmp_path):
    results = reproduce(study(deterministic=True), request(tmp_path))
    assert calls() == [(0, 1.0), (0, 0.0)] and results["verdict"] == "reproduced"


def test_functions_share_arguments(study, tmp_path):
    shared = {"arguments": {"offset": 5.0, "fail": False}, "when_quick": {"arguments": {"offset": 0.25}, "seeds": 1}}
    reproduce(study(**shared), request(tmp_path, seeds=1))
    assert calls() == [(0, 1.0), (0, 0.0)]  # An arm's own come first,
    reproduce(study(**shared), request(tmp_path / "quick", quick=True))
    assert calls()[2:] == [(0, 0.25), (0, 0.25)]  # and those of a variant before them.


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The tiny paper, groups of two seeds, and its results."""
    folder = tmp_path_factory.mktemp("tiny")
    return reproduce(tiny_paper(), request(folder, seeds_at_once=2)), folder


@pytest.fixture(scope="module")
def fast():
    paper = tiny_paper()
    return compose_arm(paper, paper.arms[1], CONFIGS)


@pytest.fixture(scope="module")
def start(trained, fast):
    """Loads what `trained` has left."""
    return prepare_start(fast, "first", 0, trained[1] / "starts", say=pytest.fail)


def test_arms_share_one_start_and_are_evaluated_when_due(trained, start):
    results, folder = trained
    assert {arm["start"] for arm in results["arms"].values()} == {start.digest} == set(results["starts"])
    assert [path.name for path in (folder / "starts").iterdir()] == [start.digest]
    for arm in results["arms"].values():
        assert arm["budget"] == ["env_steps", 128] and list(arm["runs"]) == ["0", "1", "2"]
        for run_of_seed in arm["runs"].values():
            curve = run_of_seed["curves"]["eval/episode_return"]
            # Before, after three updates, and at the end.
            assert curve["steps"] == [0, 96, 128]
            assert curve["values"][0] == pytest.approx(start.evaluation["eval/episode_return"])
            assert run_of_seed["curves"]["train/entropy"]["steps"] == [64, 96, 128]
            assert "train/loss" in run_of_seed["last"]
    curve = gather_arms(results, "train/entropy")["fast"]
    assert curve.values.shape == (3, 3) and not np.allclose(curve.values[:, 0], curve.values[:, 1])


def test_a_seed_is_the_same_in_every_group(trained, fast, start):
    results, _ = trained
    stages = build_stages(fast, 1, start="first")
    for seed in (1, 2):
        (alone,), _ = train_seeds(stages, [seed], start.params, first_stage=1)
        grouped = results["arms"]["fast"]["runs"][str(seed)]["curves"]
        for name in ("train/entropy", "eval/episode_return"):
            skipped = len(grouped[name]["steps"]) - len(alone[name]["steps"])
            np.testing.assert_allclose(grouped[name]["values"][skipped:], alone[name]["values"], rtol=1e-4)


def test_a_seed_is_the_run_of_the_script_with_that_seed(tmp_path):
    paper = tiny_paper(start=None, overrides=list(TINY))
    composed = compose_arm(paper, paper.arms[1], CONFIGS)
    (curves,), params = train_seeds(build_stages(composed, 1, start=None), [3], None)
    switches = [f"logging.{name}=false" for name in ("curves", "report", "tensorboard", "progress")]
    config = compose(CONFIGS, "experiment=ppo_cartpole", *TINY, "optimizer.learning_rate=1e-2", "seed=3", *switches)
    result = run(config, tmp_path / "run")
    final = curves["eval/episode_return"]["values"][-1]
    assert final == pytest.approx(result["evaluation"]["episode_return"], rel=1e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


def test_a_damaged_start_is_trained_again_and_said(trained, fast, start):
    folder = trained[1] / "starts"
    largest = max((folder / start.digest).rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 255
    largest.write_bytes(content)
    said = []
    again = prepare_start(fast, "first", 0, folder, say=said.append)
    assert again.trained and "is not used, and trained again" in said[0] and "Training the start" in said[1]
    jax.tree.map(np.testing.assert_array_equal, again.params, start.params)
    assert again.evaluation == start.evaluation
    assert not prepare_start(fast, "first", 0, folder, say=pytest.fail).trained


def test_results_of_two_starts_are_never_mixed(trained, start, tmp_path):
    results, folder = trained
    changed = json.loads(json.dumps(results))
    changed["starts"][start.digest]["evaluation"]["eval/episode_return"] -= 1.0
    write_results(tmp_path / "results" / "p.json", changed)
    with pytest.raises(ValueError, match=f"must hold the start {start.digest} of the earlier results"):
        reproduce(tiny_paper(), replace(request(tmp_path, seeds=4), starts_folder=folder / "starts"))


def test_starts_differ_with_what_determines_them(fast):
    paper = tiny_paper()

    def digest(*overrides, seed=0):
        return start_digest(compose_arm(paper, paper.arms[1], CONFIGS, overrides=overrides), "first", seed)

    assert digest("logging.curves=false", "training.log_every_steps=32") == start_digest(fast, "first", 0)
    changes = ("learner.discount=0.5", "policy.encoder.hidden_sizes=[9]", "training.total_steps=64")
    digests = {digest(), digest(seed=1), *(digest(change) for change in changes)}
    assert len(digests) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"arms": {"slow": [], "fast": ["training.total_steps=64"]}},
            r"`arms` must have the same budget in env_steps, got 128 env_steps of slow, 64 env_steps of fast",
        ),
        ({"budget": "episodes"}, r"must have the same budget in episodes, got 128 env_steps of slow"),
        ({"metric": "sucess"}, r"`metric` must be logged by the experiment, got 'sucess'; try success; it logs eval/"),
        (
            {"start": "warm_start"},
            r"`start` must be the first stage of the arm slow, got 'warm_start'; .* first",
        ),
    ],
)
def test_refused_before_anything_is_trained(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        reproduce(tiny_paper(**changes), request(tmp_path))
    assert not list(tmp_path.iterdir())


def test_quick_and_full_exclude_each_other(tmp_path):
    with pytest.raises(ValueError, match="`quick` and `full` must not both be true"):
        request(tmp_path, quick=True, full=True)
    with pytest.raises(ValueError, match="`seeds` must be a positive number, got 0"):
        request(tmp_path, seeds=0)


def test_later_overrides_take_the_place_of_earlier_ones():
    merged = merge_overrides(["experiment=a", "loss=plain", "+x.y=1"], ["loss=cispo"], ["x.y=2"])
    assert merged == ["experiment=a", "loss=cispo", "x.y=2"]


def test_names_are_known_without_training(fast):
    names = logged_names(build_stages(fast, 2, start="first"))
    assert {"eval/episode_return", "train/entropy", "rollout/episode_return"} <= set(names)


def test_names_are_known_where_parameters_are_computed_from_the_state():
    paper = load_paper(CONFIGS / "paper", "mansa")
    names = logged_names(build_stages(compose_arm(paper, paper.arms[0], CONFIGS, quick=True), 2, start=None))
    assert {"eval/call_rate", "rollout/call_rate", "train/call_rate"} <= set(names)


@pytest.mark.slow
@pytest.mark.parametrize("paper_id", IDS)
def test_every_paper_runs_in_quick_mode(paper_id, tmp_path):
    paper = load_paper(CONFIGS / "paper", paper_id)
    results = reproduce(paper, replace(request(tmp_path), quick=True))
    assert set(results["arms"]) == {arm.name for arm in paper.arms}
    for arm in results["arms"].values():
        assert arm["runs"] and all(run_of_seed["curves"] for run_of_seed in arm["runs"].values())
    write_paper_curves(tmp_path / "p.png", results)
