"""Arms that train: shared starts, seeds side by side, divergence, and what is refused before anything is trained."""

import dataclasses
import json
import types

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxagents.papers import execution
from jaxagents.papers.arms import budget_of, build_stages, compose_arm, compose_arms, logged_names, start_address
from jaxagents.papers.execution import Session, run_papers
from jaxagents.papers.judge import judge
from jaxagents.papers.plan import Job, choose_groups, require_metrics
from jaxagents.papers.seeds import train_seeds
from jaxagents.papers.starts import prepare_starts, start_path
from jaxagents.papers.study import make_paper, make_study
from jaxagents.reporting.progress import open_progress
from jaxagents.training.composition import compose, merge_overrides
from jaxagents.training.config import config_hash
from jaxagents.training.launch import run
from tests.papers.requests import CONFIGS, PAPER, STUDY, read, request

TINY = (
    *("environment=tmaze", "environment.corridor_length=2", "policy.encoder.hidden_sizes=[8]"),
    *("learner.num_epochs=1", "learner.num_minibatches=2", "collector.num_envs=4", "collector.num_steps=8"),
    *("training.total_steps=128", "training.log_every_steps=64", "evaluation.every_steps=96"),
    *("evaluation.num_episodes=3", "devices.compilation_cache=null"),
)
STAGES = "stages=[{name: first, learner: {optimizer: {learning_rate: 0.001}}}, {name: second}]"


def of_training(study=None, **changes):
    """Makes a paper of two tiny trainings from one start."""
    settings = {"experiment": "ppo_cartpole", "overrides": [*TINY, STAGES], "start": "first", "budget": "env_steps"}
    settings |= {"metric": "episode_return", "metrics": ["mean(train/entropy)"]}
    made = make_study(STUDY | settings | {"arms": {"slow": ["optimizer.learning_rate=1e-4"]}} | (study or {}))
    headline = [{"better": "fast", "worse": "slow", "margin": 0.0}]
    arms = {"fast": ["optimizer.learning_rate=1e-2"]}
    return make_paper(PAPER | {"arms": arms, "headline": headline} | changes, made, {})


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
    return prepare_starts(fast.start, [0], trained[1] / "results", trained[1] / "cache", say=pytest.fail)[0]


@pytest.mark.slow
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


def test_a_start_is_built_once_for_the_seeds_of_all_arms(tmp_path, monkeypatch):
    """Each seed has a start of its own: what was compiled for one trains the others."""
    built, prepared = [], []
    monkeypatch.setattr(
        execution, "build_stages", lambda recipe, number: built.append(number) or [types.SimpleNamespace()]
    )
    monkeypatch.setattr(
        execution,
        "prepare_starts",
        lambda _recipe, seeds, *_folders, stages, **_: prepared.append((seeds, stages)) or dict.fromkeys(seeds),
    )
    session = Session(request(tmp_path), open_progress(1, "papers", enabled=False))
    arms = compose_arms(of_training(start_seed=None), CONFIGS)
    for seed in (0, 1):
        for name in ("fast", "slow"):
            assert execution.starts_of(arms[name].start, [seed], session) == {seed: None}
    assert built == [1] and [seeds for seeds, _ in prepared] == [[0], [1]] and prepared[0][1] is prepared[1][1]


@pytest.mark.exhaustive
def test_what_hashes_are_of_is_kept_beside_the_runs(trained, fast):
    asked = json.loads((trained[1] / "results" / "runs" / fast.address / "asked.json").read_text())
    assert asked["train"]["stages"][0]["learner"]["optimizer"]["learning_rate"] == 0.01
    assert asked["train"]["start"][1] == 0 and asked["evaluation"][0]["num_episodes"] == 3
    place = trained[1] / "results" / "starts" / start_address(fast.start)
    asked = json.loads((place / "asked.json").read_text())
    assert config_hash(asked) == place.name and asked["version"] == 1


@pytest.mark.exhaustive
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


@pytest.mark.slow
def test_a_damaged_start_is_trained_again_and_said(trained, fast, start):
    (path,) = (trained[1] / "results" / "starts").rglob("*.npz")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    lines = []
    folders = (trained[1] / "results", trained[1] / "cache")
    again = prepare_starts(fast.start, [0], *folders, say=lines.append)[0]
    assert "must hold a start, got a damaged file" in lines[0] and "Training the start" in lines[1]
    assert again.digest == start.digest and again.evaluation == start.evaluation
    assert prepare_starts(fast.start, [0], *folders, say=pytest.fail)[0].digest == start.digest


@pytest.mark.slow
def test_missing_starts_are_trained_side_by_side(trained, fast, start, tmp_path):
    folders, heard = (tmp_path / "results", tmp_path / "cache"), []
    prepare_starts(fast.start, [2], *folders, say=heard.append)
    starts = prepare_starts(fast.start, [0, 1, 2], *folders, say=heard.append)
    assert [text.partition(", ")[2] for text in heard] == ["seed 2).", "seeds 0, 1)."]
    assert set(starts) == {0, 1, 2}
    for mine, alone in zip(jax.tree.leaves(starts[0].params), jax.tree.leaves(start.params), strict=True):
        np.testing.assert_allclose(mine, alone, rtol=1e-4, atol=1e-5)
    assert starts[0].evaluation == pytest.approx(start.evaluation, rel=1e-4)
    assert len({starts[seed].digest for seed in starts}) == 3
    again = prepare_starts(fast.start, [0, 1, 2], *folders, say=pytest.fail)
    assert {seed: one.digest for seed, one in again.items()} == {seed: one.digest for seed, one in starts.items()}


@pytest.mark.exhaustive
def test_a_start_of_another_place_is_refused_and_left_alone(trained, fast, tmp_path):
    place = start_path(tmp_path / "results", start_address(fast.start), 0)
    place.parent.mkdir(parents=True)
    with np.load(start_path(trained[1] / "results", start_address(fast.start), 0)) as kept:
        content = dict(kept)
    found = json.loads(str(content["information"]))
    found["address"] = "0123456789abcdef"
    np.savez(place, **content | {"information": np.array(json.dumps(found))})
    before = place.read_bytes()
    failures = run_papers([trained[0]], request(tmp_path, arms=("fast",)))
    assert (
        f"`{place}` must hold the start of its place, got that of 0123456789abcdef; remove it" in (failures["p: fast"])
    )
    assert place.read_bytes() == before and not list((tmp_path / "results").glob("runs/**/*.json"))


@pytest.mark.exhaustive
def test_budgets_are_compared_in_the_unit_of_the_study(fast):
    overrides = [*TINY, STAGES, "training.total_episodes=40"]
    limited = compose_arms(of_training(study={"overrides": overrides}), CONFIGS)["fast"]
    stages = build_stages(limited.recipe, 1)
    assert budget_of(stages, "episodes") == ["episodes", 40]
    assert budget_of(stages, "env_steps") == budget_of(stages) == ["env_steps", 128]
    assert budget_of(build_stages(fast.recipe, 1), "turns") == ["env_steps", 128]


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
def test_addresses_differ_with_what_determines_results(fast):
    def address(*overrides, study=None):
        return compose_arms(of_training(study=study), CONFIGS, overrides=overrides)["fast"].address

    same = address("logging.curves=false", "training.log_every_steps=32", "seed=9", "name=other", "devices=pmap")
    assert same == fast.address
    changes = ("learner.discount=0.5", "policy.encoder.hidden_sizes=[9]", "training.total_steps=64")
    others = {address(change) for change in (*changes, "evaluation.num_episodes=5")}
    others |= {address(study=study) for study in ({"start_seed": 1}, {"version": 2})}
    assert len(others | {fast.address}) == 7


@pytest.mark.parametrize(
    ("backend", "of_study", "asked", "group"),
    [("cpu", 2, None, 2), ("cpu", None, None, 5), ("cpu", 2, 4, 4), ("gpu", 1, None, 5), ("gpu", 1, 3, 3)],
)
def test_an_accelerator_trains_all_seeds_of_an_arm_at_once(monkeypatch, tmp_path, backend, of_study, asked, group):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    paper = of_training(study={"seeds_at_once": of_study})
    calls = types.SimpleNamespace(function={"_target_": "made_up"})
    jobs = [Job(paper, types.SimpleNamespace(function=None), [0, 1, 2, 3, 4]), Job(paper, calls, [0, 1])]
    choose_groups(jobs, request(tmp_path, seeds_at_once=asked))
    assert [job.group for job in jobs] == [group, 1]


@pytest.mark.exhaustive
def test_every_seed_may_have_a_start_of_its_own(tmp_path):
    paper = of_training(study={"start_seed": None})
    assert run_papers([paper], request(tmp_path, arms=("fast",), seeds=(0, 1))) == {}
    runs = read(paper, tmp_path)["fast"].runs
    assert runs[0].start != runs[1].start and len(list(tmp_path.rglob("starts/*/*.npz"))) == 2


def test_an_arm_that_begins_or_ends_otherwise_is_a_run_of_its_own():
    long = ["training.total_steps=256", "stages=[{name: first}]"]
    paper, second = of_training(arms={"fast": long}), of_training(study={"start": "second"})
    alone, later = (compose_arm(one.study, one.arms[0], CONFIGS) for one in (paper, second))
    assert alone.start is None and list(alone.recipe.stages) == ["first"] and alone.recipe.first == 0
    assert later.start is None and list(later.recipe.stages) == ["first", "second"]
    function = {"_target_": "json.dumps"}
    start = compose_arm(paper.study, paper.arms[0]._replace(function=function), CONFIGS).start
    assert start is not None and list(start.stages) == ["first"]
    with pytest.raises(ValueError, match="`start` must be the first stage of the arm fast, got 'second'"):
        compose_arm(second.study, second.arms[0]._replace(function=function), CONFIGS)


@pytest.mark.exhaustive
def test_a_function_gets_a_trained_start(calls, tmp_path):
    arm = {"function": {"_target_": "functions_of_test.play"}}
    headline = [{"metric": "score", "arm": "treatment", "above": 0.5}]
    paper = of_training(arms={"treatment": arm}, headline=headline)
    assert run_papers([paper], request(tmp_path, seeds=(0, 1), arms=("treatment",))) == {}
    assert calls == [(0, "t-maze"), (1, "t-maze")]
    runs = read(paper, tmp_path)["treatment"].runs
    assert runs[1].curves["score"]["values"] == [1] and runs[1].start is not None


@pytest.mark.exhaustive
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
        (
            {"budget": "turns"},
            {"arms": {"fast": ["training.total_turns=64"]}},
            "`training.total_turns` must be in a unit that the collector counts, got one that counts",
        ),
        ({"metric": "sucess"}, {}, "`metric` must be logged by the experiment, got 'sucess'"),
        ({"metrics": ["episode_retrun"]}, {}, "got 'episode_retrun'; try episode_return"),
        ({"start": "warm_start"}, {}, "`start` must be a stage of the arm fast, got 'warm_start'"),
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
    require_metrics(dataclasses.replace(paper, source=None), jobs)  # A confirmation: other arms of its batch log them.


@pytest.mark.exhaustive
def test_names_are_known_without_training(fast):
    names = logged_names(build_stages(fast.recipe, 2))
    assert {"eval/episode_return", "train/entropy", "rollout/episode_return"} <= set(names)


@pytest.mark.exhaustive
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
