"""Jobs of a sweep: separate processes, which end with the sweep."""

import ctypes
import json
import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.hydra_config import HydraConfig

from jaxagents.training.arguments import is_sweep, write_argument
from jaxagents.training.composition import given_arguments
from jaxagents.training.interrupts import PREEMPTED, SWEEP_JOB, TERMINATED, when_interrupted

TRACEBACK = "HYDRA_FULL_ERROR"
_PARENT = "JAXAGENTS_SWEEP_PROCESS"  # Environment variable of the jobs.
_PR_SET_PDEATHSIG = 1  # See prctl(2).


def end_with_sweep() -> None:
    """Sends SIGTERM to a job of a sweep when its parent process ends, so that the job saves and ends."""
    parent = os.environ.pop(_PARENT, None)
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # The parent ended before the watch began.
        raise SystemExit(TERMINATED)


@contextmanager
def ending_at_sigterm(arguments: Sequence[str]) -> Iterator[None]:
    """Lets SIGTERM end a sweep like an error, so that launchers end the processes that they have started.

    Args:
        arguments: arguments of the command line; without a sweep, nothing happens.
    """

    def end(number: int, frame: Any) -> NoReturn:
        raise SystemExit(PREEMPTED)

    if not is_sweep(arguments):
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


@contextmanager
def _passing_on_signals(process: subprocess.Popen) -> Iterator[list[int]]:
    """Passes SIGTERM and Ctrl-C on to a job, and waits for its end; yields a list of the received SIGTERMs."""
    passed_on: list[int] = []

    def pass_on(number: int, frame: Any) -> None:
        passed_on.append(number)
        process.send_signal(number)

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, pass_on) if in_main else None
    try:
        yield passed_on
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def run_process(script: Path, show_traceback: bool) -> float:
    """Runs a job of a sweep as it would run alone, records how it ended, and returns its final return for sweepers."""
    job = HydraConfig.get()
    folder = job.runtime.output_dir
    quoted = folder.replace("\\", "\\\\").replace("'", "\\'")
    arguments = [*given_arguments(), f"hydra.run.dir='{quoted}'", f"--config-name={job.job.config_name}"]
    arguments += [f"--config-dir={s.path}" for s in job.runtime.config_sources if s.provider == "command-line"]
    environment = {**os.environ, TRACEBACK: str(int(show_traceback)), _PARENT: str(os.getpid())}
    last = ""
    goes_on = f"the same command with hydra.sweep.dir={shlex.quote(str(job.sweep.dir))} goes on with the sweep"
    with (
        when_interrupted(lambda: goes_on),
        subprocess.Popen(
            [sys.executable, str(script), *arguments], stdout=subprocess.PIPE, text=True, env=environment
        ) as process,
        _passing_on_signals(process) as passed_on,
    ):
        for line in process.stdout or ():
            print(line, end="", flush=True)
            last = line
    if passed_on:
        print(f"Asked to end, the sweep has asked its job; {goes_on}.", file=sys.stderr, flush=True)
        raise SystemExit(PREEMPTED)  # With any other exception, Hydra would start the next job.
    failed = process.returncode != 0
    result = None if failed or not last.startswith("{") else json.loads(last)
    ended = {"overrides": given_arguments(), "folder": folder, "exit_code": process.returncode, "result": result}
    with open(os.environ[SWEEP_JOB], "a", encoding="utf-8") as notes:
        notes.write(json.dumps(ended) + "\n")
    returns = ((result or {}).get("evaluation") or {}).get("episode_return", math.nan)
    return statistics.fmean(returns) if isinstance(returns, list) else float(returns)


def close_sweep(jobs: Sequence[Mapping[str, Any]], *, compare: str | None) -> None:
    """Reports which jobs failed, and how to compare runs; the last line on stdout is one JSON object."""
    failed = [job for job in jobs if job["exit_code"]]
    for job in failed:
        print(f"Failed with exit code {job['exit_code']}: {' '.join(job['overrides'])}", file=sys.stderr)
    print(f"{len(jobs) - len(failed)} of {len(jobs)} jobs of the sweep are done.", file=sys.stderr, flush=True)
    if compare and len(jobs) - len(failed) > 1:
        paths = write_argument("paths", os.path.relpath(os.path.commonpath([job["folder"] for job in jobs])))
        print(f"Next: {compare} {paths}", file=sys.stderr, flush=True)
    print(json.dumps({"sweep": jobs}))
    sys.stdout.flush()
    if failed:
        raise SystemExit(1)
