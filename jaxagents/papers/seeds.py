"""Runs of one arm: seeds trained in parallel, or calls of a function."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hydra.utils import instantiate

from jaxagents.papers.metrics import Curves
from jaxagents.reporting.progress import Progress
from jaxagents.training.build import Stage
from jaxagents.training.chunks import add_counts, mean_evaluation, run_chunks
from jaxagents.training.program import TrainState
from jaxagents.types import Environment, LanguagePolicy, Params, Policy


class TrainedSeeds(NamedTuple):
    """The results of seeds that were trained in parallel.

    Attributes:
        curves: curves of every seed; steps count those of one seed, over all stages.
        diverged: whether the parameters of each seed became infinite or NaN. The curves of such a seed end there, so
            that its last evaluation is the one before.
        params: final parameters, with a leading axis of seeds if there are several.
    """

    curves: list[Curves]
    diverged: list[bool]
    params: Params


class TrainedPolicy(NamedTuple):
    """A trained start, as passed to a function.

    Attributes:
        environment: environment in which the policy was evaluated.
        policy: policy that acts.
        params: parameters of the policy.
    """

    environment: Environment
    policy: Policy | LanguagePolicy
    params: Params


def train_seeds(
    stages: Sequence[Stage],
    seeds: Sequence[int],
    params: Params | None,
    *,
    first_stage: int = 0,
    progress: Progress | None = None,
) -> TrainedSeeds:
    """Trains seeds in parallel through all stages, and evaluates as the stages' configs say.

    Every seed starts every stage with the key of this seed and stage, like the experiment's run with this seed,
    regardless of other seeds: every grouping gives the same results, up to the order of floating-point sums. All arms
    use the same keys.

    Args:
        stages: stages that were built for `len(seeds)` seeds.
        seeds: seeds of the runs.
        params: parameters that the runs start from, with a leading axis of seeds if there are several; None: random
            parameters.
        first_stage: index of the first of `stages` within the experiment.
        progress: progress display, updated after every chunk.

    Returns:
        Curves and parameters. The last point of every run is the evaluation of its final parameters.
    """
    rows: list[tuple[int, dict[str, np.ndarray], np.ndarray]] = []
    grouped = len(seeds) > 1
    diverged = np.zeros(len(seeds), bool)
    steps, counts, ends = 0, {}, {}  # type: int, Any, dict[str, Any]
    for index, stage in enumerate(stages, start=first_stage):
        start = None if stage.start is None else ends.get(stage.start, params)
        state = stage.runner.init(seeds if grouped else seeds[0], index, start)
        for chunk in run_chunks(stage, state, events=("log", "evaluate")):
            state, row = chunk.state, {name: np.asarray(value) for name, value in chunk.metrics.items()}
            steps, counts = steps + chunk.steps, add_counts(counts, row)
            row |= {f"rollout/{unit}": count for unit, count in counts.items()}
            before, diverged = diverged, diverged | _find_diverged(state, grouped)
            if diverged.all():
                rows.append((steps, row, before))
                break
            if "evaluate" in chunk.due:
                row |= mean_evaluation(stage, stage.runner.params(state), is_last=chunk.is_last)
            rows.append((steps, row, before))
            if progress is not None:
                progress.update(steps, row)
        if diverged.all():
            break
        ends[stage.name] = stage.runner.to_global(state).learner
    return TrainedSeeds(_curves(rows, diverged), diverged.tolist(), stage.runner.params(state))


def call_function(
    node: Mapping[str, Any],
    seed: int,
    start: TrainedPolicy | None = None,
) -> Curves:
    """Calls the function of an arm; a single number becomes a curve of one point.

    Args:
        node: node with a `_target_`.
        seed: seed of the run.
        start: start that is passed to the function, as `environment`, `policy` and `params`.

    Returns:
        The function's metrics as curves, whose steps count their points.
    """
    given = {} if start is None else start._asdict()
    function = instantiate({**node, "_partial_": True})
    metrics = function(seed=seed, **given)
    curves = {}  # type: Curves
    for name, value in metrics.items():
        values = np.asarray(value, np.float64).reshape(-1).tolist()
        curves[name] = {"steps": list(range(len(values))), "values": values}
    return curves


def _find_diverged(state: TrainState, grouped: bool) -> np.ndarray:
    """Returns whether parameters are infinite or NaN, `[seeds]`; with several seeds, the program itself records it."""
    if grouped:
        return np.asarray(state.diverged) >= 0
    return np.asarray([not _all_finite(state.learner.params)])


@jax.jit
def _all_finite(params: Params) -> jax.Array:
    floats = [leaf for leaf in jax.tree.leaves(params) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in floats]))


def _curves(rows: Sequence[tuple[int, Mapping[str, np.ndarray], np.ndarray]], diverged: np.ndarray) -> list[Curves]:
    """Returns the curves of every seed; those of a diverged seed end with the chunk in which it diverged."""
    curves: list[Curves] = [{} for _ in diverged]
    for steps, row, dead in rows:
        for name, value in row.items():
            for seed, number in enumerate(np.broadcast_to(np.atleast_1d(value), diverged.shape)):
                if not dead[seed]:
                    curve = curves[seed].setdefault(name, {"steps": [], "values": []})
                    curve["steps"].append(int(steps))
                    curve["values"].append(float(number))
    return curves
