"""Cross-play of trained runs: the first agent of one team with the other agents of another team."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.reporting.tables import print_table
from jaxagents.rollouts.cross_play import make_cross_play
from jaxagents.training.load import LoadedStage, load_stage, warn
from jaxagents.types import LanguagePolicy, PyTree


def cross_play_runs(
    path: str | Path,
    others: str | Sequence[str] = (),
    *,
    num_episodes: int = 256,
    seed: int = 2_000_003,
    greedy: bool | None = None,
    level: int | None = None,
    which: str = "best",
    on_fallback: Callable[[str], Any] = warn,
) -> dict[str, Any]:
    """Plays the teams of runs, one for each of their seeds, with each other.

    Args:
        path: run directory; each of its seeds is a team.
        others: further run directories of the same world and policy.
        num_episodes: number of episodes of every pair, all pairs on the same tasks.
        seed: seed of the tasks.
        greedy: True: the mode of the policy; False: sampled actions; None: as in the first run's own evaluations.
        level: difficulty of the tasks; None: as in the first run's own evaluations.
        which: see `load_stage`.
        on_fallback: see `load_stage`.

    Returns:
        Plain data: `teams`, the names of the rows and columns; `episode_return`, the mean return of agent 0 of the row
            with the other agents of the column; `self_play` and `cross_play`, the means on and off the diagonal.

    Raises:
        ValueError: see `load_stage` and `rollouts.cross_play.make_cross_play`, or runs differ in world or policy, or
            there is only one team.
    """
    paths = [path, *([others] if isinstance(others, str) else others)]
    runs = [load_stage(path, which, on_fallback=on_fallback) for path in paths]
    first = runs[0].stage
    if isinstance(first.policy, LanguagePolicy) or not first.environment.num_agents:
        raise ValueError(
            f"`path` must be a run of a team of arrays for cross-play, got one in {first.environment.name!r}."
        )
    teams = [_teams(run) for run in runs]
    shapes = [jax.tree.map(lambda leaf: leaf.shape[1:], team) for team in teams]
    for path, run, shape in zip(paths, runs, shapes, strict=True):
        if run.stage.environment.name != first.environment.name or shape != shapes[0]:
            raise ValueError(f"`cross_play` must be runs of the world and policy of {paths[0]}, got {path}.")
    names = [
        f"{Path(path).name}{f'[{index}]' if run.num_seeds else ''}"
        for path, run in zip(paths, runs, strict=True)
        for index in range(max(run.num_seeds, 1))
    ]
    if len(names) < 2:
        raise ValueError(f"`cross_play` must have two teams or more, got {names[0]}; try cross_play=[runs/other].")
    evaluate = make_cross_play(
        first.environment,
        first.policy,
        num_episodes=num_episodes,
        greedy=first.evaluation.greedy if greedy is None else greedy,
        level=first.evaluation.level if level is None else level,
    )
    together = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *teams)
    returns = np.mean(jax.device_get(jax.jit(evaluate)(together, jax.random.key(seed))["episode_return"]), axis=-1)
    own = np.eye(len(names), dtype=bool)
    return {
        "teams": names,
        "environment": first.environment.name,
        "num_episodes": num_episodes,
        "seed": seed,
        "episode_return": returns.tolist(),
        "self_play": float(returns[own].mean()),
        "cross_play": float(returns[~own].mean()),
    }


def print_cross_play(result: dict[str, Any]) -> None:
    """Prints the matrix of returns."""
    rows = [
        (name, *(f"{value:.4g}" for value in row))
        for name, row in zip(result["teams"], result["episode_return"], strict=True)
    ]
    title = f"episode_return in {result['environment']}: agent 0 of the row, others of the column"
    print_table(title, ("", *result["teams"]), rows)


def _teams(run: LoadedStage) -> PyTree:
    """Returns the parameters of all seeds of a run, with the seed axis first."""
    return run.params if run.num_seeds else jax.tree.map(lambda leaf: leaf[None], run.params)
