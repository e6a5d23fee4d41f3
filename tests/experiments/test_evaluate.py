"""Tests of experiments/evaluate.py and the evaluation of runs behind it."""

import json

import numpy as np
import pytest

from jaxagents.training.evaluate import evaluate_run, print_evaluation, summarize


@pytest.fixture(scope="module")
def result(call_main, run_dir):
    overrides = (f"path={run_dir}", "num_episodes=8", "seed=5", "greedy=false", "devices.compilation_cache=null")
    result = call_main("evaluate.py", *overrides)
    assert result.returncode == 0, result.stderr
    return result


@pytest.mark.slow
def test_the_last_line_is_what_evaluate_run_returns(result, run_dir):
    printed = json.loads(result.stdout.splitlines()[-1])
    assert printed == evaluate_run(run_dir, num_episodes=8, seed=5, greedy=False)
    assert printed["which"] == "best"
    assert printed["num_episodes"] == 8
    assert printed["environment"] == "t-maze"
    metrics = printed["metrics"]
    assert set(metrics) == {"episode_return", "episode_length", "success", "finished"}
    assert metrics["episode_length"]["low"] <= metrics["episode_length"]["mean"] <= 9.0
    # Each success is worth 1 and each wrong turn -0.1; an episode without a turn is cut by the limit, and is finished.
    assert metrics["finished"] == {"mean": 1.0, "low": 1.0, "high": 1.0}


@pytest.mark.exhaustive
def test_the_table_says_what_was_evaluated(result):
    lines = result.stdout.splitlines()[:-1]
    sentence = " ".join(line.strip() for line in lines[:3])
    assert "best checkpoint" in sentence
    assert "8 sampled episodes in t-maze." in sentence
    assert "95 % interval over episodes" in result.stdout
    rows = [line.split()[1] for line in lines if line.startswith("│")]
    assert rows == ["episode_return", "episode_length", "finished", "success"]


@pytest.mark.exhaustive
def test_options_reach_the_evaluation(run_dir):
    greedy = evaluate_run(run_dir, num_episodes=8, seed=5)
    assert greedy["greedy"]  # As the run evaluated itself.
    sampled = [evaluate_run(run_dir, num_episodes=8, seed=seed, greedy=False)["metrics"] for seed in (5, 6)]
    assert sampled[0] != greedy["metrics"]
    assert sampled[0] != sampled[1]
    assert evaluate_run(run_dir, num_episodes=8, which="last")["which"] == "last"
    assert evaluate_run(run_dir, num_episodes=8, level=0)["level"] == 0


@pytest.mark.exhaustive
def test_a_wrong_path_is_refused_by_the_main(call_main, run_dir):
    result = call_main("evaluate.py", f"path={run_dir.parent}")
    assert result.returncode != 0
    assert f"`path` must be a run directory, with a config.yaml in it, got {run_dir.parent}; try {run_dir}." in (
        result.stderr
    )


@pytest.mark.slow
@pytest.mark.parametrize("script", ["evaluate.py", "play.py"])
def test_levels_that_a_world_does_not_have_are_refused_by_the_mains(call_main, run_dir, script):
    result = call_main(script, f"path={run_dir}", "level=5", "devices.compilation_cache=null")
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("Error: `level` must be ") and len(result.stderr.splitlines()) == 1


def test_summary_of_one_seed_is_over_episodes():
    summary = summarize({"x": np.array([0.0, 1.0, 2.0, 9.0]), "y": np.array([2.0, 2.0])})
    assert summary["x"]["mean"] == 3.0
    # Deviation 4.082483, t(0.975, 3) = 3.182446: half of the width is 3.182446 x 4.082483 / 2.
    assert summary["x"]["high"] == pytest.approx(3.0 + 6.496139) and summary["x"]["low"] == pytest.approx(-3.496139)
    assert summary["y"] == {"mean": 2.0, "low": 2.0, "high": 2.0}


def test_summary_of_several_seeds_is_over_their_means():
    # Episodes differ, the seeds' means do not: the interval is a point.
    summary = summarize({"x": np.array([[0.0, 4.0], [1.0, 3.0]])})
    assert summary["x"] == {"mean": 2.0, "low": 2.0, "high": 2.0, "seeds": [2.0, 2.0]}
    # Two seeds say little: t(0.975, 1) = 12.706205, and the error of their mean is 2.
    assert summarize({"x": np.array([[0.0, 0.0], [4.0, 4.0]])})["x"]["low"] == pytest.approx(2.0 - 25.412409)
    assert summarize({"x": np.array([7.0])})["x"] == {"mean": 7.0, "low": None, "high": None}


def test_the_table_of_several_seeds(capsys):
    evaluation = {
        **{"stage": "a[b]", "environment": "w", "which": "last", "step": 3, "num_seeds": 2, "num_episodes": 4},
        **{"greedy": True, "level": 1, "held_out": False},
        "metrics": {"m": {"mean": 1.23456, "low": 1.0, "high": 2.0}},
    }
    print_evaluation(evaluation)
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith(
        "a[b], last checkpoint (update 3): 4 greedy episodes of each seed in w at level 1 on tasks of training."
    )
    assert "95 % interval over 2 seeds" in text
    assert "1.235" in text and "1 to 2" in text


@pytest.mark.slow
def test_evaluation_leaves_the_run_as_it_is(run_dir):
    files = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()}
    evaluate_run(run_dir, num_episodes=1)
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()} == files


@pytest.mark.exhaustive
def test_the_suite_of_worlds_prints_a_table_and_its_rows(call_main):
    overrides = ("worlds.names=[guess_number]", "quick=true", "devices.compilation_cache=null")
    result = call_main("evaluate.py", "suite=worlds", *overrides)
    assert result.returncode == 0, result.stderr
    (row,) = json.loads(result.stdout.splitlines()[-1])
    assert (row["world"], row["level"], row["expert"]["mean"], row["sft"]) == ("guess_number", 0, 1.0, None)
    result = call_main("evaluate.py", "suite=games")
    assert "`suite` must be worlds, grpo or null, got 'games'; try suite=worlds." in result.stderr


@pytest.mark.exhaustive
def test_teams_of_all_seeds_and_runs_play_with_each_other(call_main, tmp_path):
    for name, seeds in (("a", 2), ("b", 1)):
        options = ("world=lbf_pair", "algorithm=ppo", "quick=true", "logging.curves=false", f"seeds={seeds}")
        assert call_main("train.py", *options, f"run_dir={tmp_path / name}").returncode == 0
    paths = (f"path={tmp_path / 'a'}", f"cross_play=[{tmp_path / 'b'}]")
    result = call_main("evaluate.py", *paths, "num_episodes=8")
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["teams"] == ["a[0]", "a[1]", "b"] and np.shape(found["episode_return"]) == (3, 3)
    own = evaluate_run(tmp_path / "b", num_episodes=8)["metrics"]["episode_return"]["mean"]
    assert found["episode_return"][2][2] == pytest.approx(own, abs=1e-6)
    alone = call_main("evaluate.py", f"path={tmp_path / 'b'}", "cross_play=[]")
    assert alone.returncode == 2 and "`cross_play` must have two teams or more, got b" in alone.stderr
