"""Tests of the list of what can be run."""

import subprocess
import sys

import pytest

from jaxagents.training.listing import fitting_worlds, list_choices
from tests import ROOT


def test_every_file_is_listed_with_its_first_sentence():
    lines = list_choices(ROOT / "configs", ROOT / "experiments").splitlines()
    assert (
        "  cartpole           CartPole-v1 for any algorithm of discrete actions; half a million steps suffice." in lines
    )
    names = {line.split()[0] for line in lines if line.startswith("  ")}
    for pattern in ("configs/world", "configs/algorithm", "configs/experiment", "experiments/papers/*"):
        assert {path.stem for path in ROOT.glob(f"{pattern}/*.yaml")} <= names


def test_choices_are_listed_by_family():
    parts = list_choices(ROOT / "configs", ROOT / "experiments").split("\n\n")
    names = {part.partition(",")[0]: {line.split()[0] for line in part.splitlines()[1:]} for part in parts}
    assert {"grpo", "dpo"} < names["Algorithms of language models"] and "ppo" in names["Algorithms of arrays"]
    assert "frozenlake" in names["Worlds of language models"] and "cartpole" in names["Worlds of arrays"]
    assert "gigpo" in names["Papers of lm_rl"] and "envgen" in names["Papers of rl_core"]


def test_what_fits_a_world_is_listed():
    lines = list_choices(ROOT / "configs", world="pendulum").splitlines()
    names = {line.split()[0] for line in lines if line.startswith("  ")}
    assert {"td3", "td3_pendulum"} <= names and not {"dqn", "grpo", "cartpole", "dqn_cartpole", "gigpo"} & names


def test_every_algorithm_says_which_worlds_it_fits():
    """`words` stands for the worlds of language models."""
    worlds = {path.stem for path in (ROOT / "configs/world").glob("*.yaml")}
    fits = fitting_worlds(ROOT / "configs")
    assert {name for names in fits.values() for name in names} <= worlds
    assert fits["grpo"] == fits["sft"] and {"frozenlake", "text_kuhn"} < set(fits["grpo"]) and "cartpole" in fits["dqn"]


def test_a_line_is_cut_to_the_width():
    assert max(map(len, list_choices(ROOT / "configs", width=80).splitlines())) <= 80


@pytest.mark.parametrize("arguments", [[], ["--list", "--config-dir", "mine"]])
def test_without_arguments_the_script_lists_and_trains_nothing(arguments, tmp_path):
    (tmp_path / "mine/world").mkdir(parents=True)
    (tmp_path / "mine/world/pond.yaml").write_text("# @package _global_\n# A pond of the user's.\n")
    script = [sys.executable, str(ROOT / "experiments/train.py"), *arguments]
    result = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "experiment=<name>" in result.stdout and "ppo_cartpole" in result.stdout
    assert ("A pond of the user's." in result.stdout) == bool(arguments)
    assert len(list(tmp_path.iterdir())) == 1
