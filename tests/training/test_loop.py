"""The host's loop: logs, evaluations, stages, exact resume, and every way it may be stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from omegaconf import OmegaConf

from jaxagents.reporting.loggers import read_metrics
from jaxagents.training import loop
from jaxagents.training.build import build, resolve
from jaxagents.training.checkpoints.manager import open_checkpoints
from jaxagents.training.composition import compose as compose_run
from jaxagents.training.launch import run

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

        def log(run, stage, offset, chunk, clock, stop=update):
            if chunk.end > stop:
                raise Stop
            return real(run, stage, offset, chunk, clock)

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
    with pytest.raises(ValueError, match=r"differs in learner.clip_epsilon, (learner.\w+, ){3}seed and 1 more; try"):
        run(compose("training.total_steps=640", "seed=9", *many), run_dir)
    # Where it runs and what it shows may change.
    run(compose("devices=sharded", "devices.num_devices=4", "logging.progress=true"), run_dir)


def test_a_nan_loss_stops_the_run_and_keeps_the_checkpoint(tmp_path, monkeypatch):
    config = compose("optimizer.anneal=false")
    with pytest.raises(FloatingPointError, match=r"`train/\w+` must be finite, got NaN or infinity by update"):
        run(compose("optimizer.learning_rate=1e38", "optimizer.max_gradient_norm=null"), tmp_path / "at_once")
    assert not (tmp_path / "at_once/result.json").exists()

    real = loop._log

    def poison(run, stage, offset, chunk, clock):
        if chunk.end >= 8:
            chunk = chunk._replace(metrics=chunk.metrics | {"train/loss": np.float32("nan")})
        return real(run, stage, offset, chunk, clock)

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

    def save(run, stage, update, state, folders):
        if stage.name == "hard":
            raise Stop
        saved.append(update)
        return real(run, stage, update, state, folders)

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
        (["stages=[{name: a}, {name: a}]"], "`stages` must have different names"),
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
