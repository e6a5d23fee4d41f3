"""Two processes over Gloo on loopback, one device each, train what one process trains, and are refused together."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxagents.reporting.loggers import read_metrics

ROOT = Path(__file__).parents[2]
OVERRIDES = (
    "experiment=ppo_cartpole",
    "environment=tmaze",
    "environment.corridor_length=2",
    "name=tiny",
    "policy.encoder.hidden_sizes=[8]",
    "learner.num_epochs=1",
    "learner.num_minibatches=2",
    "collector.num_envs=4",
    "collector.num_steps=8",
    "training.log_every_steps=64",
    "training.checkpoint_every_steps=64",
    "evaluation.every_steps=64",
    "evaluation.num_episodes=3",
    "training.total_steps=256",
    "logging.tensorboard=false",
)


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def start(run_dir, *overrides):
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return subprocess.Popen(
        [sys.executable, "experiments/train.py", *OVERRIDES, *overrides, f"run_dir={run_dir}"],
        cwd=ROOT,
        env=environment | {"JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(processes):
    outputs = []
    try:
        for process in processes:
            output, error = process.communicate(timeout=500)
            assert process.returncode == 0, error[-4000:]
            outputs.append(json.loads(output.strip().splitlines()[-1]))
    finally:
        for process in processes:
            process.kill()
    return outputs


def start_two(run_dir, *overrides, mode="sharded", second=()):
    """Starts both; the time of the start would give the second one another directory, `second` other overrides."""
    port = free_port()
    shared = [f"devices={mode}", "devices.distributed=true", f"devices.coordinator_address=localhost:{port}"]
    shared += ["devices.num_processes=2", *overrides]
    return [
        start(run_dir, *shared, "devices.process_id=0"),
        start(f"{run_dir}_later", *shared, "devices.process_id=1", *second),
    ]


def assert_same_metrics(run_dir, reference):
    rows, wanted = read_metrics(run_dir), read_metrics(reference)
    assert len(rows) == len(wanted)
    for row, other in zip(rows, wanted, strict=True):
        assert row.keys() == other.keys()
        for name in row:
            if not name.startswith("time/"):
                # The explained variance divides by a variance that is nearly zero here.
                rtol = 1e-3 if name == "train/explained_variance" else 1e-4
                np.testing.assert_allclose(row[name], other[name], rtol=rtol, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_two_processes_train_what_one_does_and_either_goes_on_with_the_other(tmp_path):
    (alone,) = finish([start(tmp_path / "alone")])
    first, second = finish(start_two(tmp_path / "both"))
    assert first["evaluation"] == second["evaluation"]
    assert first["run_dir"] == second["run_dir"] == str(tmp_path / "both")
    assert not (tmp_path / "both_later" / "config.yaml").exists()
    assert_same_metrics(tmp_path / "both", tmp_path / "alone")
    assert alone["steps"] == first["steps"] == 256
    # A checkpoint of two processes is finished by one, and the other way round.
    for name, begin, end in (("two_one", start_two, start), ("one_two", start, start_two)):
        half = begin(tmp_path / name)
        half = half if isinstance(half, list) else [half]
        finish(half)
        for kind in ("last", "best"):
            for step in (8, 6):
                folder = tmp_path / name / "checkpoints" / kind
                subprocess.run(["rm", "-rf", str(folder / str(step)), str(folder / f"{step}.digest.json")], check=True)
        rest = end(tmp_path / name)
        finish(rest if isinstance(rest, list) else [rest])
        assert_same_metrics(tmp_path / name, tmp_path / "alone")


@pytest.mark.slow
def test_a_refusal_of_one_process_ends_both_with_its_message(tmp_path):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "config.yaml").write_text("seed: 7\n")
    (taken / "checkpoints/last").mkdir(parents=True)
    (taken / "checkpoints/last/8.digest.json").write_text("{}")  # Of that config there are checkpoints.
    for name, second, message in (
        ("taken", [], "`run_dir` must be new or of the same config"),
        ("steps", ["collector.num_steps=16"], "another one than that of process 0 in collector.num_steps"),
        ("mode", ["devices.mode=jit"], "`devices.mode` must be pmap or sharded"),
    ):
        processes = start_two(tmp_path / name, second=second)
        try:
            for process in processes:
                _, error = process.communicate(timeout=120)
                assert process.returncode == 2, error[-2000:]
                assert message in error
        finally:
            for process in processes:
                process.kill()
