"""A run that is killed at random moments ends in the same bits."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxagents.training.composition import compose as compose_run
from tests import ROOT


def fingerprint(path):
    return (path.stat().st_mtime_ns, path.stat().st_size) if path.exists() else None


@pytest.mark.slow
@pytest.mark.parametrize("num_kills", [2, 10])
def test_kills_at_random_moments_change_nothing(num_kills, tmp_path, rows_without_time, last_state, bits, tiny):
    overrides = [*tiny, "environment.corridor_length=5", f"training.total_steps={60_000 * num_kills}", "seeds=2"]
    overrides += [f"training.{name}_every_steps=4000" for name in ("log", "checkpoint")]
    overrides += ["evaluation.every_steps=8000"]

    def command(run_dir):
        return [sys.executable, "experiments/train.py", *overrides, f"run_dir={run_dir}"]

    straight = subprocess.run(command(tmp_path / "straight"), cwd=ROOT, check=True, capture_output=True, text=True)
    result = json.loads(straight.stdout.splitlines()[-1])
    # However fast the machine is: all kills together come before the end.
    start, training = result["seconds_to_first_update"], result["seconds"] - result["seconds_to_first_update"]
    random = np.random.default_rng()
    metrics = tmp_path / "killed/metrics.jsonl"
    for kill in range(num_kills):
        before = fingerprint(metrics)
        process = subprocess.Popen(command(tmp_path / "killed"), cwd=ROOT, stdout=subprocess.DEVNULL)
        if kill % 3 == 0:  # at any moment of the start
            time.sleep(random.uniform(0.0, start))
        else:  # once it trains
            deadline = time.time() + 200
            while fingerprint(metrics) == before and time.time() < deadline:
                time.sleep(0.02)
            time.sleep(random.uniform(0.0, training / (2 * num_kills)))
        assert process.poll() is None, "the run must outlast its kills; make it longer"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command(tmp_path / "killed"), cwd=ROOT, check=True, capture_output=True)
    assert rows_without_time(tmp_path / "killed") == rows_without_time(tmp_path / "straight")
    config = compose_run(ROOT / "configs", *overrides)
    wanted, actual = last_state(tmp_path / "straight", config), last_state(tmp_path / "killed", config)
    assert (wanted.step, bits(wanted.state)) == (actual.step, bits(actual.state))
