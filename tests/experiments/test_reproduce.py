"""The scripts of papers: what they print last, and what they refuse at once."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
def test_a_paper_is_reproduced_and_reported(call_main, tmp_path):
    options = ("quick=true", "seeds=3", f"results_folder={tmp_path}", f"starts={tmp_path}/starts")
    arms = "arms=[onpolicy_best_of_n,offline_best_of_n]"
    result = call_main("reproduce.py", "paper=onpolicy_negative_gradient", arms, *options)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout.splitlines()[-1])
    assert set(told["means"]) == {"onpolicy_best_of_n", "offline_best_of_n"} and told["verdict"] in result.stdout
    page = call_main("report.py", f"results_folder={tmp_path}")
    assert page.returncode == 0, page.stderr
    path = pathlib.Path(json.loads(page.stdout.splitlines()[-1])["report"])
    assert "onpolicy_best_of_n" in path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_killed_reproduction_runs_what_was_missing_only(call_main, tmp_path):
    options = ("quick=true", "seeds=3", f"results_folder={tmp_path}", "arms=[onpolicy_best_of_n,offline_best_of_n]")
    command = ("paper=onpolicy_negative_gradient", *options)
    results = tmp_path / "onpolicy_negative_gradient.json"

    def finished():
        arms = json.loads(results.read_text(encoding="utf-8"))["arms"] if results.exists() else {}
        return {(name, seed): run for name, arm in arms.items() for seed, run in arm["runs"].items()}

    with open(tmp_path / "killed.log", "w", encoding="utf-8") as log:
        script = [sys.executable, str(ROOT / "experiments/reproduce.py"), *command]
        process = subprocess.Popen(script, cwd=tmp_path, env=dict(os.environ), stdout=log, stderr=log)
        deadline = time.monotonic() + 240.0
        while not finished() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it ended before it could be killed"
    before = finished()
    assert 0 < len(before) < 6
    result = call_main("reproduce.py", *command)
    assert result.returncode == 0, result.stderr
    after = finished()
    assert len(after) == 6
    assert {key: after[key] for key in before} == before, "minutes and numbers are those of the first run"


@pytest.mark.slow
def test_equilibria_are_found_once_without_randomness(call_main, tmp_path):
    options = ("arms=[vad_cfr,cfr_plus,psro_nash]", "quick=true", f"results_folder={tmp_path}")
    result = call_main("reproduce.py", "paper=vad_cfr_shor_psro", *options)
    assert result.returncode == 0, result.stderr
    results = json.loads((tmp_path / "vad_cfr_shor_psro.json").read_text(encoding="utf-8"))
    assert {name: len(arm["runs"]) for name, arm in results["arms"].items()} == dict.fromkeys(results["arms"], 1)
    means = json.loads(result.stdout.splitlines()[-1])["means"]
    assert means["cfr_plus"]["exploitability"] < means["vad_cfr"]["exploitability"] == pytest.approx(-0.338819)
    assert "exploitability_kuhn3" not in means["psro_nash"]  # Not played.


def test_unknown_papers_and_arms_are_refused_at_once(call_main):
    result = call_main("reproduce.py", "paper=gigppo")
    assert result.returncode != 0
    assert "`paper` must be a file of configs/paper, got 'gigppo'; try gigpo" in result.stderr
    result = call_main("reproduce.py", "paper=gigpo", "arms=[grpoo]")
    assert result.returncode != 0
    assert "`arms` must be of the paper gigpo, got 'grpoo'; try grpo" in result.stderr
