"""PPO of PureJaxRL and IPPO of JaxMARL, unchanged, from checkouts."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import numpy as np
from omegaconf import DictConfig

from jaxagents.benchmarks.timing import Subject, timed

_JAXMARL = "ippo_ff_mpe"

_PPO = {
    "LR": 2.5e-4,
    "UPDATE_EPOCHS": 4,
    "NUM_MINIBATCHES": 4,
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "CLIP_EPS": 0.2,
    "ENT_COEF": 0.01,
    "VF_COEF": 0.5,
    "MAX_GRAD_NORM": 0.5,
    "ACTIVATION": "tanh",
    "ANNEAL_LR": True,
}
"""What the configs of PureJaxRL's `ppo.py` and of JaxMARL's `ippo_ff_mpe.py` have in common."""


def purejaxrl_subject(
    folder: str | Path, total_steps: int, *, name: str = "purejaxrl_cartpole", num_envs: int = 4
) -> Subject:
    """Times `ppo.py` of PureJaxRL (Lu et al., 2022) from a checkout of its package folder; unit: environment steps.

    Its code runs unchanged; gymnax 1.0 tells termination from truncation, so `step` is narrowed to the five values that
    it expects, and the suites that its wrappers import but CartPole does not use are stubbed.

    Raises:
        ValueError: the folder has no `ppo.py`.
    """
    folder = Path(folder)
    if not (folder / "ppo.py").exists():
        raise ValueError(f"`reference` must be PureJaxRL's folder with ppo.py, got {folder}.")
    config = _PPO | {
        "NUM_ENVS": num_envs,
        "NUM_STEPS": 128,
        "TOTAL_TIMESTEPS": total_steps,
        "ENV_NAME": "CartPole-v1",
        "DEBUG": False,
    }
    with purejaxrl_module(folder, "ppo") as module:
        compiled, compile_seconds = timed(
            lambda: jax.jit(module.make_train(config)).lower(jax.random.PRNGKey(0)).compile()
        )

    def run() -> float:
        jax.block_until_ready(compiled(jax.random.PRNGKey(1)))
        return total_steps // (128 * num_envs) * 128 * num_envs

    return Subject(name=name, run=run, compile_seconds=compile_seconds)


def jaxmarl_subject(folder: str | Path, experiment: DictConfig, *, num_final_updates: int) -> Subject:
    """Times `ippo_ff_mpe.py` of JaxMARL (Rutherford et al., 2024) from the folder that holds it.

    Its code runs unchanged, with the sizes of our experiment and the numbers of its own config; logging to the network
    is stubbed. It logs returns times the number of agents, which is their sum where they are the same for all.

    Args:
        folder: `baselines/IPPO` of a checkout.
        experiment: ours, composed; gives environment, sizes and length.
        num_final_updates: see `training_subject`.

    Returns:
        The subject, with the facts of `training_subject`.

    Raises:
        ValueError: the folder has no `ippo_ff_mpe.py`.
    """
    folder = Path(folder)
    if not (folder / f"{_JAXMARL}.py").exists():
        raise ValueError(
            f"`reference` must be the folder of JaxMARL's {_JAXMARL}.py, got {folder}; try its baselines/IPPO."
        )
    config = _PPO | {
        "NUM_ENVS": experiment.collector.num_envs,
        "NUM_STEPS": experiment.collector.num_steps,
        "TOTAL_TIMESTEPS": experiment.training.total_steps,
        "ENV_NAME": experiment.environment.name,
        "ENV_KWARGS": {},
    }
    with mock.patch.dict(sys.modules, {"wandb": mock.MagicMock()}), mock.patch.object(sys, "path", [*sys.path]):
        sys.path.insert(0, str(folder))
        baseline = importlib.import_module(_JAXMARL)
        compiled, compile_seconds = timed(
            lambda: jax.jit(baseline.make_train(config)).lower(jax.random.PRNGKey(0)).compile()
        )
    facts: list[dict[str, float]] = []
    steps_per_update = experiment.collector.num_envs * experiment.collector.num_steps

    def run() -> float:
        result = jax.block_until_ready(compiled(jax.random.PRNGKey(len(facts))))
        returns = result["metrics"]["returned_episode_returns"]
        facts.append({"final_return": float(np.mean(returns[-num_final_updates:]))})
        return config["TOTAL_TIMESTEPS"] // steps_per_update * steps_per_update

    return Subject(name="jaxmarl_ippo_ff_mpe", run=run, compile_seconds=compile_seconds, facts=facts)


@contextlib.contextmanager
def purejaxrl_module(folder: Path, name: str) -> Iterator[Any]:
    """Imports a program written for older versions of gymnax and jax, unchanged.

    Args:
        folder: that holds the program; imports of its own start there.
        name: of the program, without `.py`.

    Yields:
        The module, as long as what it expects of other packages is there.
    """
    import gymnax

    original = gymnax.make

    def make(name: str):
        environment, params = original(name)

        def step(key, state, action, params=None):
            observation, state, reward, terminated, truncated, info = environment.step(key, state, action, params)
            return observation, state, reward, terminated | truncated, info

        adapted = SimpleNamespace(
            step=step,
            reset=environment.reset,
            action_space=lambda params=params: environment.action_space(params),
            observation_space=environment.observation_space,
        )
        return adapted, params

    unused = {name: mock.MagicMock() for name in ("navix", "brax", "brax.envs", "brax.envs.wrappers", "wandb")}
    unused["brax.envs.wrappers.training"] = mock.MagicMock()
    with (
        mock.patch.dict(sys.modules, unused),
        mock.patch.object(gymnax, "make", make),
        mock.patch.object(jax, "tree_map", jax.tree.map, create=True),
        mock.patch.object(sys, "path", [str(folder), *sys.path]),
    ):
        yield importlib.import_module(name)
