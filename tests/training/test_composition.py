"""Tests of arguments that stand for others: those that a run is resumed by, and the tokenizer of a checkpoint."""

from copy import deepcopy
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore

from jaxagents.training import composition
from jaxagents.training.build import resolve
from jaxagents.training.composition import (
    compose,
    folders_of,
    given_arguments,
    joined_configs,
    resume_arguments,
    save_arguments,
)
from tests import CONFIGS


def test_a_run_is_resumed_by_the_arguments_that_it_was_started_with(tmp_path):
    folder = tmp_path / "it's a run"
    folder.mkdir()
    compose(CONFIGS, "world=cartpole", "run_dir=elsewhere", "seed=3", "+a={b: [1,2]}")
    save_arguments(folder)
    quoted = str(folder).replace("'", "\\'")
    assert resume_arguments([f"resume={folder}"]) == [
        "world=cartpole",
        "seed=3",
        "+a={b: [1,2]}",
        f"run_dir='{quoted}'",
    ]
    longer = ["--config-dir=mine", f"resume={folder}", "seed=3", "training.total_steps=8"]
    assert resume_arguments(longer) == [
        *("--config-dir=mine", "world=cartpole", "+a={b: [1,2]}", "seed=3", "training.total_steps=8"),
        f"run_dir='{quoted}'",
    ]


def test_a_resumed_run_finds_the_options_that_it_was_started_with(tmp_path, monkeypatch):
    compose(CONFIGS, "world=frozenlake", "stages=[${warm_start}]")
    monkeypatch.setattr(composition, "own_folders", lambda: [Path("/mine")])  # Only a command line has some.
    save_arguments(tmp_path)
    resumed = resume_arguments([f"resume={tmp_path}"])
    assert resumed == ["--config-dir=/mine", "world=frozenlake", "stages=[${warm_start}]", f"run_dir='{tmp_path}'"]
    assert resume_arguments([f"resume={tmp_path}", "--config-dir", "other", "seed=2"])[0] == "--config-dir=other"
    assert folders_of(resumed) == ["/mine"] and folders_of(["-cd", "a=b", "seed=1"]) == ["a=b"]


def test_configs_of_the_user_are_joined_to_ours(tmp_path):
    for place, text in (("learner/own.yaml", "mine"), ("learner/ppo.yaml", "theirs")):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(f"a: {text}\n")
    with joined_configs(CONFIGS, [tmp_path]) as joined:
        assert (joined / "learner/own.yaml").read_text() == "a: mine\n"
        assert (joined / "learner/ppo.yaml").read_text() == (CONFIGS / "learner/ppo.yaml").read_text()
    assert not joined.exists()
    with joined_configs(CONFIGS, []) as joined:
        assert joined == CONFIGS
    missing = joined_configs(CONFIGS, [tmp_path / "elsewhere"])
    with (
        pytest.raises(ValueError, match="`--config-dir` must be a folder, got .*elsewhere, which is not there"),
        missing,
    ):
        pass


def test_a_start_of_its_own_is_no_part_of_a_run():
    assert "start_from" not in resolve(compose(CONFIGS, "world=cartpole"))  # Hashes are of what a run has.


def test_other_arguments_stay():
    assert resume_arguments(["world=cartpole", "-m", "seed=0,1"]) == ["world=cartpole", "-m", "seed=0,1"]


def test_a_folder_that_the_command_did_not_write_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must be the directory of a run of experiments/train.py, got .*same run_dir"):
        resume_arguments([f"resume={tmp_path}"])


def test_a_checkpoint_brings_its_tokenizer_unless_another_one_is_named():
    model = ["world=bandit", "algorithm=grpo", "model=huggingface", "model.path=here"]
    assert compose(CONFIGS, *model).tokenizer.source == "here"
    assert "source" not in compose(CONFIGS, *model, "tokenizer=bytes").tokenizer
    assert compose(CONFIGS, *model[:2], "tokenizer=huggingface").tokenizer.source is None


def test_arguments_are_given_as_they_were_written():
    config = compose(CONFIGS, "world=frozenlake", "algorithm=grpo", "stages=[${warm_start}]")
    assert config.stages[0].name == config.warm_start.name  # What the interpolation stands for.
    assert given_arguments() == ["world=frozenlake", "algorithm=grpo", "stages=[${warm_start}]"]


def test_hydra_does_not_copy_its_store_for_every_group_that_help_lists():
    composition.register_resolvers()
    assert deepcopy(ConfigStore.instance()) is ConfigStore.instance()
    before = ConfigStore.instance().load("hydra/config.yaml").node
    before.verbose = True  # What is loaded is a copy, as ever.
    assert ConfigStore.instance().load("hydra/config.yaml").node.verbose is False
