"""Seeds that are trained side by side, as a user trains them."""

import json
import os
import subprocess
import sys

import pytest

from tests import ROOT


@pytest.mark.exhaustive
def test_seeds_side_by_side_come_to_their_end(tmp_path):
    """With the scheduler that XLA:CPU has by default, this program stops in its first update."""
    settings = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "PJRT_NPROC")}
    small = ("environment.size=5", "environment.max_steps=50", "collector.reset_pool=16", "training.total_steps=1024")
    command = (
        *("world=quest", "algorithm=hg_dagger", "seeds=2", *small, "evaluation.num_episodes=4", "logging.curves=false"),
        *("logging.report=false", "devices.compilation_cache=null", f"run_dir={tmp_path / 'run'}"),
    )
    result = subprocess.run(
        [sys.executable, str(ROOT / "experiments" / "train.py"), *command],
        cwd=tmp_path,
        env=settings | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300.0,  # Kills it, as it does not hear SIGTERM then.
        check=True,
    )
    assert len(json.loads(result.stdout.splitlines()[-1])["evaluation"]["success"]) == 2
