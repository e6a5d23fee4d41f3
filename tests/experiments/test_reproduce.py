"""The scripts of papers: what they print last, and what they refuse at once."""

import json
import pathlib

import pytest


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
