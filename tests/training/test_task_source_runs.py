"""Runs whose tasks follow from what came out before: killed and resumed, and on several devices, they are the same."""

import inspect

import jax
import numpy as np
import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf

from jaxagents.reporting.loggers import read_metrics
from jaxagents.training import loop
from jaxagents.training.build import build, resolve
from jaxagents.training.checkpoints.manager import open_checkpoints
from jaxagents.training.composition import compose
from jaxagents.training.launch import run
from tests import ROOT

SETTINGS = (
    *(
        "world=bandit",
        "algorithm=reinforce",
        "quick=true",
        "stages=[]",
        "name=tiny",
        "when_quick.training.total_steps=64",
    ),
    *("task_source@collector.task_source=retry", "task_source@collector.task_source.source=band"),
    *(
        "collector.task_source.source.weigh.high=0.5",
        "when_quick.collector.group_size=2",
        "when_quick.collector.num_groups=8",
    ),
    *("devices.compilation_cache=null", "logging.tensorboard=false", "logging.curves=false", "logging.report=false"),
    *("logging.progress=false", "logging.transcripts=false"),
)


def rows_without_time(run_dir):
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in read_metrics(run_dir)]


def source_state(run_dir):
    """Returns the state of the task source after the run."""
    experiment = build(resolve(compose(ROOT / "configs", *SETTINGS)))
    checkpoints = open_checkpoints(loop.checkpoint_folder(run_dir, experiment, -1, "last"), read_only=True)
    try:
        return checkpoints.restore(experiment.stages[-1].runner.abstract).state.collector["source"]
    finally:
        checkpoints.close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "finished"
    run(compose(ROOT / "configs", *SETTINGS), run_dir)
    return run_dir


@pytest.mark.exhaustive
def test_a_killed_run_chooses_the_same_tasks_when_it_goes_on(finished, tmp_path, monkeypatch):
    state = source_state(finished)
    # Four updates of eight groups, the older ones weigh less.
    np.testing.assert_allclose(state.inner.count.sum(axis=1), 8 * (1 + 0.95 + 0.95**2 + 0.95**3), rtol=1e-5)
    assert state.failed.any()

    class Stop(Exception):
        pass

    real = loop._log

    def log(run, stage, chunk, clock):
        if chunk.end > 2:
            raise Stop
        return real(run, stage, chunk, clock)

    monkeypatch.setattr(loop, "_log", log)
    with pytest.raises(Stop):
        run(compose(ROOT / "configs", *SETTINGS), tmp_path)
    monkeypatch.setattr(loop, "_log", real)
    run(compose(ROOT / "configs", *SETTINGS), tmp_path)
    assert rows_without_time(tmp_path) == rows_without_time(finished)
    jax.tree.map(np.testing.assert_array_equal, source_state(tmp_path), state)


@pytest.mark.exhaustive
def test_two_devices_choose_the_tasks_of_one(finished, tmp_path):
    run(compose(ROOT / "configs", *SETTINGS, "devices=sharded", "devices.num_devices=2"), tmp_path)
    jax.tree.map(np.testing.assert_allclose, source_state(tmp_path), source_state(finished))
    one, two = (
        [row["rollout/task_level"] for row in rows_without_time(path) if "rollout/task_level" in row]
        for path in (finished, tmp_path)
    )
    assert len(one) == 4
    np.testing.assert_allclose(one, two, rtol=1e-6)


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "collector").glob("*.yaml")), ids=lambda path: path.stem)
def test_collectors_that_hand_options_on_are_told_of_devices(path):
    """A stage names the axis only where a collector asks for it: what is counted would be that of one device."""
    target = OmegaConf.load(path).get("_target_")
    parameters = {} if target is None else inspect.signature(get_object(target)).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        assert "axis_name" in parameters
