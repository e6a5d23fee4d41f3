"""A tiny run that the tests of the mains share, and how they call mains."""

import os
import subprocess
import sys

import pytest

from jaxagents.training.composition import compose
from jaxagents.training.launch import run
from tests import ROOT

TIMEOUT = 300.0  # Seconds for one command.
TINY = (
    "experiment=ppo_cartpole",
    *("environment=tmaze", "environment.corridor_length=2", "policy.encoder.hidden_sizes=[8]", "collector.num_steps=8"),
    *("quick=true", "devices.compilation_cache=null", "logging.tensorboard=false", "logging.curves=false"),
    "logging.report=false",
)
# The first stage only, transcripts of the expert, until most of what the policy says are actions.
TINY_LANGUAGE = (
    *("experiment=grpo_frozenlake", "quick=true", "policy.num_turns=3", "model.network.num_layers=1", "name=tiny"),
    *("model.network.features=16", "model.network.num_heads=2", "warm_start.learner.optimizer.learning_rate=0.01"),
    *("when_quick.warm_start.training.total_steps=1200", 'stages=["${warm_start}"]', "logging.progress=false"),
    *("devices.compilation_cache=null", "logging.tensorboard=false", "logging.curves=false", "logging.report=false"),
)


@pytest.fixture(scope="session")
def call_main(tmp_path_factory):
    """Returns `(script, *overrides, lines="") -> CompletedProcess`, in an empty working directory."""

    def call(script, *overrides, lines=""):
        return subprocess.run(
            [sys.executable, str(ROOT / "experiments" / script), *overrides],
            cwd=tmp_path_factory.mktemp("cwd"),
            env=dict(os.environ),
            input=lines,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )

    return call


@pytest.fixture(scope="session")
def run_dir(call_main, tmp_path_factory):
    """Directory of a finished run of one seed."""
    path = tmp_path_factory.mktemp("runs") / "tiny"
    result = call_main("train.py", *TINY, f"run_dir={path}")
    assert result.returncode == 0, result.stderr
    return path


@pytest.fixture(scope="session")
def language_run_dir(tmp_path_factory):
    """Directory of a finished run of a language policy."""
    path = tmp_path_factory.mktemp("runs") / "language"
    run(compose(ROOT / "configs", *TINY_LANGUAGE), path)
    return path
