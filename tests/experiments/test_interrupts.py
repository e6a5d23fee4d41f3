"""Ctrl-C in the midst of the mains: one line, exit code 130, and what is left goes on."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxagents.training.command import how_to_go_on
from jaxagents.training.interrupts import when_interrupted
from tests import ROOT

LONG = (
    "experiment=ppo_cartpole",
    *("environment=tmaze", "environment.corridor_length=2", "policy.encoder.hidden_sizes=[8]", "collector.num_steps=8"),
    *("training.total_steps=1e9", "training.log_every_steps=20000", "training.checkpoint_every_steps=20000"),
    *("evaluation.every_steps=1e9", "logging.tensorboard=false", "logging.progress=false"),
)


@pytest.fixture
def interrupt(tmp_path):
    """Returns `(is_time, script, *overrides, told=1) -> lines on stderr`: a main that hears Ctrl-C when it is time."""

    def call(is_time, script, *overrides, most=1):
        command = [sys.executable, str(ROOT / "experiments" / script), *overrides]
        errors = tmp_path / "stderr"
        with open(errors, "w", encoding="utf-8") as stderr:
            # A shell in the background has its commands, and theirs, ignore Ctrl-C.
            before = signal.signal(signal.SIGINT, signal.default_int_handler)
            options = {"stdout": subprocess.PIPE, "stderr": stderr, "start_new_session": True}
            process = subprocess.Popen(command, cwd=tmp_path, **options)
            signal.signal(signal.SIGINT, before)
            deadline = time.time() + 240
            while not is_time(process.pid, errors.read_text()) and process.poll() is None and time.time() < deadline:
                time.sleep(0.02)
            assert process.poll() is None, errors.read_text()
            os.killpg(process.pid, signal.SIGINT)  # As a terminal does.
            try:
                process.communicate(timeout=120)
            finally:
                process.kill()
        lines = errors.read_text().splitlines()
        assert process.returncode == 130, lines
        assert not [line for line in lines if "Traceback" in line or "KeyboardInterrupt" in line], lines
        assert [line.startswith("Interrupted") for line in lines[-most:]] == [True] * most, lines
        assert sum(line.startswith("Interrupted") for line in lines) == most, lines
        return lines

    return call


def has_loaded_jax(pid, errors):
    return "jaxlib" in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.slow
def test_a_run_says_how_it_goes_on_and_does(interrupt, tmp_path):
    run_dir = tmp_path / "a run"
    metrics, checkpoints = run_dir / "metrics.jsonl", run_dir / "checkpoints" / "last"

    def has_saved(pid, errors):
        return metrics.exists() and any(path.name.isdigit() for path in checkpoints.iterdir())

    lines = interrupt(has_saved, "train.py", *LONG, f"run_dir='{run_dir}'")
    assert len(lines) == 2  # What begins, and what ended.
    again = re.fullmatch(
        r"Interrupted; python experiments/train\.py (.*) goes on from the last checkpoint\.", lines[-1]
    )
    before = metrics.read_text()

    def has_gone_on(pid, errors):
        return len(metrics.read_text()) > len(before)

    lines = interrupt(has_gone_on, "train.py", *shlex.split(again[1]))
    assert any(line.startswith("Resumed ") for line in lines), lines


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "experiments").glob("[a-z]*.py")))
def test_imports_of_every_main_end_in_one_line(interrupt, script):
    def has_begun_to_import(pid, errors):
        return "_yaml" in Path(f"/proc/{pid}/maps").read_text()  # Of omegaconf's, long before the main.

    assert interrupt(has_begun_to_import, script) == ["Interrupted."]


def test_threads_print_nothing_of_a_save_that_was_broken_off_until_the_process_has_ended():
    program = """
import logging, sys
import absl.logging
from jaxagents.training.interrupts import INTERRUPTED, end_at_once

def log(text, path):
    absl.logging.get_absl_logger().handle(logging.LogRecord("absl", logging.ERROR, path, 378, text, (), None))

class Stdout:  # Flushed after everything else, just before the end.
    def flush(self):
        log("of a thread", "/lib/orbax/checkpoint/future.py")
        log("of the main thread", "/lib/jaxagents/run.py")

with end_at_once():
    sys.stdout = Stdout()
    log("while it ends", "/lib/orbax/checkpoint/future.py")
    raise SystemExit(INTERRUPTED)
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 130, ended.stderr
    assert [line.rpartition("] ")[2] for line in ended.stderr.splitlines()] == ["of the main thread"]


@pytest.mark.exhaustive
def test_a_run_that_has_not_begun_leaves_nothing_to_go_on_with(interrupt, tmp_path):
    lines = interrupt(has_loaded_jax, "train.py", *LONG, f"run_dir={tmp_path}/run")
    assert len(lines) == 1
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.slow
def test_jobs_of_a_sweep_end_with_it(interrupt, tmp_path):
    sweep = tmp_path / "sweep"

    def has_trained(pid, errors):
        return list(sweep.glob("*/metrics.jsonl"))

    lines = interrupt(has_trained, "train.py", "-m", *LONG, "seed=0,1", f"hydra.sweep.dir={sweep}", most=2)
    # The job, and the sweep; their order is open.
    assert any(f"train.py resume={sweep}/0_seed=0 goes on" in line for line in lines)
    assert any(line.endswith(f"with hydra.sweep.dir={sweep} goes on with the sweep.") for line in lines)
    assert [path.name for path in sweep.iterdir() if path.is_dir()] == ["0_seed=0"]


@pytest.mark.exhaustive
def test_sigterm_to_a_sweep_ends_its_job_too(tmp_path):
    sweep = tmp_path / "sweep"
    command = [sys.executable, str(ROOT / "experiments/train.py"), "-m", *LONG, "seed=0,1", f"hydra.sweep.dir={sweep}"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.time() + 240
        while not list(sweep.glob("*/metrics.jsonl")) and time.time() < deadline:
            time.sleep(0.05)
        (job,) = list_children(process.pid)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 75, errors
    assert "Asked to end, the run has saved update" in errors and f"hydra.sweep.dir={sweep} goes on" in errors
    assert not Path(f"/proc/{job}").exists() and [p.name for p in sweep.iterdir() if p.is_dir()] == ["0_seed=0"]


HANGS = "import time\n\n\ndef score(prompts, completions, **columns):\n    time.sleep(1000)\n"


@pytest.mark.exhaustive
def test_a_reward_that_hangs_ends_with_the_second_ctrl_c(tmp_path):
    (tmp_path / "my_hanging.py").write_text(HANGS.replace("time.sleep", "open('called', 'w').close()\n    time.sleep"))
    choices = ("world=bandit", "algorithm=grpo", "collector=rewarded", "quick=true", "stages=[]", "run_dir=run")
    reward = "collector.reward={_target_: my_hanging.score, _partial_: true}"
    command = [sys.executable, str(ROOT / "experiments/train.py"), *choices, reward]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    try:
        deadline = time.time() + 240
        while not (tmp_path / "called").exists() and time.time() < deadline and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1].startswith("Interrupted; python experiments/train.py resume="), errors


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("script", "overrides"),
    [("evaluate.py", ["path=."]), ("reproduce.py", ["paper=donor_game_evolution", "quick=true", "results_folder=r"])],
)
def test_other_commands_end_in_one_line(interrupt, script, overrides):
    assert len(interrupt(has_loaded_jax, script, *overrides)) == 1


@pytest.mark.exhaustive
def test_workers_leave_it_to_the_command_to_say(interrupt):
    settings = ("paper=donor_game_evolution", "quick=true", "results_folder=r", "workers=2")
    lines = interrupt(lambda pid, errors: list_children(pid), "reproduce.py", *settings)
    assert lines[-1] == "Interrupted; what is stored stays, and the same command runs the rest."


@pytest.mark.exhaustive
def test_pages_that_are_not_written_are_said(interrupt, tmp_path):
    (tmp_path / "r").mkdir()
    lines = interrupt(lambda pid, errors: "Reading" in errors, "report.py", "results_folder=r", "site=true")
    assert lines[1:] == ["Interrupted; what is written stays, and the same command writes the rest."]


def list_children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_what_is_said_of_an_interrupted_run(tmp_path):
    assert how_to_go_on(tmp_path) == "nothing is trained yet"
    (tmp_path / "arguments.yaml").write_text("[]")
    assert how_to_go_on(tmp_path).endswith(f"train.py resume={tmp_path} goes on from the last checkpoint")
    with pytest.raises(KeyboardInterrupt, match="half is there"), when_interrupted(lambda: "half is there"):
        raise KeyboardInterrupt
    with when_interrupted(lambda: "never"):
        pass
