"""Chunks of updates that run in one call, between the tasks of the host: logs, evaluations, checkpoints."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxagents.training.build import Stage
from jaxagents.training.program import TrainState
from jaxagents.types import COUNTERS, Array, Params

ROUNDS = "rollout/rounds"
EVENTS = ("log", "evaluate", "checkpoint")

Counts = Mapping[str, np.ndarray]  # unit of experience -> int64 `[]`, with seeds `[seeds]`


class Chunk(NamedTuple):
    """The result of one call of the compiled program.

    Attributes:
        begin: number of updates of the stage before the chunk.
        end: number of updates of the stage after the chunk.
        steps: number of steps played in the chunk, per seed.
        state: state after the chunk.
        metrics: means and counts over the updates of the chunk, still on the devices.
        due: events that are due now; all of them after the last chunk.
        is_last: whether the stage is over.
        dispatched: `time.monotonic()` when the call had been handed to the devices; the first call has been compiled by
            then.
    """

    begin: int
    end: int
    steps: int
    state: TrainState
    metrics: Mapping[str, Array]
    due: frozenset[str]
    is_last: bool
    dispatched: float


def run_chunks(
    stage: Stage,
    state: TrainState,
    *,
    update: int = 0,
    played: int = 0,
    counts: Counts | None = None,
    events: Sequence[str] = EVENTS,
) -> Iterator[Chunk]:
    """Runs a stage until its updates are done or one of its budgets is used up.

    Args:
        stage: stage to run.
        state: current state; its buffers are donated.
        update: number of updates done before.
        played: number of steps played in these updates.
        counts: experience of these updates, see `add_counts`.
        events: events at which chunks end.

    Yields:
        One chunk after the other; the devices keep working while the host reads, unless steps are thrown away or there
        are budgets of experience.
    """
    periods, budget, counts = event_periods(stage), stage.num_updates * stage.steps_per_update, dict(counts or {})
    totals = stage.training.experience
    over = update >= stage.num_updates or played >= budget or _is_spent(totals, counts)
    while not over:
        end = min(stage.num_updates, *((update // periods[name] + 1) * periods[name] for name in events))
        state, metrics = stage.runner.run(state, end - update, counts_left(stage, counts))
        dispatched = time.monotonic()
        if totals:
            end, counts = int(np.max(np.asarray(state.update))), add_counts(counts, metrics)
        steps = _count_steps(stage, end - update, metrics)
        played += steps
        over = end == stage.num_updates or played >= budget or _is_spent(totals, counts)
        due = frozenset(name for name in events if over or end % periods[name] == 0)
        done: dict[str, Any] = {"begin": update, "end": end, "steps": steps, "state": state, "metrics": metrics}
        yield Chunk(**done, due=due, is_last=over, dispatched=dispatched)
        update = end


def first_update_time(chunk: Chunk) -> float:
    """Returns when the first update of a chunk that is done now was done, as all updates take equally long."""
    return chunk.dispatched + (time.monotonic() - chunk.dispatched) / (chunk.end - chunk.begin)


def add_counts(counts: Counts, metrics: Mapping[str, Array | np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the counts of experience plus those of a chunk."""
    chunk = {unit: metrics[f"rollout/{unit}"] for unit in COUNTERS if f"rollout/{unit}" in metrics}
    return {**counts, **{unit: counts.get(unit, 0) + np.asarray(number, np.int64) for unit, number in chunk.items()}}


def mean_evaluation(stage: Stage, params: Params, *, is_last: bool) -> dict[str, np.ndarray]:
    """Evaluates a policy: means over episodes as `eval/<name>`, `[]`, with seeds `[seeds]`; without a NaN `success`."""
    episodes = dict((stage.evaluate_last if is_last else stage.evaluate)(params))
    if "success" in episodes and np.all(np.isnan(episodes["success"])):
        del episodes["success"]
    return {f"eval/{name}": np.asarray(value).mean(axis=-1) for name, value in episodes.items()}


def event_periods(stage: Stage) -> dict[str, int]:
    """Returns the periods of logging, evaluation and checkpoints in updates."""
    training, evaluation = stage.training, stage.evaluation
    wanted = (training.log_every_steps, evaluation.every_steps, training.checkpoint_every_steps)
    return {name: max(1, round(steps / stage.steps_per_update)) for name, steps in zip(EVENTS, wanted, strict=True)}


def _is_spent(totals: Mapping[str, int], counts: Counts) -> bool:
    """Returns whether every seed has reached one of the budgets."""
    reached = [np.asarray(counts.get(unit, 0)) >= total for unit, total in totals.items()]
    return bool(reached) and bool(np.all(np.any(np.stack(np.broadcast_arrays(*reached)), axis=0)))


def counts_left(stage: Stage, counts: Counts) -> dict[str, np.ndarray]:
    """Returns what is left of the budgets, int32 `[]`, with seeds `[seeds]`; larger values are clipped to int32."""
    shape = np.shape(stage.runner.abstract.update)
    left = {unit: total - np.asarray(counts.get(unit, 0)) for unit, total in stage.training.experience.items()}
    most = np.iinfo(np.int32).max
    return {unit: np.broadcast_to(np.clip(value, 0, most), shape).astype(np.int32) for unit, value in left.items()}


def _count_steps(stage: Stage, num_updates: int, metrics: Mapping[str, Array]) -> int:
    """Returns the number of steps that updates played, thrown away or not, see `Collector`; the mean over seeds."""
    rounds = float(np.mean(metrics[ROUNDS])) if ROUNDS in metrics else 1.0
    return round(num_updates * stage.steps_per_update * rounds)
