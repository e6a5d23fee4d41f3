"""A tiny run that the tests of the mains share, and how they call mains."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TIMEOUT = 300.0  # Seconds for one command.
TINY = (
    *("environment=tmaze", "environment.corridor_length=2", "policy.encoder.hidden_sizes=[8]", "collector.num_steps=8"),
    *("quick=true", "devices.compilation_cache=null", "logging.tensorboard=false", "logging.curves=false"),
    "logging.report=false",
)


@pytest.fixture(scope="session")
def call_main(tmp_path_factory):
    """Returns `(script, *overrides) -> CompletedProcess`, in an empty working directory."""

    def call(script, *overrides):
        return subprocess.run(
            [sys.executable, str(ROOT / "experiments" / script), *overrides],
            cwd=tmp_path_factory.mktemp("cwd"),
            env=dict(os.environ),
            stdin=subprocess.DEVNULL,
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
