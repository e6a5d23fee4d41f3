"""The host's loop: logs, evaluations, budgets, checkpoints, and exact resume."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from jaxagents.reporting.loggers import read_metrics
from jaxagents.training import loop
from jaxagents.training.checkpoints import manager
from jaxagents.training.composition import compose as compose_run
from jaxagents.training.interrupts import Preempted, watch_signals
from jaxagents.training.launch import run
from tests import ROOT

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, compose):
    run_dir = tmp_path_factory.mktemp("runs") / "finished"
    result = run(compose(), run_dir)
    return run_dir, result


def test_a_run_logs_evaluates_and_saves_when_due(finished, rows_without_time):
    run_dir, result = finished
    rows = rows_without_time(run_dir)
    train = [row["update"] for row in rows if "train/loss" in row]
    evaluated = [row["update"] for row in rows if "eval/episode_return" in row]
    # Chunks end at every multiple of 2 (log), 3 (checkpoint) and 4 (evaluation) updates, and at the end.
    assert train == [2, 3, 4, 6, 8, 9, 10]
    assert evaluated == [4, 8, 10]
    assert [row["step"] for row in rows if "train/loss" in row] == [32 * update for update in train]
    assert sorted(int(path.name) for path in (run_dir / "checkpoints/last").iterdir() if path.is_dir()) == [6, 9, 10]
    assert result["steps"] == 320
    assert result["num_devices"] == 1  # of the eight there are
    assert result["run_dir"] == str(run_dir)
    assert json.loads((run_dir / "result.json").read_text())["evaluation"] == result["evaluation"]
    assert result["best_episode_return"] == max(row["eval/episode_return"] for row in rows if "eval/success" in row)


@pytest.mark.exhaustive
def test_tensorboard_gets_scalars_text_images_and_hyper_parameters(tmp_path, compose):
    run(compose("training.total_steps=128", "logging.tensorboard=true", "logging.curves=true"), tmp_path)
    events = b"".join(path.read_bytes() for path in (tmp_path / "tensorboard").rglob("events*"))
    for tag in (b"train/loss", b"config/text_summary", b"curves", b"final/episode_return", b"_hparams_"):
        assert tag in events, tag
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_a_finished_run_is_not_trained_again(finished, compose):
    run_dir, result = finished
    before = (run_dir / "metrics.jsonl").read_bytes()
    again = run(compose(), run_dir)
    assert (run_dir / "metrics.jsonl").read_bytes() == before
    assert again["evaluation"] == result["evaluation"]


def test_buckets_are_refused_with_the_way_out(compose):
    with pytest.raises(ValueError, match="`run_dir` must be a path, got gs://bucket/run; try mounting the bucket"):
        run(compose(), "gs://bucket/run")


@pytest.mark.slow
def test_a_signal_saves_the_run_where_it_stands_and_it_ends_in_the_same_bits(
    finished, tmp_path, monkeypatch, compose, rows_without_time, last_state, bits
):
    real = loop._log

    def log(run, stage, chunk, clock):
        if chunk.end == 4:  # Not a checkpoint of the others.
            os.kill(os.getpid(), signal.SIGTERM)
        return real(run, stage, chunk, clock)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(loop, "_log", log)
    with pytest.raises(Preempted, match="the run has saved update 4 of 10 of tiny"):
        run(compose(), tmp_path)
    assert signal.getsignal(signal.SIGTERM) == before
    assert (tmp_path / "checkpoints/last/4.digest.json").exists()
    monkeypatch.undo()
    run(compose(), tmp_path)
    assert rows_without_time(tmp_path) == rows_without_time(finished[0])
    wanted, actual = last_state(finished[0], compose()), last_state(tmp_path, compose())
    assert (wanted.step, bits(wanted.state)) == (actual.step, bits(actual.state))


def test_a_resumed_run_ends_in_the_same_bits(
    finished, tmp_path, monkeypatch, compose, rows_without_time, last_state, bits
):
    run_dir, _ = finished

    class Stop(Exception):
        pass

    real = loop._log
    for update in (3, 7, 9):  # before the first checkpoint, between two, and after the last one

        def log(run, stage, chunk, clock, stop=update):
            if chunk.end > stop:
                raise Stop
            return real(run, stage, chunk, clock)

        monkeypatch.setattr(loop, "_log", log)
        with pytest.raises(Stop):
            run(compose(), tmp_path / "resumed")
    monkeypatch.setattr(loop, "_log", real)
    run(compose(), tmp_path / "resumed")
    assert rows_without_time(tmp_path / "resumed") == rows_without_time(run_dir)
    wanted, actual = last_state(run_dir, compose()), last_state(tmp_path / "resumed", compose())
    assert (wanted.step, bits(wanted.state)) == (actual.step, bits(actual.state))


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over_and_said(finished, tmp_path, capfd, compose, rows_without_time):
    run_dir, _ = finished
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(run_dir), str(copy)], check=True)
    for kind in ("10", "9"):
        files = [path for path in (copy / "checkpoints/last" / kind).rglob("*") if path.is_file()]
        victim = max(files, key=lambda path: path.stat().st_size)
        content = bytearray(victim.read_bytes())
        content[len(content) // 2] ^= 1
        victim.write_bytes(bytes(content))
    run(compose(), copy)
    errors = capfd.readouterr().err
    assert "step 10" in errors and "step 9" in errors and "Resumed tiny at update 6 of 10" in errors
    assert rows_without_time(copy) == rows_without_time(run_dir)


def test_another_config_in_the_same_directory_is_refused(finished, compose):
    run_dir, _ = finished
    with pytest.raises(ValueError, match="differs in learner.discount; try another `run_dir`"):
        run(compose("learner.discount=0.5"), run_dir)
    many = [f"learner.{name}=0.5" for name in ("clip_epsilon", "discount", "entropy_coefficient", "trace_decay")]
    with pytest.raises(
        ValueError, match=r"differs in evaluation.greedy, (learner.\w+, ){3}learner.trace_decay and 1 more; try"
    ):
        run(compose("training.total_steps=640", "evaluation.greedy=false", "seed=9", *many), run_dir)
    # Where it runs and what it shows may change.
    run(compose("devices=sharded", "devices.num_devices=4", "logging.progress=true"), run_dir)


@pytest.mark.exhaustive
def test_the_target_return_stops_the_run(tmp_path, compose):
    result = run(compose("training.target_return=-100"), tmp_path)
    assert result["reached_target"] and result["steps"] == 128
    assert run(compose("training.target_return=-100"), tmp_path)["steps"] == 128


@pytest.mark.exhaustive
def test_experience_is_counted_over_logs_stages_and_resumes(tmp_path, monkeypatch, compose, rows_without_time):
    stages = "stages=[{name: first, training: {total_steps: 128}}, {name: second, training: {total_episodes: 11}}]"
    straight = run(compose(stages), tmp_path / "straight")
    rows = [row for row in read_metrics(tmp_path / "straight") if "train/loss" in row]
    assert [row["rollout/env_steps"] for row in rows] == [row["step"] for row in rows]
    first, last = next(row for row in rows if row["update"] == 4), rows[-1]
    # The second stage ends with the first update in which its own eleventh episode ends, before its 320 steps.
    assert last["rollout/episodes"] - first["rollout/episodes"] >= 11 and straight["steps"] < 448
    ended = [row["rollout/episodes"] - first["rollout/episodes"] for row in rows if row["update"] < last["update"]]
    assert max(ended) < 11

    class Stop(Exception):
        pass

    real = loop._log

    def log(run, stage, chunk, clock):
        if stage.name == "second" and chunk.end > 3:
            raise Stop
        return real(run, stage, chunk, clock)

    monkeypatch.setattr(loop, "_log", log)
    with pytest.raises(Stop):
        run(compose(stages), tmp_path / "resumed")
    monkeypatch.setattr(loop, "_log", real)
    run(compose(stages), tmp_path / "resumed")
    assert rows_without_time(tmp_path / "resumed") == rows_without_time(tmp_path / "straight")
    assert run(compose(stages), tmp_path / "resumed")["steps"] == straight["steps"]  # Nothing is played again.


@pytest.mark.exhaustive
def test_the_last_evaluation_may_have_more_episodes(tmp_path, monkeypatch, compose):
    played = []
    real = loop.mean_evaluation

    def evaluate(stage, params, *, is_last):
        results = (stage.evaluate_last if is_last else stage.evaluate)(params)
        played.append(results["episode_return"].shape)
        return real(stage, params, is_last=is_last)

    monkeypatch.setattr(loop, "mean_evaluation", evaluate)
    run(compose("evaluation.final_episodes=7"), tmp_path / "whole")
    assert played == [(3,), (3,), (7,)]
    played.clear()
    stopped = run(compose("evaluation.final_episodes=7", "training.target_return=-100"), tmp_path / "stopped")
    assert played == [(3,), (7,)] and stopped["steps"] == 128 and stopped["reached_target"]
    final = [row for row in read_metrics(tmp_path / "stopped") if "eval/success" in row]
    assert len(final) == 1 and stopped["evaluation"]["success"] == final[0]["eval/success"]


@pytest.mark.exhaustive
def test_every_episode_that_is_played_counts_in_the_budget(tmp_path, rows_without_time, tiny):
    # No group is ever informative: every update plays all of its three rounds of 16 episodes, and throws them away.
    quiet = [override for override in tiny if override.startswith("logging")]
    settings = [
        "+collector.dynamic_sampling.tolerance=1e9",
        "collector.max_rounds=3",
        "when_quick.training.total_steps=96",
    ]
    dapo = ["world=bandit", "algorithm=dapo", "quick=true", "stages=[]", "devices.compilation_cache=null"]
    config = compose_run(ROOT / "configs", *quiet, *dapo, "logging.transcripts=false", *settings)
    result = run(config, tmp_path)
    trained = [(row["update"], row["step"]) for row in rows_without_time(tmp_path) if "rollout/rounds" in row]
    assert trained == [(1, 48), (2, 96)] and result["steps"] == 96
    counted = [row for row in read_metrics(tmp_path) if "rollout/rounds" in row]
    assert [row["rollout/episodes"] for row in counted] == [48, 96]
    # A pull is one turn, and one step of the world; what is thrown away was sampled, too.
    assert [row["rollout/turns"] for row in counted] == [row["rollout/env_steps"] for row in counted] == [48, 96]
    assert counted[0]["rollout/tokens"] >= 48 and counted[1]["rollout/tokens"] > counted[0]["rollout/tokens"]
    assert run(config, tmp_path)["steps"] == 96
    assert len([row for row in rows_without_time(tmp_path) if "rollout/rounds" in row]) == 2


@pytest.mark.slow
def test_a_run_is_extended(tmp_path, compose, rows_without_time, last_state, bits):
    short = compose("optimizer.anneal=false")
    first = run(short, tmp_path / "run")
    longer = compose("optimizer.anneal=false", "training.total_steps=512", "training.log_every_steps=128")
    extended = run(longer, tmp_path / "run")
    assert (first["steps"], extended["steps"]) == (320, 512)
    straight = run(longer, tmp_path / "straight")
    one, other = (last_state(tmp_path / name, longer) for name in ("run", "straight"))
    assert (one.step, bits(one.state)) == (other.step, bits(other.state))
    assert extended["evaluation"] == straight["evaluation"]
    rows = {row["step"]: row for row in rows_without_time(tmp_path / "run") if "eval/success" in row}
    assert list(rows) == [128, 256, 320, 384, 512]  # At the first end, too.
    with pytest.raises(ValueError, match="must be at least the 512 steps that the stage 'tiny' has done, got 320"):
        run(short, tmp_path / "run")


@pytest.mark.exhaustive
def test_a_finished_run_keeps_its_times(tmp_path, compose):
    first = run(compose("training.total_steps=64"), tmp_path)
    again = run(compose("training.total_steps=64"), tmp_path)
    assert 0.0 < again["seconds"] <= first["seconds"]
    assert again["seconds_to_first_update"] == first["seconds_to_first_update"] > 0.0
    speeds = [row["time/steps_per_second"] for row in read_metrics(tmp_path) if "train/loss" in row]
    assert np.isnan(speeds[0])  # What was compiled meanwhile has no speed.


@pytest.mark.slow
def test_evaluations_and_later_updates_count_in_no_time_of_training(tmp_path, monkeypatch, compose):
    def wait(metrics):
        time.sleep(1.0)  # The first chunk takes a second, of four updates.

    def evaluate(*args, **kwargs):
        time.sleep(1.0)
        return evaluated(*args, **kwargs)

    evaluated = loop.mean_evaluation
    monkeypatch.setattr(loop, "mean_evaluation", evaluate)
    monkeypatch.setattr(loop.jax, "block_until_ready", wait)
    every = [f"{name}=128" for name in ("training.log_every_steps", "evaluation.every_steps")]
    result = run(compose("training.total_steps=256", "training.checkpoint_every_steps=256", *every), tmp_path)
    # A quarter of the second, and none of the two evaluations.
    assert result["seconds"] - result["seconds_to_first_update"] >= 2.0 + 0.75
    (_, speed) = [row["time/steps_per_second"] for row in read_metrics(tmp_path) if "train/loss" in row]
    assert speed > 128 / 0.9


@pytest.mark.slow
def test_the_best_checkpoint_holds_before_the_last_one_knows_of_it(tmp_path, monkeypatch, compose):
    real = manager.write_digest
    found = []

    def write(directory, step, tree):
        if directory.name == "best":
            time.sleep(0.5)
        else:
            score = json.loads((directory / str(step) / "metadata/metadata").read_text())["best"]
            held = [int(path.name.partition(".")[0]) for path in directory.with_name("best").glob("*.digest.json")]
            best = directory.with_name("best") / str(max(held)) / "metadata/metadata" if held else None
            found.append((score, best and json.loads(best.read_text())["best"]))
        real(directory, step, tree)

    monkeypatch.setattr(manager, "write_digest", write)
    # Every score is better than the one before.
    scores = iter(range(10))
    monkeypatch.setattr(loop, "_evaluate", lambda run, *rest: setattr(run, "best", float(next(scores))) or True)
    run(compose("evaluation.every_steps=32", "training.checkpoint_every_steps=32"), tmp_path)
    assert found == [(float(score), float(score)) for score in range(10)]


@pytest.mark.exhaustive
def test_a_first_score_that_is_not_finite_is_not_the_best(tmp_path, monkeypatch, compose):
    scores = iter([float("nan"), 1.0, 0.5])

    def evaluate(run, stage, update, params):
        stage = stage._replace(evaluate=lambda params: {"episode_return": np.full(3, next(scores))})
        return real(run, stage, update, params)

    real = loop._evaluate
    monkeypatch.setattr(loop, "_evaluate", evaluate)
    assert run(compose(), tmp_path)["best_episode_return"] == 1.0
    assert (tmp_path / "checkpoints/best/8.digest.json").exists()


@pytest.mark.exhaustive
def test_of_opposed_teams_the_last_is_the_best(tmp_path, monkeypatch, compose):
    scores = iter([3.0, 2.0, 1.0])

    def evaluate(run, stage, update, params):
        stage = stage._replace(
            evaluate=lambda params: {"episode_return": np.full(3, next(scores))},
            environment=replace(stage.environment, teams={"predators": (0,), "prey": (1,)}),
        )
        return real(run, stage._replace(evaluate_last=stage.evaluate), update, params)

    real = loop._evaluate
    monkeypatch.setattr(loop, "_evaluate", evaluate)
    assert run(compose(), tmp_path)["best_episode_return"] == 1.0
    assert (tmp_path / "checkpoints/best/10.digest.json").exists()


def test_ctrl_c_that_is_dropped_is_raised_when_the_run_asks():
    """Python drops what is raised in callbacks of the garbage collector."""

    class Dropping:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    hook, default = sys.unraisablehook, signal.default_int_handler
    before = signal.signal(signal.SIGINT, default)  # A shell in the background has its commands ignore it.
    try:
        with watch_signals() as is_asked:
            assert not is_asked()
            Dropping()
            with pytest.raises(KeyboardInterrupt):
                is_asked()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is default and sys.unraisablehook is hook
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("steps", "done"), [(32, 32), (64, 64), (128, 96)])
def test_rounds_that_are_played_anew_do_not_pass_the_plan(steps, done):
    stages = [
        SimpleNamespace(name="warm_start", num_updates=2, steps_per_update=16),
        SimpleNamespace(name="reinforcement", num_updates=4, steps_per_update=16),
    ]
    going = SimpleNamespace(experiment=SimpleNamespace(stages=stages), steps=steps, steps_before=32 * (steps > 32))
    stage = stages[steps > 32]
    assert loop._planned(going, stage) == done


@pytest.mark.exhaustive
def test_of_equal_scores_the_last_one_is_the_best(tmp_path, monkeypatch, compose):
    """A model that learns conversations is evaluated in a world that it never plays well."""
    real = loop._evaluate

    def evaluate(run, stage, update, params):
        return real(run, stage._replace(evaluate=lambda params: {"episode_return": np.zeros(3)}), update, params)

    monkeypatch.setattr(loop, "_evaluate", evaluate)
    run(compose(), tmp_path)
    assert (tmp_path / "checkpoints/best/10.digest.json").exists()
