"""Processes over Gloo on loopback, one device each: they train what one trains, and are refused and end together."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jaxagents.reporting.loggers import read_metrics
from tests import ROOT

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
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1"
    return subprocess.Popen(
        [sys.executable, "experiments/train.py", *OVERRIDES, *overrides, f"run_dir={run_dir}"],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags},
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


def wait_for_a_row(run_dir):
    """Waits until something is logged, and not for the empty file: then all processes are where they train."""
    deadline, path = time.time() + 300, run_dir / "metrics.jsonl"
    while not (path.exists() and path.stat().st_size) and time.time() < deadline:
        time.sleep(0.1)


def start_two(run_dir, *overrides, mode="sharded", second=()):
    """Starts both; the time of the start would give the second one another directory, `second` other overrides."""
    port = free_port()
    shared = [f"devices={mode}", "devices.distributed=true", f"devices.coordinator_address=localhost:{port}"]
    shared += ["devices.num_processes=2", *overrides]
    return [
        start(run_dir, *shared, "devices.process_id=0"),
        start(f"{run_dir}_later", *shared, "devices.process_id=1", *second),
    ]


def start_several(run_dir, count, *overrides):
    port = free_port()
    shared = ["devices=sharded", "devices.distributed=true", f"devices.coordinator_address=localhost:{port}"]
    shared += [f"devices.num_processes={count}", *overrides]
    return [start(run_dir, *shared, f"devices.process_id={number}") for number in range(count)]


def wait_for_rows(run_dir, processes, seconds=300):
    """Waits until a run has logged and saved something."""
    deadline = time.time() + seconds
    while not list(Path(run_dir).glob("checkpoints/last/*.digest.json")):
        assert time.time() < deadline and all(process.poll() is None for process in processes)
        time.sleep(0.1)


def assert_same_metrics(run_dir, reference):
    rows, wanted = read_metrics(run_dir), read_metrics(reference)
    assert len(rows) == len(wanted)
    for row, other in zip(rows, wanted, strict=True):
        assert row.keys() == other.keys()
        for name in row:
            if not name.startswith("time/"):
                # The explained variance divides by a variance that is nearly zero here.
                rtol = 1e-2 if name == "train/explained_variance" else 1e-4
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
    for name, begun, end in (("two_one", "both", start), ("one_two", "alone", start_two)):
        shutil.copytree(tmp_path / begun, tmp_path / name)
        for kind in ("last", "best"):
            for step in (8, 6):
                folder = tmp_path / name / "checkpoints" / kind
                subprocess.run(["rm", "-rf", str(folder / str(step)), str(folder / f"{step}.digest.json")], check=True)
        rest = end(tmp_path / name)
        finish(rest if isinstance(rest, list) else [rest])
        assert_same_metrics(tmp_path / name, tmp_path / "alone")


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
def test_four_processes_of_which_one_is_killed_end_within_a_minute_and_three_go_on(tmp_path):
    sizes = ["collector.num_envs=12", "training.log_every_steps=960", "training.checkpoint_every_steps=960"]
    sizes += ["evaluation.every_steps=1000000", "optimizer.anneal=false"]  # The rate does not depend on the length.
    processes = start_several(tmp_path / "run", 4, *sizes, "training.total_steps=100000000")
    try:
        wait_for_rows(tmp_path / "run", processes)
        processes[2].kill()
        killed = time.time()
        errors = [process.communicate(timeout=90)[1] for process in processes]
        assert time.time() - killed < 60.0
        assert all(process.returncode != 0 for process in processes)
    finally:
        for process in processes:
            process.kill()
    lines = [error for number, error in enumerate(errors) if number != 2]
    assert all("all 4 processes must stay until the end" in error or "heartbeat" in error for error in lines)
    assert any("start again with the same `run_dir`" in error for error in lines)
    done = max(row["update"] for row in read_metrics(tmp_path / "run"))
    end = (done // 10 + 2) * 960
    results = finish(start_several(tmp_path / "run", 3, *sizes, f"training.total_steps={end}"))
    assert {result["steps"] for result in results} == {end}
    finish([start(tmp_path / "alone", *sizes, f"training.total_steps={end}")])
    assert_same_metrics(tmp_path / "run", tmp_path / "alone")


@pytest.mark.slow
def test_a_signal_to_one_process_saves_and_ends_all_and_the_run_goes_on(tmp_path):
    sizes = ["training.checkpoint_every_steps=1000000", "evaluation.every_steps=1000000"]
    processes = start_several(tmp_path / "run", 2, *sizes, "training.total_steps=100000000")
    try:
        wait_for_a_row(tmp_path / "run")
        processes[1].send_signal(signal.SIGTERM)
        errors = [process.communicate(timeout=90)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [75, 75], errors
    assert all("the run has saved update" in error for error in errors)
    (step,) = [int(path.name.partition(".")[0]) for path in (tmp_path / "run/checkpoints/last").glob("*.json")]
    (result,) = finish([start(tmp_path / "run", *sizes, f"training.total_steps={(step + 2) * 32}")])
    assert result["steps"] == (step + 2) * 32


@pytest.mark.exhaustive
def test_a_signal_before_training_ends_a_process_that_has_joined_others():
    code = """
import os, signal, time
from jaxagents.training.processes import join_processes
join_processes("localhost:{port}", 1, 0, timeout_seconds=60)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(20)
"""
    done = subprocess.run([sys.executable, "-c", code.format(port=free_port())], cwd=ROOT, timeout=120, check=False)
    assert done.returncode == -signal.SIGTERM


@pytest.mark.exhaustive
def test_a_process_that_nobody_waits_for_says_where_it_looked_and_how_long(tmp_path):
    port = free_port()
    shared = ["devices=sharded", "devices.distributed=true", f"devices.coordinator_address=localhost:{port}"]
    shared += ["devices.num_processes=2", "devices.timeout_seconds=3"]
    for number in (0, 1):
        process = start(tmp_path / "run", *shared, f"devices.process_id={number}")
        _, error = process.communicate(timeout=120)
        assert process.returncode == 1, error[-2000:]
        assert f"all 2 processes must meet at localhost:{port} within `devices.timeout_seconds`" in error
