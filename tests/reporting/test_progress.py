import io
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.reporting.progress import open_progress
from jaxagents.types import Mean


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock():
    now = [100.0]

    def read():
        return now[0]

    read.advance = lambda seconds: now.__setitem__(0, now[0] + seconds)
    return read


def test_lines_come_every_ten_seconds_and_at_the_end(clock):
    stream = io.StringIO()
    progress = open_progress(1_000_000, "ppo", stream=stream, clock=clock)
    for step in range(1, 14):
        progress.update(step * 50_000, {"rollout/return": 10.0 * step, "train/loss": 3.0})
        clock.advance(1.0)
    progress.close()
    assert stream.getvalue().splitlines() == [
        "ppo: 5 %, 50k/1M steps, return 10, best 10",
        "ppo: 55 %, 550k/1M steps, 50k/s, 0:00:09 left, return 110, best 110",
        "ppo: 65 %, 650k/1M steps, 50k/s, 0:00:07 left, return 130, best 130",
    ]


def test_a_stage_that_plays_nothing_tells_its_loss(clock):
    stream = io.StringIO()
    progress = open_progress(100, "sft", stream=stream, clock=clock, stages={"warm_start": 40, "reinforcement": 60})
    progress.update(40, {"train/loss": np.array([1.0, 2.0, math.nan]), "eval/return": 0.5})
    clock.advance(10.0)
    progress.update(100, {"train/loss": 7.0, "rollout/return": 0.25})
    assert stream.getvalue().splitlines() == [
        "sft: 40 %, 40/100 steps, loss 1.5, eval 0.5, best 0.5",
        "sft: 100 %, 100/100 steps, return in reinforcement 0.25, eval 0.5, best 0.5",
    ]


def test_returns_of_demonstrations_and_of_the_policy_are_told_apart(clock):
    stream = io.StringIO()
    progress = open_progress(100, "grpo", stream=stream, clock=clock, stages={"warm_start": 40, "reinforcement": 60})
    for steps, value in ((40, 0.61), (60, 0.02)):
        progress.update(steps, {"rollout/episode_return": value})
        clock.advance(10.0)
    assert stream.getvalue().splitlines() == [
        "grpo: 40 %, 40/100 steps, return in warm_start 0.61, best 0.61",
        "grpo: 60 %, 60/100 steps, return in reinforcement 0.02, best 0.02",
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_steps_beyond_the_plan_do_not_pass_a_hundred_percent(clock, terminal):
    stream = Terminal() if terminal else io.StringIO()
    progress = open_progress(96, "dapo", stream=stream, clock=clock)
    for played, planned in ((64, 32), (96, 64), (128, 96)):
        progress.update(played, {}, planned)
        clock.advance(10.0)
    progress.close()
    if terminal:
        assert "100%" in stream.getvalue()
        assert "133" not in stream.getvalue()
    else:
        assert stream.getvalue().splitlines() == [
            "dapo: 33 %, 64 steps",
            "dapo: 67 %, 96 steps, 3.2/s, 0:00:10 left",
            "dapo: 100 %, 128 steps, 3.2/s",
        ]


def test_the_last_state_is_told_once(clock):
    stream = io.StringIO()
    progress = open_progress(10, "ppo", stream=stream, clock=clock)
    progress.update(10, {})
    progress.close()
    assert stream.getvalue() == "ppo: 100 %, 10/10 steps\n"
    silent = io.StringIO()
    open_progress(10, "ppo", stream=silent, clock=clock).close()
    assert silent.getvalue() == ""


def test_speed_is_that_of_the_last_half_minute(clock):
    stream = io.StringIO()
    progress = open_progress(10**9, "ppo", stream=stream, clock=clock)
    steps = 0
    for speed in (10, 1000):
        for _ in range(50):
            steps += speed
            clock.advance(1.0)
            progress.update(steps, {})
    assert " 1k/s" in stream.getvalue().splitlines()[-1]


def test_speed_and_time_left_are_those_of_the_present_stage(clock):
    stream = io.StringIO()
    progress = open_progress(1100, "grpo", stream=stream, clock=clock, stages={"warm_start": 1000, "main": 100})
    for steps in (400, 800, 1000, 1001, 1011):  # 40 a second, then one a second.
        progress.update(steps, {})
        clock.advance(10.0)
    assert stream.getvalue().splitlines() == [
        "grpo: 36 %, 400/1.1k steps",
        "grpo: 73 %, 800/1.1k steps, 40/s, 0:00:05 left of warm_start",
        "grpo: 91 %, 1k/1.1k steps, 30/s",
        "grpo: 91 %, 1k/1.1k steps",
        "grpo: 92 %, 1.01k/1.1k steps, 1/s, 0:01:29 left",
    ]


def test_best_is_that_of_the_evaluations_over_finite_seeds(clock):
    stream = io.StringIO()
    progress = open_progress(100, "ppo", stream=stream, clock=clock)
    progress.update(1, {"eval/episode_return": np.array([3.0, 5.0]), "rollout/return": jnp.array([9.0, math.nan])})
    clock.advance(10.0)
    progress.update(2, {"eval/episode_return": 2.0, "rollout/return": Mean(jnp.float32(0), jnp.float32(0))})
    assert stream.getvalue().splitlines() == [
        "ppo: 1 %, 1/100 steps, return 9, eval 4, best 4",
        "ppo: 2 %, 2/100 steps, 0.1/s, 0:16:20 left, return 9, eval 2, best 4",
    ]


def test_a_terminal_gets_a_bar(clock, capsys):
    stream = Terminal()
    progress = open_progress(100, "ppo[seed]", stream=stream, clock=clock)
    print("to stdout")
    progress.message("[kept] literally")
    progress.update(50, {"rollout/return": 7.0})
    progress.close()
    assert "ppo[seed]" in stream.getvalue()
    assert "[kept] literally" in stream.getvalue()
    assert "50/100 steps" in stream.getvalue()
    assert capsys.readouterr().out == "to stdout\n"


def test_the_default_is_stderr_and_stdout_stays_empty(capsys):
    progress = open_progress(100, "ppo")
    progress.update(10, {})
    progress.message("hello")
    progress.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "ppo: 10 %, 10/100 steps\nhello\n"


def test_without_progress_there_are_messages_only():
    stream = io.StringIO()
    progress = open_progress(100, "ppo", enabled=False, stream=stream)
    progress.update(1, {})
    progress.message("hello")
    progress.close()
    assert stream.getvalue() == "hello\n"


def test_what_is_not_shown_starts_no_backend():
    program = """
from jax._src import xla_bridge
from jaxagents.reporting.progress import open_progress
open_progress(100, "ppo", enabled=False)
print(xla_bridge.backends_are_initialized())
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


@pytest.mark.parametrize("enabled", [True, False])
def test_other_processes_are_silent(enabled, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    stream = io.StringIO()
    progress = open_progress(100, "ppo", enabled=enabled, stream=stream)
    progress.update(1, {})
    progress.message("hello")
    progress.close()
    assert stream.getvalue() == ""


def test_no_steps_are_refused():
    with pytest.raises(ValueError, match="`total_steps` must be at least 1, got 0"):
        open_progress(0, "ppo")
