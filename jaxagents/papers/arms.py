"""One arm of a paper: composed, and trained from the shared start."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hydra.utils import instantiate

from jaxagents.papers.spec import Arm, Paper
from jaxagents.reporting.progress import Progress
from jaxagents.training.build import Stage, build_stage, resolve, stage_configs
from jaxagents.training.chunks import run_chunks
from jaxagents.training.composition import compose, merge_overrides
from jaxagents.training.config import DevicesConfig, config_hash, make_section
from jaxagents.types import LanguagePolicy, Params, PyTree

Curves = dict[str, dict[str, list]]  # metric -> {"steps": [points], "values": [points]}

_REDUCTIONS: dict[str, Callable[[np.ndarray], float]] = {
    "last": lambda values: values[-1],
    "first": lambda values: values[0],
    "mean": np.mean,
    "std": np.std,
    "min": np.min,
    "max": np.max,
}


@dataclass(frozen=True)
class Composed:
    """An arm with its resolved config.

    Attributes:
        name: of the arm.
        config: resolved; of an arm with a target its node.
        digest: hash of everything in the config that changes results; seeds do not count.
    """

    name: str
    config: dict[str, Any]
    digest: str


def compose_arm(
    paper: Paper,
    arm: Arm,
    config_folder: Path,
    *,
    overrides: Sequence[str] = (),
    arguments: Mapping[str, Any] | None = None,
    quick: bool = False,
) -> Composed:
    """Composes an arm.

    Args:
        paper: that it belongs to.
        arm: to compose.
        config_folder: of the experiments.
        overrides: further ones, of a variant of the paper.
        arguments: further ones of an arm with a target, of a variant of the paper.
        quick: merges the experiment's `when_quick`.

    Returns:
        The arm with its config.

    Raises:
        ValueError: the arm has no stage that the paper's `start` names first.
    """
    if arm.target is not None:
        node = {**(paper.arguments or {}), **arm.target, **(arguments or {})}
        return Composed(name=arm.name, config=node, digest=config_hash(node))
    wanted = [*arm.overrides, f"quick={str(quick).lower()}"]
    config = resolve(compose(config_folder, *merge_overrides(wanted, list(overrides))))
    first = next(iter(stage_configs(config)))
    if paper.start is not None and first != paper.start:
        raise ValueError(
            f"`start` must be the first stage of the arm {arm.name}, got {paper.start!r}; its stages are "
            f"{', '.join(stage_configs(config))}."
        )
    counted = {key: value for key, value in config.items() if key not in ("name", "seed", "seeds")}
    return Composed(name=arm.name, config=config, digest=config_hash({**counted, "start": paper.start}))


def build_stages(composed: Composed, num_seeds: int, *, start: str | None) -> list[Stage]:
    """Builds what an arm trains for every seed: all stages but the shared one.

    Args:
        composed: the arm.
        num_seeds: trained side by side.
        start: name of the shared stage, None without.

    Returns:
        The stages, in order.
    """
    devices = make_section(DevicesConfig, "devices", composed.config["devices"])
    configs = stage_configs({**composed.config, "seeds": num_seeds})
    return [build_stage(name, config, devices) for name, config in configs.items() if name != start]


def budget_of(stages: Sequence[Stage]) -> tuple[str, int]:
    """Returns the unit in which an arm counts, and the length of its training per seed."""
    unit = "episodes" if isinstance(stages[-1].policy, LanguagePolicy) else "env_steps"
    return unit, sum(stage.num_updates * stage.steps_per_update for stage in stages)


def logged_names(stages: Sequence[Stage]) -> list[str]:
    """Returns the names of everything that the stages log, without computing anything."""
    names: set[str] = set()
    for stage in stages:
        abstract = stage.runner.abstract
        evaluated = jax.eval_shape(lambda learner, stage=stage: stage.evaluate(learner.params), abstract.learner)
        names |= {f"eval/{name}" for name in evaluated}
        names |= set(jax.eval_shape(lambda state, stage=stage: stage.runner.run(state, 1)[1], abstract))
    return sorted(names)


def train_seeds(
    stages: Sequence[Stage],
    seeds: Sequence[int],
    params: Params | None,
    *,
    first_stage: int = 0,
    progress: Progress | None = None,
) -> tuple[list[Curves], Params]:
    """Trains seeds side by side through all stages, and evaluates as the stages' configs say.

    Every seed starts every stage from the key of this pair, as the run of the experiment with this seed does, whatever
    other seeds there are: every grouping gives the same results, up to the order of floating point sums. All arms meet
    the same keys.

    Args:
        stages: built for `len(seeds)` seeds.
        seeds: of the runs.
        params: that every seed starts from; None: random ones.
        first_stage: number of the first of `stages` within the experiment.
        progress: hears of every chunk.

    Returns:
        `(curves of every seed, final parameters)`; steps are those of one seed, over all stages. Every run has the
        evaluation of what came out as its last point.
    """
    rows: list[tuple[int, dict[str, np.ndarray]]] = []
    grouped = len(seeds) > 1
    start: PyTree | None = params
    if start is not None and grouped:
        start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(seeds), *leaf.shape)), start)
    steps = 0
    for index, stage in enumerate(stages, start=first_stage):
        state = stage.runner.init(seeds if grouped else seeds[0], index, start)
        for chunk in run_chunks(stage, state, events=("log", "evaluate")):
            state, row = chunk.state, {name: np.asarray(value) for name, value in chunk.metrics.items()}
            steps += chunk.steps
            if "evaluate" in chunk.due:
                row |= _evaluate(stage, stage.runner.params(state))
            rows.append((steps, row))
            if progress is not None:
                progress.update(steps, row)
        params, start = stage.runner.params(state), stage.runner.to_global(state).learner
    return _curves(rows, len(seeds)), params


def _evaluate(stage: Stage, params: Params) -> dict[str, np.ndarray]:
    return {f"eval/{name}": np.asarray(value).mean(axis=-1) for name, value in stage.evaluate(params).items()}


def _curves(rows: Sequence[tuple[int, Mapping[str, np.ndarray]]], num_seeds: int) -> list[Curves]:
    curves: list[Curves] = [{} for _ in range(num_seeds)]
    for steps, row in rows:
        for name, value in row.items():
            for seed, number in enumerate(np.broadcast_to(np.atleast_1d(value), (num_seeds,))):
                curve = curves[seed].setdefault(name, {"steps": [], "values": []})
                curve["steps"].append(int(steps))
                curve["values"].append(float(number))
    return curves


def call_target(composed: Composed, seed: int) -> Curves:
    """Calls the function of an arm that is no experiment; a number is a curve of one point."""
    metrics = instantiate(composed.config, seed=seed)
    if callable(metrics):  # A node with `_partial_: true`.
        metrics = metrics(seed=seed)
    curves = {}
    for name, value in metrics.items():
        values = np.asarray(value, np.float64).reshape(-1).tolist()
        curves[name] = {"steps": list(range(len(values))), "values": values}
    return curves


def parse_metric(metric: str) -> tuple[str, str]:
    """Splits "std(train/entropy)" into `("std", "train/entropy")`; "success" means `("last", "success")`.

    Raises:
        ValueError: an unknown reduction.
    """
    match = re.fullmatch(r"(?:(\w+)\()?([^()]+?)\)?", metric)
    reduction = (match.group(1) or "last") if match else None
    if reduction not in _REDUCTIONS or metric.endswith(")") != ("(" in metric):
        raise ValueError(f"`metric` must be a name, or one in {', '.join(_REDUCTIONS)}, got {metric!r}; try mean(x).")
    return reduction, match.group(2)


def find_metric(metric: str, names: Sequence[str]) -> str:
    """Returns the logged name that a metric means: itself, or under `eval/`.

    Raises:
        ValueError: nothing of this name is logged; the names are offered.
    """
    _, name = parse_metric(metric)
    for candidate in (name, f"eval/{name}"):
        if candidate in names:
            return candidate
    raise ValueError(f"`metric` must be logged by the experiment, got {metric!r}; it logs {', '.join(sorted(names))}.")


def measure(metric: str, curves: Curves) -> float:
    """Reduces a curve to the number that a metric means: "success" is the last value of `eval/success`.

    Args:
        metric: `<name>` or `<reduction>(<name>)`; reductions over training are last, first, mean, std, min and max.
        curves: of one seed.

    Returns:
        The number; values that are not finite (nothing was counted) do not count, NaN where there are no others.
    """
    values = np.asarray(curves[find_metric(metric, list(curves))]["values"], np.float64)
    values = values[np.isfinite(values)]
    return float(_REDUCTIONS[parse_metric(metric)[0]](values)) if values.size else float("nan")
