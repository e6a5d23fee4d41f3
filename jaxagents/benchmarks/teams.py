"""Teams, measured: IPPO against the baseline of JaxMARL in the same process, and what trained teams achieve."""

import importlib
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
from omegaconf import DictConfig

from jaxagents.benchmarks.timing import PPO_BASELINE, Subject
from jaxagents.training.build import Stage, build, resolve

_BASELINE = "ippo_ff_mpe"


def team_subject(config: DictConfig, name: str, *, num_final_updates: int) -> tuple[Subject, list[float]]:
    """Times training of a team's experiment from a fresh state, another seed every time; unit: environment steps.

    Args:
        config: composed, of one seed.
        name: row of the table.
        num_final_updates: over whose episodes the final return is taken.

    Returns:
        The subject, and the list that every run appends its final return to, summed over the agents.
    """
    stage = build(resolve(config)).stages[0]
    returns: list[float] = []

    def run() -> float:
        state = stage.runner.init(config.seed + len(returns))
        state, _ = stage.runner.run(state, max(stage.num_updates - num_final_updates, 0))
        _, metrics = stage.runner.run(state, min(num_final_updates, stage.num_updates))
        returns.append(float(metrics["rollout/episode_return"]) * stage.environment.num_agents)
        return stage.num_updates * stage.steps_per_update

    begin = time.perf_counter()
    jax.block_until_ready(stage.runner.run(stage.runner.init(config.seed), 1))
    return Subject(name=name, run=run, compile_seconds=time.perf_counter() - begin), returns


def jaxmarl_subject(
    folder: str | Path, experiment: DictConfig, *, num_final_updates: int
) -> tuple[Subject, list[float]]:
    """Times `ippo_ff_mpe.py` of JaxMARL (Rutherford et al., 2024) from the folder that holds it.

    Its code runs unchanged, with the sizes of our experiment and the numbers of its own config; logging to the network
    is stubbed. It logs returns times the number of agents, which is their sum where they are the same for all.

    Args:
        folder: `baselines/IPPO` of a checkout.
        experiment: ours, composed; gives environment, sizes and length.
        num_final_updates: see `team_subject`.

    Returns:
        As `team_subject`.

    Raises:
        ValueError: the folder has no `ippo_ff_mpe.py`.
    """
    folder = Path(folder)
    if not (folder / f"{_BASELINE}.py").exists():
        raise ValueError(
            f"`reference` must be the folder of JaxMARL's {_BASELINE}.py, got {folder}; try its baselines/IPPO."
        )
    config = PPO_BASELINE | {
        "NUM_ENVS": experiment.collector.num_envs,
        "NUM_STEPS": experiment.collector.num_steps,
        "TOTAL_TIMESTEPS": experiment.training.total_steps,
        "ENV_NAME": experiment.environment.name,
        "ENV_KWARGS": {},
    }
    begin = time.perf_counter()
    with mock.patch.dict(sys.modules, {"wandb": mock.MagicMock()}), mock.patch.object(sys, "path", [*sys.path]):
        sys.path.insert(0, str(folder))
        baseline = importlib.import_module(_BASELINE)
        compiled = jax.jit(baseline.make_train(config)).lower(jax.random.PRNGKey(0)).compile()
    compile_seconds = time.perf_counter() - begin
    returns: list[float] = []
    steps_per_update = config["NUM_ENVS"] * config["NUM_STEPS"]

    def run() -> float:
        result = jax.block_until_ready(compiled(jax.random.PRNGKey(len(returns))))
        returns.append(float(np.mean(result["metrics"]["returned_episode_returns"][-num_final_updates:])))
        return config["TOTAL_TIMESTEPS"] // steps_per_update * steps_per_update

    return Subject(name="jaxmarl_ippo_ff_mpe", run=run, compile_seconds=compile_seconds), returns


def train_and_evaluate(config: DictConfig) -> dict[str, float]:
    """Trains an experiment to its end and evaluates it.

    Args:
        config: composed, of one seed.

    Returns:
        `per_second` (environment steps), `compile_seconds` and `seconds` of training, and the means over the evaluated
        episodes.
    """
    stage: Stage = build(resolve(config)).stages[0]
    begin = time.perf_counter()
    jax.block_until_ready(stage.runner.run(stage.runner.init(config.seed), 1))
    compiled = time.perf_counter()
    state, _ = jax.block_until_ready(stage.runner.run(stage.runner.init(config.seed), stage.num_updates))
    seconds = time.perf_counter() - compiled
    results = stage.evaluate(stage.runner.params(state))
    facts: dict[str, Any] = {name: float(np.mean(values)) for name, values in results.items()}
    facts |= {"compile_seconds": compiled - begin, "seconds": seconds}
    return facts | {"per_second": stage.num_updates * stage.steps_per_update / seconds, "spread": 0.0}


def compare_returns(ours: list[float], theirs: list[float]) -> Mapping[str, float]:
    """Compares final returns of independent runs.

    Args:
        ours: one number per run.
        theirs: one number per run.

    Returns:
        The means, their difference (ours less theirs), and the half width of its interval of two standard errors; 0
        with fewer than two runs a side.
    """
    difference = statistics.mean(ours) - statistics.mean(theirs)
    enough = min(len(ours), len(theirs)) > 1
    squared = sum(statistics.variance(side) / len(side) for side in (ours, theirs)) if enough else 0.0
    return {
        "final_return": statistics.mean(ours),
        "final_return_of_jaxmarl": statistics.mean(theirs),
        "difference": difference,
        "two_standard_errors": 2.0 * squared**0.5,
    }
