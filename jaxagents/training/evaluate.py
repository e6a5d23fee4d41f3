"""Evaluation of a finished run: means over episodes or seeds, with confidence intervals."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from jaxagents.environments.checks import require_level
from jaxagents.reporting.statistics import describe
from jaxagents.reporting.tables import print_table
from jaxagents.training.load import load_stage, warn
from jaxagents.training.memory import require_episodes_in_memory


def evaluate_run(
    path: str | Path,
    *,
    num_episodes: int = 256,
    seed: int = 2_000_003,
    greedy: bool | None = None,
    level: int | None = None,
    held_out: bool | None = None,
    which: str = "best",
    step: int | None = None,
    stage: str | None = None,
    settings: Mapping[str, Any] | None = None,
    on_fallback: Callable[[str], Any] = warn,
) -> dict[str, Any]:
    """Plays whole episodes with the policy of a run, or with the policies of all seeds if there are several.

    Args:
        path: run directory.
        num_episodes: number of episodes of each seed, each with its own task.
        seed: seed of the tasks; by default another one than that of the run's own evaluations, which chose the best
            checkpoint.
        greedy: True: the mode of the policy; False: sampled actions; None: as in the run's own evaluations.
        level: difficulty of the tasks; None: as in the run's own evaluations.
        held_out: for text worlds, True: tasks that training never sees; False: training tasks; None: as in the run's
            own evaluations.
        which: see `load_stage`.
        step: see `load_stage`.
        stage: see `load_stage`.
        settings: `{"evaluator": {name: value}}`, which overrides settings of the run's evaluator, such as
            `num_samples`.
        on_fallback: see `load_stage`.

    Returns:
        Plain data: `metrics` as `summarize` returns them, and what was evaluated.

    Raises:
        ValueError: see `load_stage` and the evaluator of the run, `held_out` is given for a world without such tasks,
            or the evaluator has no such setting.
    """
    loaded = load_stage(path, which, step, stage=stage, on_fallback=on_fallback)
    own = loaded.stage.evaluation
    greedy = own.greedy if greedy is None else greedy
    level = own.level if level is None else level
    require_level(loaded.stage.environment, level)
    require_episodes_in_memory(loaded.stage, num_episodes)
    evaluator = _with_settings(loaded.stage.evaluator, settings or {})
    evaluator, held_out = _choose_tasks(evaluator, held_out, loaded.stage.environment.name)
    evaluate = evaluator(
        loaded.stage.environment, loaded.stage.policy, num_episodes=num_episodes, greedy=greedy, level=level
    )
    evaluate = jax.vmap(evaluate, in_axes=(0, None)) if loaded.num_seeds else evaluate
    episodes = jax.device_get(jax.jit(evaluate)(loaded.params, jax.random.key(seed)))
    return {
        "path": str(Path(path).resolve()),
        "stage": loaded.stage.name,
        "environment": loaded.stage.environment.name,
        "which": loaded.which,
        "step": loaded.step,
        "num_seeds": max(loaded.num_seeds, 1),
        "num_episodes": num_episodes,
        "seed": seed,
        "greedy": greedy,
        "level": level,
        "held_out": held_out,
        "metrics": summarize({name: values for name, values in episodes.items() if not np.all(np.isnan(values))}),
    }


def _with_settings(evaluator: Callable[..., Any], settings: Mapping[str, Any]) -> Callable[..., Any]:
    """Returns the evaluator of a run with other settings."""
    if others := settings.keys() - {"evaluator"}:
        name = sorted(others)[0]
        raise ValueError(f"`evaluation` must have settings of its evaluator only, got {name!r}; try {name}=VALUE.")
    chosen = {
        name: list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        for name, value in (settings.get("evaluator") or {}).items()
    }
    taken = {"num_episodes", "greedy", "level"}
    known = [name for name, one in inspect.signature(evaluator).parameters.items() if one.kind is one.KEYWORD_ONLY]
    for name in chosen:
        if name not in known or name in taken:
            free = ", ".join(sorted(set(known) - taken))
            raise ValueError(f"`evaluation.evaluator.{name}` must be a setting of this run's evaluator: {free}.")
    return partial(evaluator, **chosen)


def _choose_tasks(
    evaluator: Callable[..., Any], held_out: bool | None, world: str
) -> tuple[Callable[..., Any], bool | None]:
    """Returns the evaluator on the wanted tasks, and whether they are held out; None if the world has no such tasks."""
    parameter = inspect.signature(evaluator).parameters.get("held_out")
    if parameter is None and held_out is not None:
        raise ValueError(f"`held_out` must be null for a world without held-out tasks, got {held_out} for {world!r}.")
    if parameter is None:
        return evaluator, None
    held_out = bool(parameter.default) if held_out is None else held_out
    return partial(evaluator, held_out=held_out), held_out


def summarize(episodes: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Computes means and 95 % Student intervals: over seeds if there are several, else over episodes.

    Args:
        episodes: results by metric, `[episodes]` or `[seeds, episodes]`.

    Returns:
        By metric, `mean`, `low` and `high` (None if there is only one value), and with a seed axis the list `seeds` of
        the means of each seed.
    """
    summary = {}
    for name, values in episodes.items():
        values = np.asarray(values, np.float64)
        seeds = values.mean(axis=-1).tolist() if values.ndim == 2 else None
        summary[name] = describe(values if seeds is None else np.asarray(seeds))
        if seeds is not None:
            summary[name]["seeds"] = seeds
    return summary


def print_evaluation(evaluation: Mapping[str, Any]) -> None:
    """Prints the result of `evaluate_run` as a table."""
    manner = "greedy" if evaluation["greedy"] else "sampled"
    level = "" if evaluation["level"] is None else f" at level {evaluation['level']}"
    tasks = {None: "", True: " on held-out tasks", False: " on tasks of training"}[evaluation["held_out"]]
    seeds = evaluation["num_seeds"]
    number = evaluation["num_episodes"]
    Console().print(
        f"{evaluation['stage']}, {evaluation['which']} checkpoint (update {evaluation['step']}): {number} {manner} "
        f"episodes{' of each seed' if seeds > 1 else ''} in {evaluation['environment']}{level}{tasks}.",
        markup=False,
        highlight=False,
    )
    rows = []
    for name, value in sorted(evaluation["metrics"].items(), key=lambda item: item[0] != "episode_return"):
        interval = "-" if value["low"] is None else f"{value['low']:.4g} to {value['high']:.4g}"
        rows.append((name, f"{value['mean']:.4g}", interval))
    print_table(None, ("metric", "mean", f"95 % interval over {f'{seeds} seeds' if seeds > 1 else 'episodes'}"), rows)
