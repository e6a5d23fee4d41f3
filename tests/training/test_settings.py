"""Settings that are refused, and directories that are claimed by one process."""

import os
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose as compose_run
from jaxagents.training.launch import run
from tests import ROOT


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["seed=-1"], "`seed` must be a whole number from 0 to 4294967295, got -1"),
        (["seed=4294967295", "seeds=2"], "`seed` must be a whole number from 0 to 4294967294, got 4294967295"),
        (["evaluation.seed=-3"], "`evaluation.seed` must be a whole number from 0"),
        (["training.total_steps=10"], "must be at least the 32 steps of one update, got 10"),
        (["collector.num_envs=5", "learner.num_minibatches=3"], "`num_minibatches` must divide .* got 3; try"),
        (["seeds=0"], "`seeds` must be a positive number, got 0"),
        (["stages=[{name: a}, {name: a}]"], "`stages` must have different names, got \\['a', 'a'\\]"),
        (
            ["stages=[{name: a}, {name: b, from: c}]"],
            "`from` of the stage 'b' must name an earlier one, got 'c'; try a",
        ),
        (["training.total_turns=5"], "`training.total_turns` must be in a unit .* one that counts episodes, env_steps"),
        (["training.total_episodes=0"], "`training.total_episodes` must be a positive number, got 0"),
        (["stages=[{name: a, rounds: 0}]"], "`stages.rounds` must be a positive number, got 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, overrides, message, compose):
    with pytest.raises(ValueError, match=message):
        run(compose(*overrides), tmp_path)


def test_a_group_without_an_option_is_refused(tmp_path, compose):
    config = compose()
    OmegaConf.set_struct(config, False)
    config.environment = {}
    with pytest.raises(ValueError, match="`environment` must name a `_target_`, got {}; choose an option of configs/"):
        run(config, tmp_path)


def test_what_an_experiment_sets_for_another_world_is_refused(tmp_path):
    config = compose_run(ROOT / "configs", "experiment=grpo_frozenlake", "environment=bandit")
    with pytest.raises(ValueError, match=r"bandit.make_environment takes, got sizes, .* out: ~environment.sizes ~env"):
        run(config, tmp_path)


def test_quick_mode_has_room_for_two_updates(compose):
    config = compose("quick=true", "collector.num_envs=64", "collector.num_steps=128")
    stage = build(resolve(config)).stages[0]
    assert (stage.num_updates, stage.steps_per_update) == (2, 64 * 128)
    stage = build(resolve(compose("quick=true"))).stages[0]
    assert stage.num_updates * stage.steps_per_update == 2048


@pytest.mark.slow
def test_a_second_process_is_kept_out(tmp_path, compose):
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


@pytest.mark.exhaustive
def test_a_start_that_failed_claims_no_directory(tmp_path, compose):
    with pytest.raises(ValueError, match="`seeds` must be a positive number"):
        run(compose("seeds=0", "training.total_steps=64"), tmp_path)
    with pytest.raises(FloatingPointError):
        run(compose("optimizer.learning_rate=1e38", "optimizer.max_gradient_norm=null"), tmp_path)
    assert run(compose("training.total_steps=64"), tmp_path)["steps"] == 64


def test_the_config_is_written_whole_or_not_at_all(tmp_path, monkeypatch, compose):
    def cut_off(*arguments):
        raise OSError("killed")

    monkeypatch.setattr(os, "replace", cut_off)
    with pytest.raises(OSError, match="killed"):
        run(compose("training.total_steps=64"), tmp_path)
    assert not (tmp_path / "config.yaml").exists()
