"""Speed of training: whole runs without evaluation and logs, and the time to the first update."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from omegaconf import DictConfig

from jaxagents.benchmarks.timing import Subject, timed
from jaxagents.training.build import Stage, build, resolve

ROOT = Path(__file__).parents[2]


def training_subject(config: DictConfig, name: str, *, num_final_updates: int = 0) -> Subject:
    """Times training of an experiment from a fresh state, with another seed every time; unit: environment steps.

    Args:
        config: composed config.
        name: row of the table.
        num_final_updates: number of last updates whose episodes give the final return; 0: no final return.

    Returns:
        The subject; its facts hold `final_return`, summed over the agents.
    """
    stage = build(resolve(config)).stages[0]
    facts: list[dict[str, float]] = []
    last = min(num_final_updates, stage.num_updates)

    def run() -> float:
        state, metrics = stage.runner.run(stage.runner.init(config.seed + len(facts)), stage.num_updates - last)
        if last:
            state, metrics = stage.runner.run(state, last)
            agents = max(stage.environment.num_agents, 1)
            facts.append({"final_return": float(np.mean(metrics["rollout/episode_return"])) * agents})
        jax.block_until_ready((state, metrics))
        return stage.num_updates * stage.steps_per_update * max(config.seeds, 1)

    return Subject(name=name, run=run, compile_seconds=_first_update(stage, config.seed), facts=facts)


def train_and_evaluate(config: DictConfig) -> dict[str, float]:
    """Trains an experiment to its end and evaluates it.

    Args:
        config: composed config with one seed.

    Returns:
        `per_second` (environment steps), `compile_seconds` and `seconds` of training, and the means over the evaluated
        episodes.
    """
    results, facts = train_seeds(config)
    return {name: float(np.mean(values)) for name, values in results.items()} | facts | {"spread": 0.0}


def train_seeds(config: DictConfig) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Trains all seeds of an experiment with one stage to their end, in parallel in one program, and evaluates them.

    Args:
        config: composed config.

    Returns:
        Results of the evaluation by metric, `[episodes]` or, with several seeds, `[seeds, episodes]`; and
        `compile_seconds`, `seconds` of training and `per_second`, environment steps of all seeds together.

    Raises:
        ValueError: there are several stages.
    """
    stage = _only_stage(config)
    compile_seconds = _first_update(stage, config.seed)
    results, seconds = _train(stage, config.seed)
    return results, _facts(stage, max(config.seeds, 1), compile_seconds, seconds)


def train_one_by_one(config: DictConfig, num_seeds: int) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Trains seeds one by one with a single-seed program: on a CPU faster than in parallel if products dominate.

    Args:
        config: composed config with one seed, the first.
        num_seeds: number of seeds: `config.seed`, `config.seed + 1` and so on.

    Returns:
        As for `train_seeds`; metrics are `[seeds, episodes]`, and `per_second` is that of one seed.

    Raises:
        ValueError: there are several stages.
    """
    stage = _only_stage(config)
    compile_seconds = _first_update(stage, config.seed)
    trained = [_train(stage, config.seed + number) for number in range(num_seeds)]
    results = {name: np.stack([of_seed[name] for of_seed, _ in trained]) for name in trained[0][0]}
    return results, _facts(stage, num_seeds, compile_seconds, sum(seconds for _, seconds in trained))


def _only_stage(config: DictConfig) -> Stage:
    experiment = build(resolve(config))
    if len(experiment.stages) > 1:
        raise ValueError(f"`stages` must be one to be timed, got {len(experiment.stages)}; train them one by one.")
    return experiment.stages[0]


def _train(stage: Stage, seed: int) -> tuple[dict[str, np.ndarray], float]:
    """Trains a stage, starting with `seed`; returns the results of its evaluation, and the seconds of training."""
    (state, _), seconds = timed(lambda: stage.runner.run(stage.runner.init(seed), stage.num_updates))
    results = stage.evaluate_last(stage.runner.params(state))
    return {name: np.asarray(values) for name, values in results.items()}, seconds


def _facts(stage: Stage, num_seeds: int, compile_seconds: float, seconds: float) -> dict[str, float]:
    steps = stage.num_updates * stage.steps_per_update * num_seeds
    return {"compile_seconds": compile_seconds, "seconds": seconds, "per_second": steps / seconds}


def _first_update(stage: Stage, seed: int) -> float:
    """Returns the seconds of the first update, including compilation."""
    return timed(lambda: stage.runner.run(stage.runner.init(seed), 1))[1]


def startup_seconds(overrides: list[str]) -> Mapping[str, float]:
    """Measures the time from the command to the first update, with an empty and with a filled compilation cache."""
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold", "warm"):
            command = [sys.executable, "experiments/train.py", "quick=true", *overrides, f"run_dir={folder}/{name}"]
            result = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "JAXAGENTS_CACHE": f"{folder}/cache"},
                capture_output=True,
                text=True,
                check=True,
            )
            seconds[name] = _last_json(result.stdout)["seconds_to_first_update"]
    return seconds


def _last_json(text: str) -> dict[str, Any]:
    return json.loads(text.strip().splitlines()[-1])
