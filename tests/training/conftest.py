"""Tiny runs that the tests of the loop share, and what they compare of them."""

import jax
import numpy as np
import pytest

from jaxagents.reporting.loggers import read_metrics
from jaxagents.training import build as build_module
from jaxagents.training.build import build, resolve
from jaxagents.training.checkpoints.manager import open_checkpoints
from jaxagents.training.composition import compose as compose_run
from jaxagents.training.config import config_hash
from jaxagents.training.loop import checkpoint_folder
from tests import ROOT

TINY = (
    "experiment=ppo_cartpole",
    "environment=tmaze",
    "environment.corridor_length=2",
    "name=tiny",
    "policy.encoder.hidden_sizes=[8]",
    "learner.num_epochs=1",
    "learner.num_minibatches=2",
    "collector.num_envs=4",
    "collector.num_steps=8",
    "training.total_steps=320",
    "training.log_every_steps=64",
    "training.checkpoint_every_steps=96",
    "evaluation.every_steps=128",
    "evaluation.num_episodes=3",
    "logging.curves=false",
    "logging.report=false",
    "logging.tensorboard=false",
    "logging.progress=false",
)


@pytest.fixture(scope="session")
def tiny():
    """Returns overrides of a run of ten updates."""
    return TINY


@pytest.fixture(scope="session")
def compose():
    """Returns `(*overrides) -> config` of a tiny run."""

    def compose(*overrides):
        return compose_run(ROOT / "configs", *TINY, "devices.compilation_cache=null", *overrides)

    return compose


@pytest.fixture(scope="module")
def shared_programs():
    """Builds stages of equal configs once, as the rounds of a stage: their runs share what is traced and compiled.

    Runs in processes of their own, such as those that are killed, share nothing.
    """
    built, build_stage = {}, build_module.build_stage

    def build_once(name, config, devices, **options):
        key = config_hash({**config, "run_dir": None}), repr(devices), repr(options)
        if key not in built:
            built[key] = build_stage(name, config, devices, **options)
        return built[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "build_stage", build_once)
        yield


@pytest.fixture(scope="session")
def rows_without_time():
    """Returns `(run_dir) -> rows` of the log, but for what depends on the clock."""

    def rows(run_dir):
        logged = read_metrics(run_dir)
        return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in logged]

    return rows


@pytest.fixture(scope="session")
def last_state():
    """Returns `(run_dir, config) -> Restored`, the newest checkpoint of the last stage."""

    def restore(run_dir, config):
        experiment = build(resolve(config))
        checkpoints = open_checkpoints(checkpoint_folder(run_dir, experiment, -1, "last"), read_only=True)
        try:
            return checkpoints.restore(experiment.stages[-1].runner.abstract)
        finally:
            checkpoints.close()

    return restore


@pytest.fixture(scope="session")
def bits():
    """Returns `(tree) -> list of bytes` of its leaves."""

    def bits(tree):
        leaves = jax.tree.leaves(tree)
        keys = [jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
        return [np.asarray(jax.random.key_data(x) if key else x).tobytes() for x, key in zip(leaves, keys, strict=True)]

    return bits
