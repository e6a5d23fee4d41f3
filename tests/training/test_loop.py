"""The host's loop: logs, evaluations, stages, exact resume, and every way it may be stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf

from jaxagents.reporting.loggers import read_metrics
from jaxagents.training import build as build_module
from jaxagents.training import loop
from jaxagents.training.build import build, resolve, stage_configs
from jaxagents.training.checkpoints import manager
from jaxagents.training.checkpoints.manager import open_checkpoints
from jaxagents.training.composition import compose as compose_run
from jaxagents.training.launch import run
from jaxagents.training.program import stage_keys

ROOT = Path(__file__).parents[2]
TINY = (
    "experiment=ppo_cartpole",
    "environment=tmaze",
    "environment.corridor_length=2",
    "name=tiny",
    "policy.encoder.hidden_sizes=[8]",
    "learner.num_epochs=1",
    "learner.num_minibatches=2",
    "collector.num_envs=4",
    "collector.num_steps=8",
    "training.total_steps=320",
    "training.log_every_steps=64",
    "training.checkpoint_every_steps=96",
    "evaluation.every_steps=128",
    "evaluation.num_episodes=3",
    "logging.curves=false",
    "logging.report=false",
    "logging.tensorboard=false",
    "logging.progress=false",
)


def compose(*overrides):
    return compose_run(ROOT / "configs", *TINY, "devices.compilation_cache=null", *overrides)


def rows_without_time(run_dir):
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in read_metrics(run_dir)]


def last_state(run_dir, config):
    experiment = build(resolve(config))
    checkpoints = open_checkpoints(loop.checkpoint_folder(run_dir, experiment, -1, "last"), read_only=True)
    try:
        return checkpoints.restore(experiment.stages[-1].runner.abstract)
    finally:
        checkpoints.close()


def bits(tree):
    leaves = jax.tree.leaves(tree)
    keys = [jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    return [np.asarray(jax.random.key_data(x) if key else x).tobytes() for x, key in zip(leaves, keys, strict=True)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "finished"
    result = run(compose(), run_dir)
    return run_dir, result


def test_a_run_logs_evaluates_and_saves_when_due(finished):
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


def test_tensorboard_gets_scalars_text_images_and_hyper_parameters(tmp_path):
    run(compose("training.total_steps=128", "logging.tensorboard=true", "logging.curves=true"), tmp_path)
    events = b"".join(path.read_bytes() for path in (tmp_path / "tensorboard").rglob("events*"))
    for tag in (b"train/loss", b"config/text_summary", b"curves", b"final/episode_return", b"_hparams_"):
        assert tag in events, tag
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_a_finished_run_is_not_trained_again(finished):
    run_dir, result = finished
    before = (run_dir / "metrics.jsonl").read_bytes()
    again = run(compose(), run_dir)
    assert (run_dir / "metrics.jsonl").read_bytes() == before
    assert again["evaluation"] == result["evaluation"]


def test_a_resumed_run_ends_in_the_same_bits(finished, tmp_path, monkeypatch):
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


def test_a_damaged_checkpoint_is_passed_over_and_said(finished, tmp_path, capfd):
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


def test_another_config_in_the_same_directory_is_refused(finished):
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


def test_a_nan_loss_stops_the_run_and_keeps_the_checkpoint(tmp_path, monkeypatch):
    config = compose("optimizer.anneal=false")
    with pytest.raises(FloatingPointError, match=r"`train/\w+` must be finite, got NaN or infinity by update"):
        run(compose("optimizer.learning_rate=1e38", "optimizer.max_gradient_norm=null"), tmp_path / "at_once")
    assert not (tmp_path / "at_once/result.json").exists()

    real = loop._log

    def poison(run, stage, chunk, clock):
        if chunk.end >= 8:
            chunk = chunk._replace(metrics=chunk.metrics | {"train/loss": np.float32("inf")})
        return real(run, stage, chunk, clock)

    monkeypatch.setattr(loop, "_log", poison)
    with pytest.raises(FloatingPointError, match=r"`train/loss` must be finite, got NaN or infinity by update 8 \(256"):
        run(config, tmp_path / "later")
    assert last_state(tmp_path / "later", config).step == 6


def test_parameters_that_are_not_finite_are_never_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_first_not_finite", lambda params: "['head']")
    with pytest.raises(FloatingPointError, match=r"`params\['head'\]` must be finite"):
        run(compose(), tmp_path)
    assert not any((tmp_path / "checkpoints/last").glob("*.digest.json"))


def test_the_target_return_stops_the_run(tmp_path):
    result = run(compose("training.target_return=-100"), tmp_path)
    assert result["reached_target"] and result["steps"] == 128
    assert run(compose("training.target_return=-100"), tmp_path)["steps"] == 128


def test_experience_is_counted_over_logs_stages_and_resumes(tmp_path, monkeypatch):
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


def test_the_last_evaluation_may_have_more_episodes(tmp_path, monkeypatch):
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


def test_every_episode_that_is_played_counts_in_the_budget(tmp_path):
    # No group is ever informative: every update plays all of its three rounds of 16 episodes, and throws them away.
    quiet = [override for override in TINY if override.startswith("logging")]
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


def test_stages_follow_each_other_and_resume(tmp_path, monkeypatch):
    easy, hard = "{name: easy, training: {total_steps: 128}}", "{name: hard, learner: {entropy_coefficient: 0.0}}"
    stages = f"stages=[{easy}, {hard}]"
    straight = run(compose(stages), tmp_path / "straight")
    assert straight["steps"] == 448
    updates = [row["update"] for row in rows_without_time(tmp_path / "straight") if "train/loss" in row]
    assert updates == [2, 3, 4, 6, 7, 8, 10, 12, 13, 14]

    class Stop(Exception):
        pass

    real = loop._save
    saved = []

    def save(run, stage, update, *arguments):
        if stage.name == "hard":
            raise Stop
        saved.append(update)
        return real(run, stage, update, *arguments)

    monkeypatch.setattr(loop, "_save", save)
    with pytest.raises(Stop):
        run(compose(stages), tmp_path / "cut")
    monkeypatch.setattr(loop, "_save", real)
    run(compose(stages), tmp_path / "cut")
    assert saved[-1] == 4
    assert rows_without_time(tmp_path / "cut") == rows_without_time(tmp_path / "straight")


def test_seeds_train_side_by_side(tmp_path):
    result = run(compose("seeds=3", "training.total_steps=128"), tmp_path)
    assert result["num_seeds"] == 3 and len(result["evaluation"]["episode_return"]) == 3
    losses = [row["train/loss"] for row in read_metrics(tmp_path) if "train/loss" in row]
    assert all(len(set(loss)) == 3 for loss in losses)


def test_a_run_is_extended(tmp_path):
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


def test_a_finished_run_keeps_its_times(tmp_path):
    first = run(compose("training.total_steps=64"), tmp_path)
    again = run(compose("training.total_steps=64"), tmp_path)
    assert 0.0 < again["seconds"] <= first["seconds"]
    assert again["seconds_to_first_update"] == first["seconds_to_first_update"] > 0.0
    speeds = [row["time/steps_per_second"] for row in read_metrics(tmp_path) if "train/loss" in row]
    assert np.isnan(speeds[0])  # What was compiled meanwhile has no speed.


def test_steps_are_those_that_were_played(tmp_path, monkeypatch):
    easy = "{name: easy, training: {target_return: -100}}"
    stages = f"stages=[{easy}, {{name: hard}}]"
    straight = run(compose(stages, "training.total_steps=160"), tmp_path / "straight")
    assert straight["steps"] == 128 + 160

    class Stop(Exception):
        pass

    real = loop._save

    def save(run, stage, *arguments):
        real(run, stage, *arguments)
        if stage.name == "hard":
            raise Stop

    monkeypatch.setattr(loop, "_save", save)
    with pytest.raises(Stop):
        run(compose(stages, "training.total_steps=160"), tmp_path / "cut")
    monkeypatch.setattr(loop, "_save", real)
    assert run(compose(stages, "training.total_steps=160"), tmp_path / "cut")["steps"] == 128 + 160
    assert rows_without_time(tmp_path / "cut") == rows_without_time(tmp_path / "straight")


def test_the_best_checkpoint_holds_before_the_last_one_knows_of_it(tmp_path, monkeypatch):
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


def test_a_first_score_that_is_not_finite_is_not_the_best(tmp_path, monkeypatch):
    scores = iter([float("nan"), 1.0, 0.5])

    def evaluate(run, stage, update, params):
        stage = stage._replace(evaluate=lambda params: {"episode_return": np.full(3, next(scores))})
        return real(run, stage, update, params)

    real = loop._evaluate
    monkeypatch.setattr(loop, "_evaluate", evaluate)
    assert run(compose(), tmp_path)["best_episode_return"] == 1.0
    assert (tmp_path / "checkpoints/best/8.digest.json").exists()


def test_a_second_process_is_kept_out(tmp_path):
    hold = "import sys, time; from jaxagents.training.run_directory import locked\n"
    hold += "with locked(sys.argv[1]):\n    print('held', flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(ValueError, match=rf"`run_dir` must be free, got .*, to which process {process.pid} on "):
            run(compose("training.total_steps=64"), tmp_path)
    finally:
        process.kill()
        process.communicate()
    assert run(compose("training.total_steps=64"), tmp_path)["steps"] == 64  # A kill frees it.


def test_a_start_that_failed_claims_no_directory(tmp_path):
    with pytest.raises(ValueError, match="`seeds` must be a positive number"):
        run(compose("seeds=0", "training.total_steps=64"), tmp_path)
    with pytest.raises(FloatingPointError):
        run(compose("optimizer.learning_rate=1e38", "optimizer.max_gradient_norm=null"), tmp_path)
    assert run(compose("training.total_steps=64"), tmp_path)["steps"] == 64


def test_the_config_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    def cut_off(*arguments):
        raise OSError("killed")

    monkeypatch.setattr(os, "replace", cut_off)
    with pytest.raises(OSError, match="killed"):
        run(compose("training.total_steps=64"), tmp_path)
    assert not (tmp_path / "config.yaml").exists()


def test_a_learner_that_did_not_update_yet_has_not_diverged(tmp_path):
    """SAC updates once there are 48 transitions; 16 are collected between two logs."""
    small = ["experiment=sac_pendulum", *(f"{name}.encoder.hidden_sizes=[8]" for name in ("policy", "value"))]
    small += ["learner.buffer.min_size=48", "training.total_steps=96", "training.log_every_steps=16"]
    small += ["evaluation.num_episodes=2", "devices.compilation_cache=null", *TINY[-4:]]
    assert run(compose_run(ROOT / "configs", *small), tmp_path)["status"] == "finished"
    rows = [[row[name] for name in row if name.startswith("train/")] for row in read_metrics(tmp_path)]
    rows = [np.asarray(row) for row in rows if row]
    assert len(rows) == 6 and np.isnan(rows[0]).all() and np.isfinite(rows[-1]).all()


def test_one_diverged_seed_stays_as_it_was_and_the_others_go_on(tmp_path, monkeypatch, capfd):
    """The seed 1 has NaN parameters from its fifth update on."""
    doomed = jax.random.key_data(jax.random.split(stage_keys(1, 0), 3)[2])
    real = build_module.make_program

    def make_program(collector, learner):
        program = real(collector, learner)

        def update(state):
            after, metrics = program.update(state)
            ill = (state.update >= 4) & jnp.all(jax.random.key_data(state.key) == doomed)
            params = jax.tree.map(lambda leaf: jnp.where(ill, jnp.nan, leaf), after.learner.params)
            return after.replace(learner=after.learner.replace(params=params)), metrics

        return program._replace(update=update)

    healthy = run(compose("seeds=3"), tmp_path / "healthy")
    monkeypatch.setattr(build_module, "make_program", make_program)
    result = run(compose("seeds=3"), tmp_path / "run")
    assert healthy["status"] == ["finished"] * 3 and healthy["diverged"] == {}
    assert result["status"] == ["finished", "diverged", "finished"]
    assert result["diverged"] == {"1": {"metric": "train/loss", "stage": "tiny", "update": 6}}
    assert "Seed 1 has diverged: `train/loss` was NaN or infinite by update 6." in capfd.readouterr().err
    wanted, actual = (last_state(tmp_path / name, compose("seeds=3")).state for name in ("healthy", "run"))
    assert np.asarray(actual.diverged).tolist() == [-1, 4, -1]
    for seed in (0, 2):  # Bit for bit what they are without the other one's misfortune.
        one, other = (jax.tree.map(lambda x, seed=seed: x[seed], tree) for tree in (actual, wanted))
        assert bits(one) == bits(other)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(actual.learner.params))
    losses = [row["train/loss"] for row in read_metrics(tmp_path / "run") if "train/loss" in row]
    assert [np.isnan(loss).tolist() for loss in losses] == [[False] * 3] * 3 + [[False, True, False]] * 4
    with pytest.raises(FloatingPointError, match="`train/loss` must be finite, got NaN or infinity by update 6"):
        run(compose("seed=1", "seeds=1"), tmp_path / "alone")


def test_stages_start_from_any_earlier_one_and_in_rounds(tmp_path):
    stages = "stages=[{name: a}, {name: b}, {name: c, from: a}, {name: d, from: null}, {name: e, rounds: 2}]"
    config = compose(stages, "training.total_steps=64", "optimizer.learning_rate=0.0", "optimizer.anneal=false")
    run(config, tmp_path)
    experiment = build(resolve(config))
    assert [stage.name for stage in experiment.stages] == ["a", "b", "c", "d", "e_1", "e_2"]
    assert [stage.start for stage in experiment.stages] == [None, "a", "a", None, "d", "e_1"]
    assert experiment.stages[4].runner is experiment.stages[5].runner  # Compiled once.
    params = {}
    for index, stage in enumerate(experiment.stages):
        folder = loop.checkpoint_folder(tmp_path, experiment, index, "last")
        with closing(open_checkpoints(folder, read_only=True)) as checkpoints:
            params[stage.name] = bits(checkpoints.restore(stage.runner.abstract).state.learner.params)
    assert params["a"] == params["b"] == params["c"] != params["d"] == params["e_1"] == params["e_2"]


def test_blocks_of_stages_are_repeated():
    stages = "stages=[{name: a}, {rounds: 2, stages: [{name: b}, {name: c, from: a}, {name: d, from: b}]}, {name: e}]"
    configs = stage_configs(resolve(compose(stages)))
    assert {name: config["from"] for name, config in configs.items()} == {
        **{"a": None, "b_1": "a", "c_1": "a", "d_1": "b_1"},
        **{"b_2": "d_1", "c_2": "a", "d_2": "b_2", "e": "d_2"},
    }


def test_several_seeds_are_the_runs_of_each_seed_alone(tmp_path):
    easy, hard = "{name: easy, training: {total_steps: 128}}", "{name: hard, learner: {entropy_coefficient: 0.0}}"
    short = ["training.total_steps=64", f"stages=[{easy}, {hard}]", "seed=4"]
    run(compose(*short, "seeds=2"), tmp_path / "together")
    together = last_state(tmp_path / "together", compose(*short, "seeds=2")).state
    for index in range(2):
        alone = compose(*short, f"seed={4 + index}")
        run(alone, tmp_path / str(index))
        single = last_state(tmp_path / str(index), alone).state
        # The same keys and the same experience; sums of floats have another order under vmap.
        assert bits(single.key) == bits(together.key[index])
        for one, both in zip(jax.tree.leaves(single), jax.tree.leaves(together), strict=True):
            if not jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
                np.testing.assert_allclose(both[index], one, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["seed=-1"], "`seed` must be a whole number from 0 to 4294967295, got -1"),
        (["seed=1.5"], "`seed` must be a whole number from 0 to 4294967295, got 1.5"),
        (["seed=4294967295", "seeds=2"], "`seed` must be a whole number from 0 to 4294967294, got 4294967295"),
        (["evaluation.seed=-3"], "`evaluation.seed` must be a whole number from 0"),
        (["training.total_steps=10"], "must be at least the 32 steps of one update, got 10"),
        (["+training.total_step=5"], "`training` has no key 'total_step'; try total_steps"),
        (["collector.num_envs=5", "learner.num_minibatches=3"], "`num_minibatches` must divide .* got 3; try"),
        (["seeds=0"], "`seeds` must be a positive number, got 0"),
        (["stages=[{name: a}, {name: a}]"], "`stages` must have different names, got \\['a', 'a'\\]"),
        (
            ["stages=[{name: a}, {name: b, from: c}]"],
            "`from` of the stage 'b' must name an earlier one, got 'c'; try a",
        ),
        (["training.total_turns=5"], "`training.total_turns` must be in a unit .* one that counts episodes, env_steps"),
        (["training.total_episodes=0"], "`training.total_episodes` must be a positive number, got 0"),
        (["evaluation.final_episodes=0"], "`evaluation.final_episodes` must be a positive number, got 0"),
        (["stages=[{name: a, rounds: 0}]"], "`stages.rounds` must be a positive number, got 0"),
        (["devices=sharded", "devices.num_devices=3"], "`collector.num_envs` must be divisible .* got 4 and 3"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        run(compose(*overrides), tmp_path)


def test_a_group_without_an_option_is_refused(tmp_path):
    config = compose()
    OmegaConf.set_struct(config, False)
    config.environment = {}
    with pytest.raises(ValueError, match="`environment` must name a `_target_`, got {}; choose an option of configs/"):
        run(config, tmp_path)


def test_what_an_experiment_sets_for_another_world_is_refused(tmp_path):
    config = compose_run(ROOT / "configs", "experiment=lm_frozenlake", "environment=bandit")
    with pytest.raises(ValueError, match=r"bandit.make_environment takes, got sizes, .* out: ~environment.sizes ~env"):
        run(config, tmp_path)


def test_quick_mode_has_room_for_two_updates():
    config = compose("quick=true", "collector.num_envs=64", "collector.num_steps=128")
    stage = build(resolve(config)).stages[0]
    assert (stage.num_updates, stage.steps_per_update) == (2, 64 * 128)
    stage = build(resolve(compose("quick=true"))).stages[0]
    assert stage.num_updates * stage.steps_per_update == 2048


def fingerprint(path):
    return (path.stat().st_mtime_ns, path.stat().st_size) if path.exists() else None


@pytest.mark.slow
def test_ten_kills_at_random_moments_change_nothing(tmp_path):
    overrides = [*TINY, "environment.corridor_length=5", "training.total_steps=1200000", "seeds=2"]
    overrides += [f"training.{name}_every_steps=4000" for name in ("log", "checkpoint")]
    overrides += ["evaluation.every_steps=8000"]

    def command(run_dir):
        return [sys.executable, "experiments/train.py", *overrides, f"run_dir={run_dir}"]

    straight = subprocess.run(command(tmp_path / "straight"), cwd=ROOT, check=True, capture_output=True, text=True)
    told = json.loads(straight.stdout.splitlines()[-1])
    # However fast the machine is: ten kills together come before the end.
    start, training = told["seconds_to_first_update"], told["seconds"] - told["seconds_to_first_update"]
    random = np.random.default_rng()
    metrics = tmp_path / "killed/metrics.jsonl"
    for kill in range(10):
        before = fingerprint(metrics)
        process = subprocess.Popen(command(tmp_path / "killed"), cwd=ROOT, stdout=subprocess.DEVNULL)
        if kill % 3 == 0:  # at any moment of the start
            time.sleep(random.uniform(0.0, start))
        else:  # once it trains
            deadline = time.time() + 200
            while fingerprint(metrics) == before and time.time() < deadline:
                time.sleep(0.02)
            time.sleep(random.uniform(0.0, training / 20))
        assert process.poll() is None, "the run must outlast ten kills; make it longer"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command(tmp_path / "killed"), cwd=ROOT, check=True, capture_output=True)
    assert rows_without_time(tmp_path / "killed") == rows_without_time(tmp_path / "straight")
    config = compose_run(ROOT / "configs", *overrides)
    wanted, actual = last_state(tmp_path / "straight", config), last_state(tmp_path / "killed", config)
    assert (wanted.step, bits(wanted.state)) == (actual.step, bits(actual.state))
