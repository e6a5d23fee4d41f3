"""Tests of arguments that stand for others: those that a run is resumed by, and the tokenizer of a checkpoint."""

from pathlib import Path

import pytest

from jaxagents.training.composition import choose_tokenizer, compose, given_arguments, resume_arguments, save_arguments

CONFIGS = Path(__file__).parents[2] / "configs"


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


def test_other_arguments_stay():
    assert resume_arguments(["world=cartpole", "-m", "seed=0,1"]) == ["world=cartpole", "-m", "seed=0,1"]


def test_a_folder_that_the_command_did_not_write_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must be the directory of a run of experiments/train.py, got .*same run_dir"):
        resume_arguments([f"resume={tmp_path}"])


def test_a_checkpoint_brings_its_tokenizer_unless_another_one_is_named():
    model = ["world=bandit", "algorithm=grpo", "model=huggingface", "model.path=here"]
    assert choose_tokenizer(model) == [*model[:3], "tokenizer=huggingface", *model[3:]]
    assert choose_tokenizer([*model, "--cfg", "job"])[-2:] == ["--cfg", "job"]
    for others in (["model=tiny"], [*model, "tokenizer=bytes"], []):
        assert choose_tokenizer(others) == others
    config = compose(CONFIGS, *choose_tokenizer(model))
    assert config.tokenizer.source == "here"
    assert compose(CONFIGS, "world=bandit", "algorithm=grpo", "tokenizer=huggingface").tokenizer.source is None


def test_arguments_are_given_as_they_were_written():
    config = compose(CONFIGS, "world=frozenlake", "algorithm=grpo", "stages=[${warm_start}]")
    assert config.stages[0].name == config.warm_start.name  # What the interpolation stands for.
    assert given_arguments() == ["world=frozenlake", "algorithm=grpo", "stages=[${warm_start}]"]
