"""The scripts of papers: what they print last, and what they refuse at once."""

import json
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from jaxagents.papers.runs import read_run
from tests import ROOT

BANDIT = "paper=onpolicy_negative_gradient"


def last_line(result):
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.slow
def test_papers_are_reproduced_and_reported(call_main, tmp_path):
    folder = f"results_folder={tmp_path}"
    result = call_main("reproduce.py", BANDIT, "quick=true", folder, "arms=reinforce,onpolicy_rwr", "seeds=10-11")
    assert result.returncode == 0, result.stderr
    assert last_line(result)["verdicts"] == {"onpolicy_negative_gradient": "trial, no verdict (4 of 60 runs)"}
    assert "REINFORCE" not in result.stderr and "onpolicy_rwr, seed 11: " in result.stderr
    status = call_main("reproduce.py", BANDIT, "status=true", "quick=true", folder)
    assert status.returncode == 0 and "4 of 12" in status.stdout, status.stdout + status.stderr
    page = call_main("report.py", folder, "paper=onpolicy_negative_gradient", "quick=true", f"page={tmp_path}/a.html")
    assert page.returncode == 0 and "trial, no verdict (4 of 60 runs)" in (tmp_path / "a.html").read_text(), page.stderr


@pytest.mark.slow
def test_a_study_is_measured_as_one_batch(call_main, tmp_path):
    command = ("reproduce.py", "study=didactic_bandit", "quick=true", f"results_folder={tmp_path}")
    arms = "arms=[onpolicy_best_of_n,onpolicy_rwr]"
    result = call_main(*command, arms, "workers=2")
    assert result.returncode == 0, result.stderr
    # Two seeds of a small variant: too few for a word, where the check is held.
    assert last_line(result)["words"]["onpolicy_rwr"] in ("too few seeds", "no headroom")
    lines = (tmp_path / "studies" / "lm_sft" / "didactic_bandit.jsonl").read_text().splitlines()
    assert sorted((json.loads(line)["arm"], json.loads(line)["seed"]) for line in lines) == [
        *(("onpolicy_best_of_n", 100), ("onpolicy_best_of_n", 101), ("onpolicy_rwr", 100), ("onpolicy_rwr", 101))
    ]
    again = call_main(*command, "status=true")
    assert again.returncode == 0 and "not run" in again.stdout, again.stderr
    few = call_main(*command, arms, "confirm=true")
    assert few.returncode == 2 and "`lm_sft/didactic_bandit` must show what its methods are about" in few.stderr


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(tmp_path):
    command = ["paper=debate", "quick=true", f"results_folder={tmp_path}", "workers=2"]
    process = subprocess.Popen([sys.executable, str(ROOT / "experiments/reproduce.py"), *command], cwd=tmp_path)

    def workers():
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = entry.read_bytes().split(b"\0")
            except OSError:
                continue
            if f"results_folder={tmp_path}".encode() in words and any(word.startswith(b"worker=") for word in words):
                found.append(entry)
        return found

    deadline = time.monotonic() + 120.0
    while len(workers()) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(workers()) == 2
    time.sleep(3.0)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60.0
    while workers() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert workers() == []


@pytest.mark.exhaustive
def test_equilibria_are_found_once_without_randomness(call_main, tmp_path):
    arms = "arms=vad_cfr,cfr_plus,psro_nash"
    result = call_main("reproduce.py", "paper=vad_cfr_shor_psro", arms, "quick=true", f"results_folder={tmp_path}")
    assert result.returncode == 0, result.stderr
    runs = {path: read_run(path) for path in (tmp_path / "runs").rglob("0.json")}
    assert len(runs) == 3
    last = sorted(run.curves["exploitability_leduc2"]["values"][-1] for run in runs.values())
    assert -0.33882 in [round(value, 5) for value in last]


def test_help_that_nobody_reads_ends_without_a_word():
    command = [sys.executable, str(ROOT / "experiments" / "reproduce.py"), "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == "" and process.wait() == 128 + signal.SIGPIPE
