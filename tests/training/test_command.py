"""How mains end: errors in one line, and sweeps of a main that takes no time by launchers and sweepers of others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import yaml
from jax.experimental import io_callback

from jaxagents.training.command import errors_in_one_line
from tests import ROOT

MAIN = """
import json
from jaxagents.training.command import command

@command("toy")
def main(config):
    if config.x > 100:
        raise ValueError("`x` must be small.")
    print(json.dumps({"evaluation": {"episode_return": [-(config.x - 1) ** 2, 0.0]}}))

main()
"""
CONFIG = """
defaults: [_self_, {override hydra/job_logging: none}, {override hydra/hydra_logging: none}]
x: 0.0
hydra: {output_subdir: null}
"""


@pytest.fixture
def sweep(tmp_path):
    """Returns `(*arguments) -> (exit code, last line on stdout)`."""
    for folder in ("experiments", "configs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "experiments" / "toy.py").write_text(MAIN)
    (tmp_path / "configs" / "toy.yaml").write_text(CONFIG)

    def run(*arguments):
        command = [sys.executable, "experiments/toy.py", "-m", f"hydra.sweep.dir={tmp_path}/sweep", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
        assert result.stdout, result.stderr
        return result.returncode, json.loads(result.stdout.splitlines()[-1])["sweep"]

    return run


@pytest.mark.slow
def test_joblib_runs_jobs_in_parallel_and_all_are_told(sweep):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="the launcher comes with the extra `sweeps`")
    code, jobs = sweep("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "x=1,101")
    assert code == 1 and sorted(job["exit_code"] for job in jobs) == [0, 2]
    assert sorted(Path(job["folder"]).name for job in jobs) == ["0_x=1", "1_x=101"]


@pytest.mark.exhaustive
def test_optuna_maximises_the_mean_return(sweep, tmp_path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="the sweeper comes with the extra `sweeps`")
    settings = ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "hydra.sweeper.n_jobs=1")
    code, jobs = sweep(*settings, "hydra.sweeper.direction=maximize", "x=choice(1,5,9)", "hydra.sweeper.sampler.seed=1")
    assert code == 0 and len(jobs) == 3
    best = yaml.safe_load((tmp_path / "sweep" / "optimization_results.yaml").read_text())
    assert all(Path(job["folder"]).name == f"{i}_{job['overrides'][0]}" for i, job in enumerate(jobs))
    means = [sum(job["result"]["evaluation"]["episode_return"]) / 2 for job in jobs]
    assert best["best_value"] == max(means)


def test_what_fails_on_the_host_in_a_compiled_run_is_one_line(capfd):
    def fail(number):
        raise ValueError("`collector.reward` must return finite numbers, got nan for completion 1.")

    shape = jax.ShapeDtypeStruct((), jnp.float32)
    with pytest.raises(SystemExit) as stop, errors_in_one_line(show_traceback=False):
        jax.jit(lambda x: io_callback(fail, shape, x))(1.0).block_until_ready()
    errors = capfd.readouterr().err
    assert stop.value.code == 1
    assert errors == "Error: `collector.reward` must return finite numbers, got nan for completion 1.\n"
