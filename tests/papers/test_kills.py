"""`reproduce.py` killed by SIGKILL at different moments: what is stored stays as it is, and is not run again."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from jaxagents.papers.leases import held_leases
from jaxagents.papers.runs import RUNS_FOLDER, read_run
from tests import ROOT

ARMS, SEEDS = 5, 6
COMMAND = (
    *(sys.executable, str(ROOT / "experiments" / "reproduce.py"), "paper=donor_game_evolution", "workers=2"),
    *("seeds=40-45", "seeds_at_once=1"),
)
PATIENCE = 300.0  # seconds, of which a busy machine takes some


def wait_until(condition, process):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None and time.monotonic() < end, "the command ended before it was killed"
        time.sleep(0.02)


def stored_runs(results):
    """Returns what the file system says of every run: a file that is written again is another one."""
    found = {}
    for path in (results / RUNS_FOLDER).glob("*/[0-9]*.json"):
        status = path.stat()
        found[path] = (status.st_ino, status.st_mtime_ns, path.read_bytes())
    return found


def workers_of(process):
    return [int(pid) for pid in pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def is_running(pid):
    """Returns whether a process runs; one that has ended and that nobody has asked for is none."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def kill(process, who):
    """Ends the command and its workers, the command alone, or one of its workers."""
    workers = workers_of(process)
    victims = {"all": [process.pid, *workers], "command": [process.pid], "worker": workers[:1]}[who]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    if who != "worker":
        process.wait()
        while any(map(is_running, workers)):  # Without the command its workers end by themselves.
            time.sleep(0.02)


@pytest.mark.exhaustive
def test_five_kills_lose_nothing_and_run_nothing_twice(tmp_path):
    results, log = tmp_path / "results", tmp_path / "log"
    seen, process = {}, None
    # The first kill finds the workers at their first runs; what a killed worker leaves, the other one runs.
    for who, least in (("worker", 0), ("command", 4), ("all", 10), ("all", 15), ("worker", 20)):
        if process is None:
            with log.open("ab") as file:
                process = subprocess.Popen([*COMMAND, f"results_folder={results}"], stdout=file, stderr=file)
        wait_until(lambda least=least: len(stored_runs(results)) >= least and held_leases(results), process)
        kill(process, who)
        now = stored_runs(results)
        assert seen.items() <= now.items(), "a run was lost, or written again"
        seen, process = now, process if who == "worker" else None
    process.wait(timeout=PATIENCE)
    now = stored_runs(results)
    assert seen.items() <= now.items() and len(now) == ARMS * SEEDS
    assert all(read_run(path).status == "done" for path in now) and not held_leases(results)
    ended = re.findall(r"donor_game_evolution: (\w+), seed (\d+):", log.read_text())
    # A worker that is killed between writing and telling has told nothing.
    assert len(ended) == len(set(ended)) and ARMS * SEEDS - 8 <= len(ended) <= ARMS * SEEDS


@pytest.mark.slow
def test_kills_of_a_batch_lose_nothing_and_run_nothing_twice(tmp_path):
    path = tmp_path / "results" / "studies" / "multiagent" / "donor_game.jsonl"
    options = ("study=donor_game", "seeds=140-145", "workers=2", f"results_folder={tmp_path / 'results'}")

    def stored():
        return path.read_bytes() if path.exists() else b""

    seen = b""
    for who, least in (("command", 1), ("all", 8)):
        process = subprocess.Popen([*COMMAND[:2], *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda least=least, on=process: stored().count(b"\n") >= least and workers_of(on), process)
        kill(process, who)
        assert stored().startswith(seen), "a run was lost, or written again"
        seen = stored()
    done = subprocess.run([*COMMAND[:2], *options], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    runs = [(line["address"], line["seed"]) for line in lines]
    assert len(runs) == len(set(runs)) and len(runs) % 6 == 0 and stored().startswith(seen)
