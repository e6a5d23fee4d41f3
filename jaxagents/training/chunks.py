"""Updates that run in one call, between what the host does: logs, evaluations, checkpoints."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxagents.training.build import Stage
from jaxagents.training.program import TrainState
from jaxagents.types import Array

ROUNDS = "rollout/rounds"
EVENTS = ("log", "evaluate", "checkpoint")


class Chunk(NamedTuple):
    """What one call of the compiled program did.

    Attributes:
        begin: updates of the stage before it.
        end: updates of the stage after it.
        steps: played in it, of one seed.
        state: after it.
        metrics: means over its updates, still on the devices.
        due: which of the events come now; all of them after the last chunk.
    """

    begin: int
    end: int
    steps: int
    state: TrainState
    metrics: Mapping[str, Array]
    due: frozenset[str]


def run_chunks(
    stage: Stage, state: TrainState, *, update: int = 0, played: int = 0, events: Sequence[str] = EVENTS
) -> Iterator[Chunk]:
    """Runs a stage until its updates are done or its budget of steps is played.

    Args:
        stage: to run.
        state: where it stands; donated.
        update: updates that were done before.
        played: steps that were played in them.
        events: a chunk ends where any of these is due.

    Yields:
        One chunk after the other; without steps that were thrown away, the devices work on while the host reads.
    """
    periods, budget = event_periods(stage), stage.num_updates * stage.steps_per_update
    while update < stage.num_updates and played < budget:
        end = min(stage.num_updates, *((update // periods[name] + 1) * periods[name] for name in events))
        state, metrics = stage.runner.run(state, end - update)
        steps = _count_steps(stage, end - update, metrics)
        played += steps
        over = end == stage.num_updates or played >= budget
        due = frozenset(name for name in events if over or end % periods[name] == 0)
        yield Chunk(begin=update, end=end, steps=steps, state=state, metrics=metrics, due=due)
        update = end


def event_periods(stage: Stage) -> dict[str, int]:
    """Returns the periods of logging, evaluation and checkpoints in updates."""
    training, evaluation = stage.training, stage.evaluation
    wanted = (training.log_every_steps, evaluation.every_steps, training.checkpoint_every_steps)
    return {name: max(1, round(steps / stage.steps_per_update)) for name, steps in zip(EVENTS, wanted, strict=True)}


def _count_steps(stage: Stage, num_updates: int, metrics: Mapping[str, Array]) -> int:
    """Returns the steps that updates played, thrown away or not, see `Collector`; the mean of several seeds."""
    rounds = float(np.mean(metrics[ROUNDS])) if ROUNDS in metrics else 1.0
    return round(num_updates * stage.steps_per_update * rounds)
