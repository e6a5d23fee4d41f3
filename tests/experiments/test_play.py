"""Tests of experiments/play.py."""

import json

import pytest
from PIL import Image


@pytest.fixture(scope="module")
def result(call_main, run_dir):
    overrides = ("num_episodes=2", "greedy=false", "seed=3", "fps=10", "devices.compilation_cache=null")
    result = call_main("play.py", f"path={run_dir}", *overrides)
    assert result.returncode == 0, result.stderr
    return result


@pytest.mark.slow
def test_the_last_line_names_the_animation(result, run_dir):
    last = json.loads(result.stdout.splitlines()[-1])
    assert last["gif"] == str(run_dir / "play.gif")
    assert len(last["episode_return"]) == len(last["episode_length"]) == 2
    with Image.open(last["gif"]) as gif:
        assert gif.is_animated
        assert gif.info["duration"] == 100
    assert 'alt="The agent at play" src="data:image/gif;base64,' in (run_dir / "report.html").read_text()


@pytest.mark.exhaustive
def test_every_frame_is_printed(result):
    *lines, last = result.stdout.splitlines()
    lengths = json.loads(last)["episode_length"]
    captions = [line for line in lines if line.startswith("episode ")]
    assert len(captions) == sum(length + 1 for length in lengths)
    assert captions[0] == "episode 1  step 0  return 0"
    for number, (length, value) in enumerate(zip(lengths, json.loads(last)["episode_return"]), start=1):
        ends = [line for line in captions if line.startswith(f"episode {number}  step {length}  ")]
        assert len(ends) == 1 and f"return {value:.4g}" in ends[0]
    assert sum("@" in line for line in lines) == len(captions)


@pytest.mark.exhaustive
def test_the_animation_is_optional_and_quick_is_short(call_main, run_dir, result):
    before = (run_dir / "play.gif").stat().st_mtime_ns
    overrides = ("gif=null", "before=true", "quick=true", "devices.compilation_cache=null")
    last = json.loads(call_main("play.py", f"path={run_dir}", *overrides).stdout.splitlines()[-1])
    assert last["gif"] is None
    assert (run_dir / "play.gif").stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_run_in_a_simulator_is_played(call_main, tmp_path):
    quick = ("quick=true", "devices.compilation_cache=null")
    trained = call_main("train.py", "world=gymnasium", "algorithm=ppo", *quick, f"run_dir={tmp_path / 'run'}")
    assert trained.returncode == 0, trained.stderr
    played = call_main("play.py", f"path={tmp_path / 'run'}", *quick)
    assert played.returncode == 0, played.stderr
    last = json.loads(played.stdout.splitlines()[-1])
    assert last["episode_return"] == last["episode_length"] and last["gif"]  # A point for every step.
