"""Baselines of a run: its own policy before training, and the expert and random actions of text worlds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.data.files import write_whole
from jaxagents.reporting.curves import BASELINES_FILE, write_curves
from jaxagents.reporting.loggers import to_json
from jaxagents.reporting.reports import write_report
from jaxagents.training.load import LoadedStage, load_stage
from jaxagents.training.world_suite import SCRIPTED, make_scripted


def measure_baselines(
    path: str | Path, *, num_episodes: int, seed: int, stage: str | None = None, on_fallback: Callable[[str], Any]
) -> dict[str, dict[str, float]]:
    """Measures the baselines of a run, stores them in its directory, and redraws its curves and report.

    Args:
        path: run directory.
        num_episodes: number of episodes of each baseline, each with its own task.
        seed: seed of tasks and randomness.
        stage: name of the stage; None: the last one that has a checkpoint.
        on_fallback: see `load_stage`.

    Returns:
        Means by metric for "before training" (random parameters of the policy, or those of a pretrained model), and in
        text worlds with one seat the success of "expert" and "random actions".

    Raises:
        ValueError: see `load_stage`.
    """
    loaded = load_stage(path, stage=stage, on_fallback=on_fallback)
    own, environment, policy = loaded.stage.evaluation, loaded.stage.environment, loaded.stage.policy
    evaluate = loaded.stage.evaluator(
        environment, policy, num_episodes=num_episodes, greedy=own.greedy, level=own.level
    )
    key = jax.random.key(seed)
    episodes = jax.device_get(jax.jit(evaluate)(policy.init(key), key))
    baselines = {"before training": {name: float(np.nanmean(values)) for name, values in episodes.items()}}
    if environment.text is not None and environment.num_players == 1:
        baselines |= _measure_scripted(loaded, key, num_episodes)
    write_whole(Path(path) / BASELINES_FILE, json.dumps(to_json(baselines), indent=2) + "\n")
    write_curves(path)
    write_report(path)
    return baselines


def _measure_scripted(loaded: LoadedStage, key: jax.Array, num_episodes: int) -> dict[str, dict[str, float]]:
    """Plays the levels of the evaluation equally often, and returns the success of the expert and of random actions."""
    environment, level = loaded.stage.environment, loaded.stage.evaluation.level
    levels = range(environment.text.num_levels) if level is None else (level,)
    play = jax.jit(make_scripted(environment, num_episodes=-(-num_episodes // len(levels)), held_out=True))
    success = np.mean([jnp.mean(play(jax.random.fold_in(key, one), one), axis=1) for one in levels], axis=0)
    names = {"expert": SCRIPTED.index("expert"), "random actions": SCRIPTED.index("random")}
    return {name: {"success": float(success[index])} for name, index in names.items()}
