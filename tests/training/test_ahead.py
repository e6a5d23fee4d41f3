"""Programs that are compiled beside the main thread, and what a run imports and compiles before its first update."""

import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from contextlib import nullcontext
from types import SimpleNamespace

import jax
import pytest

from jaxagents.training import ahead, devices, loop
from jaxagents.training.ahead import Ahead, compile_ahead
from jaxagents.training.build import build, resolve
from jaxagents.training.launch import run
from tests import ROOT

# Of these, a run needs some after its first update, to save and to draw, and some never.
LATER = ("jinja2", "matplotlib", "orbax.checkpoint", "pandas", "scipy.stats", "seaborn", "tensorboardX")


class Program:
    """Stands for a compiled function, and notes where it was compiled."""

    def __init__(self, name, log, error=None):
        self.name, self.log, self.error = name, log, error

    def __call__(self):
        return self.name

    def lower(self, *inputs):
        return self

    def compile(self):
        self.log.append((self.name, threading.current_thread().name))
        if self.error is not None:
            raise self.error


@pytest.fixture
def stage(monkeypatch):
    """Returns `(name, log, every, error) -> stage` of four updates."""
    monkeypatch.setattr(ahead, "counts_left", lambda stage, counts: {})
    monkeypatch.setattr(ahead, "event_periods", lambda stage: {"evaluate": stage.every})

    def stage(name, log, every=2, error=None):
        train = Program(f"{name}/train", log)
        return SimpleNamespace(
            runner=SimpleNamespace(run=train, lower=train.lower, params=lambda state: state, abstract=None),
            evaluate=Program(f"{name}/evaluate", log, error),
            evaluate_last=Program(f"{name}/last", log),
            num_updates=4,
            every=every,
        )

    return stage


def test_programs_are_compiled_in_the_order_in_which_a_run_needs_them(stage):
    log = []
    stages = [stage("first", log), stage("second", log, every=4)]
    with compile_ahead(stages) as compiler:
        compiler.follow(0)  # Nothing, where training is not compiled ahead, as with several processes.
        compiler.train(0)
        compiler.wait(stages[0].runner.run)
        assert [name for name, _ in log] == ["first/train"]
        for _ in range(3):  # Chunks.
            compiler.follow(0)
        compiler.wait(stages[1].runner.run)
        assert [name for name, _ in log[1:]] == ["first/evaluate", "first/last", "second/train"]
        compiler.train(1)
        compiler.follow(1)
        compiler.wait(stages[1].evaluate_last)
        assert [name for name, _ in log[4:]] == ["second/last"]  # Nothing twice, and nothing that no chunk calls.
        compiler.wait(stages[1].evaluate)  # Nothing to wait for.
    assert {thread.partition("_")[0] for _, thread in log} == {"compiler"}


def test_what_goes_wrong_is_raised_where_the_program_is_needed(stage):
    one = stage("only", [], error=ValueError("`num_episodes` must be less"))
    with compile_ahead([one]) as compiler:
        compiler.train(0)
        compiler.follow(0)
        compiler.wait(one.runner.run)
        with pytest.raises(ValueError, match="`num_episodes` must be less"):
            compiler.wait(one.evaluate)


def test_what_has_not_begun_at_the_end_never_does(stage):
    log, begun, free = [], threading.Event(), threading.Event()
    one = stage("only", log)
    one.runner.run.compile = lambda: (begun.set(), free.wait(10))
    with pytest.raises(KeyboardInterrupt), compile_ahead([one]) as compiler:
        compiler.train(0)
        compiler.follow(0)
        begun.wait(10)
        raise KeyboardInterrupt
    free.set()
    with pytest.raises(CancelledError):
        compiler.wait(one.evaluate)
    assert log == []


def test_a_run_compiles_every_program_once(compose, tmp_path, caplog):
    previous = jax.config.jax_log_compiles
    jax.config.update("jax_log_compiles", True)
    try:
        run(compose("policy.encoder.hidden_sizes=[7]"), tmp_path)
    finally:
        jax.config.update("jax_log_compiles", previous)
    compiled = [record.getMessage() for record in caplog.records if "Finished XLA compilation" in record.getMessage()]
    for name in ("chunk", "evaluate"):
        assert sum(f"jit({name})" in message for message in compiled) == 1, compiled
    traced = [record.getMessage() for record in caplog.records if "Finished tracing" in record.getMessage()]
    assert sum(f" {name} " in message for message in traced for name in ("chunk", "update")) <= 2, traced


def test_a_run_is_the_same_without_the_thread(compose, tmp_path, rows_without_time, monkeypatch):
    run(compose(), tmp_path / "beside")
    alone = Ahead(*[lambda index: None] * 3)
    monkeypatch.setattr(loop, "compile_ahead", lambda stages: nullcontext(alone))
    run(compose(), tmp_path / "alone")
    assert rows_without_time(tmp_path / "beside") == rows_without_time(tmp_path / "alone")


def test_the_first_state_is_that_of_full_optimisation(compose, bits, monkeypatch):
    level, states = "xla_backend_optimization_level", []
    monkeypatch.setenv("XLA_FLAGS", "")
    assert devices._options_of_one_call(jax.devices()[0]) == {level: 1}
    for number in (1, 3):
        monkeypatch.setattr(devices, "_options_of_one_call", lambda device, number=number: {level: number})
        states.append(bits(build(resolve(compose())).stages[0].runner.init(0)))
    assert states[0] == states[1]


def test_a_run_imports_before_its_first_update_only_what_it_needs():
    code = f"""
import sys
from jaxagents.training.launch import build, require_traceable, resolve
from jaxagents.training.loop import train
from jaxagents.training.composition import compose
require_traceable(build(resolve(compose({str(ROOT / "configs")!r}, "world=cartpole", "algorithm=ppo", "quick=true"))))
print([name for name in {LATER} if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr
