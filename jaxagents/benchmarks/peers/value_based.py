"""DQN of PureJaxRL and PQN of PureJaxQL, unchanged, from checkouts."""

import sys
from pathlib import Path
from typing import Any
from unittest import mock

import jax

from jaxagents.benchmarks.peers.ppo import purejaxrl_module
from jaxagents.benchmarks.timing import Subject, timed

_DQN: dict[str, Any] = {
    "NUM_ENVS": 10,
    "BUFFER_SIZE": 10000,
    "BUFFER_BATCH_SIZE": 128,
    "EPSILON_START": 1.0,
    "EPSILON_FINISH": 0.05,
    "EPSILON_ANNEAL_TIME": 25e4,
    "TARGET_UPDATE_INTERVAL": 500,
    "LR": 2.5e-4,
    "LEARNING_STARTS": 10000,
    "TRAINING_INTERVAL": 10,
    "LR_LINEAR_DECAY": False,
    "GAMMA": 0.99,
    "TAU": 1.0,
    "ENV_NAME": "CartPole-v1",
}
"""Numbers of PureJaxRL's `dqn.py`."""

_PQN: dict[str, Any] = {
    "NUM_ENVS": 32,
    "NUM_STEPS": 64,
    "EPS_START": 1.0,
    "EPS_FINISH": 0.2,
    "EPS_DECAY": 0.2,
    "NUM_MINIBATCHES": 16,
    "NUM_EPOCHS": 4,
    "HIDDEN_SIZE": 256,
    "NUM_LAYERS": 2,
    "NORM_TYPE": "layer_norm",
    "LR": 1e-4,
    "MAX_GRAD_NORM": 10.0,
    "LR_LINEAR_DECAY": True,
    "REW_SCALE": 0.1,
    "GAMMA": 0.99,
    "LAMBDA": 0.95,
    "TEST_DURING_TRAINING": False,
    "WANDB_MODE": "disabled",
    "ENV_NAME": "CartPole-v1",
}
"""Numbers of PureJaxQL's `pqn_cartpole.yaml`, without tests during training."""


def purejaxrl_dqn_subject(folder: str | Path, total_steps: int) -> Subject:
    """Times `dqn.py` of PureJaxRL (Lu et al., 2022) from a checkout; unit: environment steps. Needs flashbax.

    Raises:
        ValueError: the folder has no `dqn.py`.
    """
    folder = Path(folder)
    if not (folder / "dqn.py").exists():
        raise ValueError(f"`reference` must be PureJaxRL's folder with dqn.py, got {folder}.")
    with _wrapped(folder), purejaxrl_module(folder, "dqn") as dqn:
        return _subject("purejaxrl_dqn", dqn, _DQN, total_steps, _DQN["NUM_ENVS"])


def purejaxql_subject(wrappers_folder: str | Path, folder: str | Path, total_steps: int) -> Subject:
    """Times `pqn_gymnax.py` of PureJaxQL (Gallici et al., 2024) from a checkout; unit: environment steps.

    Args:
        wrappers_folder: PureJaxRL's, whose wrappers stand for those of an older gymnax.
        folder: PureJaxQL's with `pqn_gymnax.py`.
        total_steps: of a run.

    Returns:
        The subject.

    Raises:
        ValueError: the folder has no `pqn_gymnax.py`.
    """
    folder = Path(folder)
    if not (folder / "pqn_gymnax.py").exists():
        raise ValueError(f"`reference_pqn` must be PureJaxQL's folder with pqn_gymnax.py, got {folder}.")
    config = _PQN | {"TOTAL_TIMESTEPS_DECAY": total_steps}
    with _wrapped(Path(wrappers_folder)), purejaxrl_module(folder, "pqn_gymnax") as pqn:
        return _subject("purejaxql_pqn", pqn, config, total_steps, _PQN["NUM_ENVS"] * _PQN["NUM_STEPS"])


def _wrapped(folder: Path) -> Any:
    """Gives programs PureJaxRL's wrappers, which take the five values of an older gymnax, in place of gymnax's."""
    with purejaxrl_module(folder, "wrappers") as wrappers:
        pass
    return mock.patch.dict(sys.modules, {"gymnax.wrappers.purerl": wrappers})


def _subject(name: str, module: Any, config: dict[str, Any], total_steps: int, steps_per_update: int) -> Subject:
    train = jax.jit(module.make_train(config | {"TOTAL_TIMESTEPS": total_steps}))
    compiled, compile_seconds = timed(lambda: train.lower(jax.random.PRNGKey(0)).compile())

    def run() -> float:
        jax.block_until_ready(compiled(jax.random.PRNGKey(1)))
        return total_steps // steps_per_update * steps_per_update

    return Subject(name=name, run=run, compile_seconds=compile_seconds)
