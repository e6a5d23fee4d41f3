"""Running papers: what is missing, shared starts and runs, failures, and what is refused early."""

import json
import pathlib
import sys
import types

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxagents.papers.arms import build_stages, compose_arms, logged_names
from jaxagents.papers.execution import read_paper_runs, run_papers
from jaxagents.papers.judge import judge
from jaxagents.papers.leases import take_lease
from jaxagents.papers.plan import Job, Request, require_metrics
from jaxagents.papers.refresh import refresh_papers
from jaxagents.papers.registration import read_registrations
from jaxagents.papers.runs import read_run, write_run
from jaxagents.papers.seeds import train_seeds
from jaxagents.papers.starts import prepare_start
from jaxagents.papers.status import read_status
from jaxagents.papers.study import make_paper, make_study
from jaxagents.training.composition import compose, merge_overrides
from jaxagents.training.launch import run

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
FUNCTIONS = """
calls = []

def score(seed, offset=0.0, fails=False):
    if fails:
        raise RuntimeError("it broke")
    calls.append((seed, offset))
    return {"score": seed / 10 + offset, "curve": [0.0, offset]}

def play(seed, environment, policy, params, judge, bonus=0.0):
    calls.append((seed, environment.name, judge.environment.name))
    import jax
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    return {"score": float(size == sum(leaf.size for leaf in jax.tree.leaves(judge.params))) + bonus}
"""
TINY = (
    *("environment=tmaze", "environment.corridor_length=2", "policy.encoder.hidden_sizes=[8]"),
    *("learner.num_epochs=1", "learner.num_minibatches=2", "collector.num_envs=4", "collector.num_steps=8"),
    *("training.total_steps=128", "training.log_every_steps=64", "evaluation.every_steps=96"),
    *("evaluation.num_episodes=3", "devices.compilation_cache=null"),
)
STAGES = "stages=[{name: first, learner: {optimizer: {learning_rate: 0.001}}}, {name: second}]"
STUDY = {"id": "f/s", "question": "q", "metric": "score", "seeds": "0-2", "metrics": ["curve"]}
PAPER = {"id": "p", "family": "f", "title": "A title", "claim": "A claim.", "minutes": 6, "study": "s"}
HEADLINE = [{"better": "treatment", "worse": "baseline", "margin": 0.5}]


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Returns the list of all calls of the functions in `functions_of_test`."""
    (tmp_path / "functions_of_test.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("functions_of_test", None)
    import functions_of_test

    return functions_of_test.calls


def of_functions(offset=1.0, study=None, **changes):
    """Makes a paper of two functions."""
    target = {"_target_": "functions_of_test.score"}
    baseline = {"arms": {"baseline": {**target, "offset": 0.0}, "unused": {**target, "offset": -1.0}}}
    made = make_study(STUDY | baseline | (study or {}))
    values = PAPER | {"arms": {"treatment": {**target, "offset": offset}}, "headline": HEADLINE} | changes
    return make_paper(values, made, {})


def of_training(study=None, **changes):
    """Makes a paper of two tiny trainings from one start."""
    settings = {"experiment": "ppo_cartpole", "overrides": [*TINY, STAGES], "start": "first", "budget": "env_steps"}
    settings |= {"metric": "episode_return", "metrics": ["mean(train/entropy)"]}
    made = make_study(STUDY | settings | {"arms": {"slow": ["optimizer.learning_rate=1e-4"]}} | (study or {}))
    headline = [{"better": "fast", "worse": "slow", "margin": 0.0}]
    arms = {"fast": ["optimizer.learning_rate=1e-2"]}
    return make_paper(PAPER | {"arms": arms, "headline": headline} | changes, made, {})


def request(tmp_path, **options):
    return Request(CONFIGS, tmp_path / "results", tmp_path / "cache", **options)


def read(paper, tmp_path, **options):
    return read_paper_runs(paper, CONFIGS, tmp_path / "results", **options)


def test_what_is_missing_is_run_and_judged(calls, tmp_path):
    paper = of_functions()
    assert run_papers([paper], request(tmp_path)) == {}
    assert calls == [(0, 1.0), (1, 1.0), (2, 1.0), (0, 0.0), (1, 0.0), (2, 0.0)]
    runs = read(paper, tmp_path)
    assert judge(paper, runs).describe() == "reproduced"
    assert runs["treatment"].runs[2].curves["curve"] == {"steps": [0, 1], "values": [0, 1]}
    assert runs["treatment"].runs[2].versions["jax"] and runs["treatment"].runs[2].start is None
    assert run_papers([paper], request(tmp_path)) == {} and len(calls) == 6


def test_papers_that_name_the_same_arm_share_its_runs(calls, tmp_path):
    first, second = of_functions(), of_functions(offset=2.0, id="q")
    assert run_papers([first, second], request(tmp_path)) == {}
    assert sorted(calls) == [(seed, offset) for seed in range(3) for offset in (0.0, 1.0, 2.0)]
    assert judge(second, read(second, tmp_path)).describe() == "reproduced"


def test_a_damaged_run_is_set_aside_and_run_again(calls, tmp_path, capsys):
    paper = of_functions()
    run_papers([paper], request(tmp_path))
    path = next((tmp_path / "results" / "runs").rglob("1.json"))
    path.write_text("{")
    capsys.readouterr()
    assert run_papers([paper], request(tmp_path)) == {} and len(calls) == 7
    assert f"`{path}` is damaged: it is {path}.damaged now, and run again." in capsys.readouterr().err.replace("\n", "")
    assert read_run(path).seed == 1 and path.with_name("1.json.damaged").read_text() == "{"


def test_other_code_makes_runs_stale(calls, tmp_path):
    paper = of_functions()
    run_papers([paper], request(tmp_path))
    make_other_code(tmp_path)
    runs = read(paper, tmp_path)
    assert runs["treatment"].runs == {} and list(runs["treatment"].stale) == [0, 1, 2]
    verdict = judge(paper, runs)
    assert verdict.word == "stale" and verdict.stale == {"treatment": 3, "baseline": 3}
    run_papers([paper], request(tmp_path))
    assert len(calls) == 12 and judge(paper, read(paper, tmp_path)).word == "reproduced"
    assert len(list((tmp_path / "results" / "runs").rglob("other/*.json"))) == 6


def make_other_code(tmp_path, change=None):
    """Gives all stored runs the code "other", and perhaps changes what a seed logged."""
    for folder in list((tmp_path / "results" / "runs").glob("*/*/*/")):
        folder.rename(folder.with_name("other"))
    for path in (tmp_path / "results" / "runs").rglob("0.json") if change else ():
        run = read_run(path)
        path.unlink()
        write_run(tmp_path / "results", run._replace(curves=change(run.curves)))


def test_refreshing_runs_one_seed_of_every_arm_and_lets_the_others_count(calls, tmp_path, capsys):
    paper = of_functions()
    run_papers([paper], request(tmp_path))
    make_other_code(tmp_path)
    capsys.readouterr()
    assert refresh_papers([paper], request(tmp_path, refresh=True)) == {}
    assert calls[6:] == [(0, 1.0), (0, 0.0)]
    said = capsys.readouterr().err.replace("\n", " ")
    assert "p: treatment: seed 0 logged the same as with the code other: its 3 runs count." in said
    verdict = judge(paper, read(paper, tmp_path))
    assert verdict.word == "reproduced" and verdict.carried == {"treatment": 2, "baseline": 2} and verdict.stale == {}
    assert refresh_papers([paper], request(tmp_path, refresh=True)) == {} and len(calls) == 8
    assert run_papers([paper], request(tmp_path)) == {} and len(calls) == 8


def test_refreshing_leaves_runs_stale_that_one_seed_contradicts(calls, tmp_path, capsys):
    paper = of_functions()
    run_papers([paper], request(tmp_path))
    make_other_code(tmp_path, lambda curves: curves | {"score": {"steps": [1], "values": [0.7]}})
    capsys.readouterr()
    assert refresh_papers([paper], request(tmp_path, refresh=True)) == {} and len(calls) == 8
    said = capsys.readouterr().err.replace("\n", " ")
    assert "p: baseline: seed 0 differs from that of the code other in score: its runs stay stale." in said
    verdict = judge(paper, read(paper, tmp_path))
    assert verdict.word == "stale" and verdict.carried == {} and verdict.stale == {"treatment": 2, "baseline": 2}


def test_refreshing_runs_nothing_where_nothing_was_run(calls, tmp_path):
    assert refresh_papers([of_functions()], request(tmp_path, refresh=True)) == {} and calls == []


def test_a_failure_stops_nothing_else(calls, tmp_path):
    broken = {"_target_": "functions_of_test.score", "fails": True}
    paper, other = of_functions(arms={"treatment": broken}, id="broken"), of_functions()
    failures = run_papers([paper, other], request(tmp_path))
    (name, said), *more = failures.items()
    assert name == "broken: treatment" and "it broke" in said and not more
    assert len(calls) == 6 and judge(other, read(other, tmp_path)).word == "reproduced"
    verdict = judge(paper, read(paper, tmp_path))
    assert verdict.describe() == "unfinished (3 of 6 runs)"


def test_search_seeds_run_the_baselines_and_count_in_no_verdict(calls, tmp_path):
    paper = of_functions()
    run_papers([paper], request(tmp_path, seeds=(100, 101)))
    assert sorted(calls) == [(100, -1.0), (100, 0.0), (101, -1.0), (101, 0.0)]
    assert read_registrations(tmp_path / "results") == {}
    run_papers([paper], request(tmp_path, seeds=(100,), arms=("treatment",)))
    assert calls[-1] == (100, 1.0)
    verdict = judge(paper, read(paper, tmp_path))
    assert verdict.word == "not run" and (verdict.done, verdict.needed) == (0, 6)


def test_verdict_seeds_are_registered_first_and_changes_are_refused(calls, tmp_path):
    def paper(margin):
        headline = [{"better": "treatment", "worse": "baseline", "margin": margin}]
        made = of_functions(headline=headline)
        return made.__class__(**{**vars(made), "source": {"paper": {"headline": headline}, "study": {}}})

    run_papers([paper(0.5)], request(tmp_path))
    (registration,) = read_registrations(tmp_path / "results")["p"]
    assert registration.content["paper"]["headline"][0]["margin"] == 0.5 and registration.content["seeds"] == [0, 1, 2]
    (tmp_path / "results" / "runs").rename(tmp_path / "elsewhere")
    failures = run_papers([paper(0.1)], request(tmp_path))
    assert "`p` must be what was registered on" in failures["p"] and "got changes of paper.headline" in failures["p"]
    assert len(calls) == 6
    assert run_papers([paper(0.1)], request(tmp_path, register=True)) == {} and len(calls) == 12
    assert len(read_registrations(tmp_path / "results")["p"]) == 2


@pytest.mark.slow
def test_arms_of_others_are_left_to_them_and_taken_over(calls, tmp_path):
    import threading

    paper = of_functions()
    address = compose_arms(paper, CONFIGS)["treatment"].address
    lease = take_lease(tmp_path / "results", f"{'-'.join(address)}-1")
    timer = threading.Timer(3.0, lease.release)  # As the kernel does when its holder is killed.
    timer.start()
    status = read_status([paper], request(tmp_path))[0]
    assert (status.running, status.done, status.needed, status.minutes_left) == (1, 0, 6, 6.0)
    assert run_papers([paper], request(tmp_path)) == {}
    timer.join()
    assert sorted(calls[:5]) == [(0, 0.0), (0, 1.0), (1, 0.0), (2, 0.0), (2, 1.0)] and calls[5:] == [(1, 1.0)]
    status = read_status([paper], request(tmp_path))[0]
    assert (status.verdict, status.done, status.running, status.minutes_left) == ("reproduced", 6, 0, 0.0)


def test_functions_without_randomness_run_once(calls, tmp_path):
    paper = of_functions(study={"deterministic": True, "seeds": [0]})
    run_papers([paper], request(tmp_path))
    assert calls == [(0, 1.0), (0, 0.0)] and judge(paper, read(paper, tmp_path)).word == "reproduced"


def test_functions_share_arguments(calls, tmp_path):
    study = {"arguments": {"offset": 5.0, "fails": False}, "when_quick": {"arguments": {"offset": 0.25}}}
    run_papers([of_functions(study=study)], request(tmp_path))
    assert set(calls) == {(seed, offset) for seed in range(3) for offset in (0.0, 1.0)}  # An arm's own come first,
    run_papers([of_functions(study=study)], request(tmp_path / "quick", quick=True))
    assert calls[6:] == [(0, 0.25), (1, 0.25)]  # and those of a variant before them: both arms are one.


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The tiny paper, groups of two seeds, and its folder."""
    folder = tmp_path_factory.mktemp("tiny")
    paper = of_training()
    assert run_papers([paper], request(folder, seeds_at_once=2)) == {}
    return paper, folder


@pytest.fixture(scope="module")
def fast(trained):
    return compose_arms(trained[0], CONFIGS)["fast"]


@pytest.fixture(scope="module")
def start(trained, fast):
    """Loads what `trained` has left."""
    return prepare_start(fast.start, 0, trained[1] / "results", trained[1] / "cache", say=pytest.fail)


def test_arms_share_one_start_and_are_evaluated_when_due(trained, start):
    paper, folder = trained
    runs = read(paper, folder)
    assert len(list((folder / "results" / "starts").rglob("*.npz"))) == 1
    for of_arm in runs.values():
        assert list(of_arm.runs) == [0, 1, 2]
        for one in of_arm.runs.values():
            assert one.start == start.digest and one.budget == ["env_steps", 128]
            curve = one.curves["eval/episode_return"]
            assert curve["steps"] == [0, 96, 128]  # Before, after three updates, and at the end.
            assert curve["values"][0] == pytest.approx(start.evaluation["eval/episode_return"], rel=1e-4)
            assert one.curves["train/entropy"]["steps"] == [64, 96, 128] and "train/loss" in one.curves
    assert judge(paper, runs).done == 6


def test_what_hashes_are_of_is_kept_beside_the_runs(trained, fast):
    folder = trained[1] / "results" / "runs" / fast.address.train
    told = json.loads((folder / "train.json").read_text())
    assert told["stages"][0]["learner"]["optimizer"]["learning_rate"] == 0.01 and told["start"][1] == 0
    assert json.loads((folder / fast.address.evaluation / "evaluation.json").read_text())[0]["num_episodes"] == 3


@pytest.mark.slow
def test_a_seed_is_the_same_in_every_group(trained, fast, start):
    stages = build_stages(fast.recipe, 1)
    for seed in (1, 2):
        alone = train_seeds(stages, [seed], start.params, first_stage=1).curves[0]
        grouped = read(*trained)["fast"].runs[seed].curves
        for name in ("train/entropy", "eval/episode_return"):
            skipped = len(grouped[name]["steps"]) - len(alone[name]["steps"])
            np.testing.assert_allclose(grouped[name]["values"][skipped:], alone[name]["values"], rtol=1e-4)


@pytest.mark.slow
def test_a_seed_is_the_run_of_the_script_with_that_seed(tmp_path):
    paper = of_training(study={"start": None, "overrides": list(TINY)})
    composed = compose_arms(paper, CONFIGS)["fast"]
    curves = train_seeds(build_stages(composed.recipe, 1), [3], None).curves[0]
    switches = [f"logging.{name}=false" for name in ("curves", "report", "tensorboard", "progress")]
    config = compose(CONFIGS, "experiment=ppo_cartpole", *TINY, "optimizer.learning_rate=1e-2", "seed=3", *switches)
    result = run(config, tmp_path / "run")
    final = curves["eval/episode_return"]["values"][-1]
    assert final == pytest.approx(result["evaluation"]["episode_return"], rel=1e-5)


def test_a_damaged_start_is_trained_again_and_said(trained, fast, start):
    (path,) = (trained[1] / "results" / "starts").rglob("*.npz")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    said = []
    folders = (trained[1] / "results", trained[1] / "cache")
    again = prepare_start(fast.start, 0, *folders, say=said.append)
    assert "must hold a start, got a damaged file" in said[0] and "Training the start" in said[1]
    assert again.digest == start.digest and again.evaluation == start.evaluation
    assert prepare_start(fast.start, 0, *folders, say=pytest.fail).digest == start.digest


def test_a_start_of_other_code_is_refused(trained, fast):
    (path,) = (trained[1] / "results" / "starts").rglob("*.npz")
    elsewhere = trained[1] / "other"
    copy = elsewhere / path.relative_to(trained[1] / "results")
    wrong = copy.parent.with_name("0123456789abcdef") / copy.name
    wrong.parent.mkdir(parents=True)
    wrong.write_bytes(path.read_bytes())
    from jaxagents.papers import starts

    address = starts.start_address(fast.start)._replace(code="0123456789abcdef")
    stage = build_stages(fast.start, 1)[-1]
    with pytest.raises(ValueError, match=f"got one of the code {path.parent.name}; remove it"):
        starts._load(wrong, stage, address, pytest.fail)


@pytest.mark.slow
def test_another_machine_adds_seeds_from_the_kept_start_only(trained, start, tmp_path):
    paper, folder = trained
    more = of_training(study={"seeds": "0-3"})
    (kept,) = (folder / "results" / "starts").rglob("*.npz")
    copy = tmp_path / "results" / kept.relative_to(folder / "results")
    copy.parent.mkdir(parents=True)
    copy.write_bytes(kept.read_bytes())
    assert run_papers([more], request(tmp_path, seeds=(3,), arms=("fast",))) == {}
    (added,) = read(more, tmp_path)["fast"].runs.values()
    assert added.seed == 3 and added.start == start.digest
    # Runs of a start that this machine does not have, and cannot train to the same bits, are never mixed with others.
    path = next((tmp_path / "results" / "runs").rglob("3.json"))
    from jaxagents.papers.runs import write_run

    path.unlink()
    write_run(tmp_path / "results", added._replace(start="another"))
    failures = run_papers([more], request(tmp_path, seeds=(2, 3), arms=("fast",)))
    assert "`start` must be another, that of the stored runs of fast" in failures["p: fast"]


@pytest.mark.slow
def test_addresses_differ_with_what_determines_results(fast):
    def address(*overrides, study=None):
        return compose_arms(of_training(study=study), CONFIGS, overrides=overrides)["fast"].address

    same = address("logging.curves=false", "training.log_every_steps=32", "seed=9", "name=other", "devices=pmap")
    assert same[:2] == fast.address[:2]
    assert address("evaluation.num_episodes=5").train == fast.address.train
    assert address("evaluation.num_episodes=5").evaluation != fast.address.evaluation
    changes = ("learner.discount=0.5", "policy.encoder.hidden_sizes=[9]", "training.total_steps=64")
    others = {address(change).train for change in changes} | {address(study={"start_seed": 1}).train}
    assert len(others | {fast.address.train}) == 5


@pytest.mark.slow
def test_every_seed_may_have_a_start_of_its_own(tmp_path):
    paper = of_training(study={"start_seed": None})
    assert run_papers([paper], request(tmp_path, arms=("fast",), seeds=(0, 1))) == {}
    runs = read(paper, tmp_path)["fast"].runs
    assert runs[0].start != runs[1].start and len(list((tmp_path / "results" / "starts").rglob("*.npz"))) == 2


@pytest.mark.slow
def test_a_function_gets_a_trained_start_and_its_companions(calls, tmp_path):
    arm = {"function": {"_target_": "functions_of_test.play"}}
    arm["companions"] = {"judge": {"experiment": "ppo_cartpole", "overrides": [*TINY, STAGES], "stage": "first"}}
    headline = [{"metric": "score", "arm": "treatment", "above": 0.5}]
    paper = of_training(arms={"treatment": arm}, headline=headline)
    assert run_papers([paper], request(tmp_path, seeds=(0, 1), arms=("treatment",))) == {}
    assert [call[0] for call in calls] == [0, 1] and calls[0][1] == calls[0][2]
    runs = read(paper, tmp_path)["treatment"].runs
    assert runs[1].curves["score"]["values"] == [1] and runs[1].start is not None


@pytest.mark.slow
def test_divergence_is_a_result(tmp_path):
    for at_once in (1, 2):
        paper = of_training(arms={"fast": ["optimizer.learning_rate=1e30", "optimizer.max_gradient_norm=null"]})
        folder = tmp_path / str(at_once)
        assert run_papers([paper], request(folder, arms=("fast",), seeds_at_once=at_once)) == {}
        runs = read(paper, folder)["fast"].runs
        assert [one.status for one in runs.values()] == ["diverged"] * 3
        # Its last evaluation is what counts: at the latest that of the start.
        assert all(np.isfinite(one.curves["eval/episode_return"]["values"][-1]) for one in runs.values())
        assert judge(paper, read(paper, folder)).diverged == {"fast": 3}


@pytest.mark.parametrize(
    ("study", "changes", "message"),
    [
        (
            {},
            {"arms": {"fast": ["training.total_steps=64"]}},
            "`arms` must have the same budget in env_steps, got 64 env_steps of fast, 128 env_steps of slow",
        ),
        ({"budget": "episodes"}, {}, "must have the same budget in episodes, got 128 env_steps of fast"),
        ({"metric": "sucess"}, {}, "`metric` must be logged by the experiment, got 'sucess'"),
        ({"metrics": ["episode_retrun"]}, {}, "got 'episode_retrun'; try episode_return"),
        ({"start": "warm_start"}, {}, "`start` must be the first stage of the arm fast, got 'warm_start'"),
    ],
)
def test_refused_before_anything_is_trained(study, changes, message, tmp_path):
    failures = run_papers([of_training(study=study, **changes)], request(tmp_path))
    assert message in failures["p"]
    assert not list(tmp_path.glob("results/*/**/*.*"))


def test_later_overrides_take_the_place_of_earlier_ones():
    merged = merge_overrides(["experiment=a", "loss=plain", "+x.y=1"], ["loss=cispo"], ["x.y=2"])
    assert merged == ["experiment=a", "loss=cispo", "x.y=2"]


def test_metrics_of_arms_that_are_not_run_now_are_no_mistake():
    # Search seeds run the baseline alone, which logs nothing of what the treatment does.
    paper = of_training(metrics=["of_the_treatment"])
    jobs = [
        Job(paper, types.SimpleNamespace(name=name), [100], 1, stages=[None], logged=["eval/episode_return"])
        for name in ("fast", "slow")
    ]
    require_metrics(paper, jobs[1:])
    with pytest.raises(ValueError, match="`metric` must be logged by the experiment, got 'of_the_treatment'"):
        require_metrics(paper, jobs)


def test_names_are_known_without_training(fast):
    names = logged_names(build_stages(fast.recipe, 2))
    assert {"eval/episode_return", "train/entropy", "rollout/episode_return"} <= set(names)


@pytest.mark.slow
def test_arms_that_differ_by_numbers_compile_once(trained, start, tmp_path):
    """The second arm finds the program of the first in the cache of compiled programs."""
    settings = {"jax_compilation_cache_dir": str(tmp_path), "jax_persistent_cache_min_compile_time_secs": 0.0}
    before = {name: getattr(jax.config, name) for name in settings}
    programs = []
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        for arm in compose_arms(trained[0], CONFIGS).values():
            train_seeds(build_stages(arm.recipe, 1), [0], start.params, first_stage=1)
            programs.append({path.name for path in tmp_path.iterdir() if path.name.startswith("jit_chunk")})
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
    assert programs[0] and programs[1] == programs[0]
