"""Stages that follow each other, and seeds side by side."""

from contextlib import closing

import jax
import numpy as np
import pytest

from jaxagents.reporting.loggers import read_metrics
from jaxagents.training import loop
from jaxagents.training.build import build, resolve
from jaxagents.training.checkpoints.manager import open_checkpoints
from jaxagents.training.launch import run
from jaxagents.training.stages import stage_configs

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.mark.slow
def test_stages_follow_each_other_and_resume(tmp_path, monkeypatch, compose, rows_without_time):
    easy, hard = "{name: easy, training: {total_steps: 128}}", "{name: hard, learner: {entropy_coefficient: 0.0}}"
    stages = f"stages=[{easy}, {hard}]"
    straight = run(compose(stages), tmp_path / "straight")
    assert straight["steps"] == 448
    updates = [row["update"] for row in rows_without_time(tmp_path / "straight") if "train/loss" in row]
    assert updates == [2, 3, 4, 6, 7, 8, 10, 12, 13, 14]

    class Stop(Exception):
        pass

    real = loop._save
    saved = []

    def save(run, stage, update, *arguments):
        if stage.name == "hard":
            raise Stop
        saved.append(update)
        return real(run, stage, update, *arguments)

    monkeypatch.setattr(loop, "_save", save)
    with pytest.raises(Stop):
        run(compose(stages), tmp_path / "cut")
    monkeypatch.setattr(loop, "_save", real)
    run(compose(stages), tmp_path / "cut")
    assert saved[-1] == 4
    assert rows_without_time(tmp_path / "cut") == rows_without_time(tmp_path / "straight")


@pytest.mark.exhaustive
def test_steps_are_those_that_were_played(tmp_path, monkeypatch, compose, rows_without_time):
    easy = "{name: easy, training: {target_return: -100}}"
    stages = f"stages=[{easy}, {{name: hard}}]"
    straight = run(compose(stages, "training.total_steps=160"), tmp_path / "straight")
    assert straight["steps"] == 128 + 160

    class Stop(Exception):
        pass

    real = loop._save

    def save(run, stage, *arguments):
        real(run, stage, *arguments)
        if stage.name == "hard":
            raise Stop

    monkeypatch.setattr(loop, "_save", save)
    with pytest.raises(Stop):
        run(compose(stages, "training.total_steps=160"), tmp_path / "cut")
    monkeypatch.setattr(loop, "_save", real)
    assert run(compose(stages, "training.total_steps=160"), tmp_path / "cut")["steps"] == 128 + 160
    assert rows_without_time(tmp_path / "cut") == rows_without_time(tmp_path / "straight")


@pytest.mark.exhaustive
def test_stages_start_from_any_earlier_one_and_in_rounds(tmp_path, compose, bits):
    stages = "stages=[{name: a}, {name: b}, {name: c, from: a}, {name: d, from: null}, {name: e, rounds: 2}]"
    config = compose(stages, "training.total_steps=64", "optimizer.learning_rate=0.0", "optimizer.anneal=false")
    run(config, tmp_path)
    experiment = build(resolve(config))
    assert [stage.name for stage in experiment.stages] == ["a", "b", "c", "d", "e_1", "e_2"]
    assert [stage.start for stage in experiment.stages] == [None, "a", "a", None, "d", "e_1"]
    assert experiment.stages[4].runner is experiment.stages[5].runner  # Compiled once.
    params = {}
    for index, stage in enumerate(experiment.stages):
        folder = loop.checkpoint_folder(tmp_path, experiment, index, "last")
        with closing(open_checkpoints(folder, read_only=True)) as checkpoints:
            params[stage.name] = bits(checkpoints.restore(stage.runner.abstract).state.learner.params)
    assert params["a"] == params["b"] == params["c"] != params["d"] == params["e_1"] == params["e_2"]


def test_blocks_of_stages_are_repeated(compose):
    stages = "stages=[{name: a}, {rounds: 2, stages: [{name: b}, {name: c, from: a}, {name: d, from: b}]}, {name: e}]"
    configs = stage_configs(resolve(compose(stages)))
    assert {name: config["from"] for name, config in configs.items()} == {
        **{"a": None, "b_1": "a", "c_1": "a", "d_1": "b_1"},
        **{"b_2": "d_1", "c_2": "a", "d_2": "b_2", "e": "d_2"},
    }


@pytest.mark.exhaustive
def test_seeds_train_side_by_side(tmp_path, compose):
    result = run(compose("seeds=3", "training.total_steps=128"), tmp_path)
    assert result["num_seeds"] == 3 and len(result["evaluation"]["episode_return"]) == 3
    losses = [row["train/loss"] for row in read_metrics(tmp_path) if "train/loss" in row]
    assert all(len(set(loss)) == 3 for loss in losses)


@pytest.mark.slow
def test_several_seeds_are_the_runs_of_each_seed_alone(tmp_path, compose, last_state, bits):
    easy, hard = "{name: easy, training: {total_steps: 128}}", "{name: hard, learner: {entropy_coefficient: 0.0}}"
    short = ["training.total_steps=64", f"stages=[{easy}, {hard}]", "seed=4"]
    run(compose(*short, "seeds=2"), tmp_path / "together")
    together = last_state(tmp_path / "together", compose(*short, "seeds=2")).state
    for index in range(2):
        alone = compose(*short, f"seed={4 + index}")
        run(alone, tmp_path / str(index))
        single = last_state(tmp_path / str(index), alone).state
        # The same keys and the same experience; sums of floats have another order under vmap.
        assert bits(single.key) == bits(together.key[index])
        for one, both in zip(jax.tree.leaves(single), jax.tree.leaves(together), strict=True):
            if not jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
                np.testing.assert_allclose(both[index], one, rtol=1e-4, atol=1e-6)
