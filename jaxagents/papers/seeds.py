"""Runs of one arm: seeds trained side by side, or calls of a function."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from hydra.utils import instantiate

from jaxagents.papers.arms import Composed
from jaxagents.papers.metrics import Curves
from jaxagents.reporting.progress import Progress
from jaxagents.training.build import Stage
from jaxagents.training.chunks import add_counts, mean_evaluation, run_chunks
from jaxagents.types import Params


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
    if params is not None and grouped:
        params = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(seeds), *leaf.shape)), params)
    steps, counts, ends = 0, {}, {}
    for index, stage in enumerate(stages, start=first_stage):
        start = None if stage.start is None else ends.get(stage.start, params)
        state = stage.runner.init(seeds if grouped else seeds[0], index, start)
        for chunk in run_chunks(stage, state, events=("log", "evaluate")):
            state, row = chunk.state, {name: np.asarray(value) for name, value in chunk.metrics.items()}
            steps, counts = steps + chunk.steps, add_counts(counts, row)
            row |= {f"rollout/{unit}": count for unit, count in counts.items()}
            if "evaluate" in chunk.due:
                row |= mean_evaluation(stage, stage.runner.params(state), is_last=chunk.is_last)
            rows.append((steps, row))
            if progress is not None:
                progress.update(steps, row)
        ends[stage.name] = stage.runner.to_global(state).learner
    return _curves(rows, len(seeds)), stage.runner.params(state)


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


def _curves(rows: Sequence[tuple[int, Mapping[str, np.ndarray]]], num_seeds: int) -> list[Curves]:
    curves: list[Curves] = [{} for _ in range(num_seeds)]
    for steps, row in rows:
        for name, value in row.items():
            for seed, number in enumerate(np.broadcast_to(np.atleast_1d(value), (num_seeds,))):
                curve = curves[seed].setdefault(name, {"steps": [], "values": []})
                curve["steps"].append(int(steps))
                curve["values"].append(float(number))
    return curves
