"""The host side of a run: chunks of updates, logs, evaluations, checkpoints, stages."""

import base64
import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image

from jaxagents.environments.checks import describe_not_finite
from jaxagents.environments.host import HostEnvironment
from jaxagents.reporting.curves import write_curves
from jaxagents.reporting.loggers import METRICS_FILE, Logger, open_logger
from jaxagents.reporting.progress import Progress, open_progress
from jaxagents.training.ahead import Ahead, compile_ahead
from jaxagents.training.build import Experiment, Stage
from jaxagents.training.checkpoints.manager import Checkpoints, Restored, open_checkpoints
from jaxagents.training.checkpoints.snapshots import first_not_finite
from jaxagents.training.chunks import Chunk, add_counts, first_update_time, mean_evaluation, run_chunks
from jaxagents.training.interrupts import Preempted, watch_signals
from jaxagents.training.processes import exit_with_partners, of_first_process
from jaxagents.training.resuming import (
    COUNTED,
    REMEMBERED,
    find_progress,
    require_fields,
    require_no_past,
    require_same_config,
    require_same_tokenizer,
    warn_of_lost_metrics,
)
from jaxagents.training.transcripts import show_transcripts
from jaxagents.types import LanguagePolicy, Params, PyTree, State

RETURN = "eval/episode_return"
KINDS = ("last", "best")


@dataclass
class _Run:
    """State of the loop between chunks; checkpoints save parts of it as metadata.

    `steps` counts the steps that were played until the latest log, `steps_before` those of earlier stages, both per
    seed. `counts` and `counts_before` are the experience of every seed, see `Collector`, in total and in earlier
    stages. `score` is the return that was compared with the target. `diverged` holds, by the index of a seed, which
    metric stopped being finite, and when.
    """

    experiment: Experiment
    logger: Logger
    progress: Progress
    is_preempted: Callable[[], bool]
    started: float
    ahead: Ahead
    first_update_seconds: float | None = None
    score: float | None = None
    best: float | None = None
    evaluation: dict[str, Any] = field(default_factory=dict)
    reached_target: bool = False
    steps: int = 0
    steps_before: int = 0
    updates_before: int = 0
    counts: dict[str, Any] = field(default_factory=dict)
    counts_before: dict[str, Any] = field(default_factory=dict)
    diverged: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds_before: float = 0.0  # In earlier sessions.
    trained: bool = False  # In this session.

    @property
    def seconds(self) -> float:
        """Returns the duration of all sessions; a session that finds the run finished adds nothing."""
        return self.seconds_before + (time.monotonic() - self.started if self.trained else 0.0)


def train(experiment: Experiment, run_dir: str | Path, *, started: float | None = None) -> dict[str, Any]:
    """Runs all stages of an experiment, or resumes from the run directory.

    Args:
        experiment: see `build`.
        run_dir: directory of the run; it may hold checkpoints of the same config.
        started: `time.monotonic()` when the command began, for the time to the first update.

    Returns:
        The result: final evaluation, counts and times, as plain data.

    Raises:
        ValueError: all checkpoints are damaged, or they belong to another config.
        FloatingPointError: a metric or a parameter is not finite; earlier checkpoints are kept.
        OSError: the disk is full; earlier checkpoints are kept.
        Preempted: the process was asked to end (SIGTERM), and the current state of the run was saved.
    """
    run_dir = Path(run_dir)
    steps = {stage.name: stage.num_updates * stage.steps_per_update for stage in experiment.stages}
    with ExitStack() as stack:
        folders = [
            [_open(stack, checkpoint_folder(run_dir, experiment, index, kind), stage, kind) for kind in KINDS]
            for index, stage in enumerate(experiment.stages)
        ]
        current, metadata = find_progress([last for last, _ in folders], steps)
        if metadata is not None:
            require_same_config(experiment, metadata, run_dir)
            require_same_tokenizer(experiment.stages[current], metadata, run_dir)
        begins_anew = None if metadata else of_first_process(lambda: require_no_past(experiment, run_dir))
        progress = open_progress(sum(steps.values()), experiment.name, experiment.logging.progress, stages=steps)
        stack.callback(progress.close)
        restored = _restore(experiment.stages[current], folders[current][0], progress)
        done = restored.metadata["updates_before"] + restored.metadata["update"] if restored else 0
        if begins_anew:
            progress.message(begins_anew)
        if restored and jax.process_index() == 0:
            warn_of_lost_metrics(run_dir, done, progress.message)
        is_new = done == 0 and not (run_dir / METRICS_FILE).exists()
        tracked = experiment.config if experiment.logging.wandb else None
        logger = open_logger(run_dir, experiment.logging.tensorboard, None if is_new else done, tracked=tracked)
        stack.callback(logger.close)
        is_preempted = stack.enter_context(watch_signals())
        stack.enter_context(exit_with_partners())
        ahead = stack.enter_context(compile_ahead(experiment.stages))
        run = _Run(experiment, logger, progress, is_preempted, started or time.monotonic(), ahead)
        for index in range(current, len(experiment.stages)):
            params = _train_stage(run, index, folders, restored if index == current else None)
        if jax.process_index() == 0:
            if experiment.logging.transcripts and jax.process_count() == 1:
                show_transcripts(experiment, params, run_dir)
            _close_log(run, run_dir)
        return _result(run)


def checkpoint_folder(run_dir: Path, experiment: Experiment, index: int, kind: str) -> Path:
    """Returns a stage's folder of checkpoints: `checkpoints/last`, with several stages `checkpoints/<name>/last`."""
    root = Path(run_dir) / "checkpoints"
    return (root / experiment.stages[index].name if len(experiment.stages) > 1 else root) / kind


def _open(stack: ExitStack, folder: Path, stage: Stage, kind: str) -> Checkpoints:
    checkpoints = open_checkpoints(folder, keep=stage.training.keep_checkpoints if kind == "last" else 1)
    stack.callback(checkpoints.close)
    return checkpoints


def _restore(stage: Stage, checkpoints: Checkpoints, progress: Progress) -> Restored | None:
    return checkpoints.restore(stage.runner.abstract, on_fallback=progress.message)


def _start_of(run: _Run, index: int, folders: list[list[Checkpoints]]) -> State | None:
    """Returns the learner state that a stage starts from, saved at the end of the earlier stage; None: a new one."""
    names = [stage.name for stage in run.experiment.stages]
    name, start = names[index], run.experiment.stages[index].start
    if start is None:
        return None
    source = names.index(start)
    restored = _restore(run.experiment.stages[source], folders[source][0], run.progress)
    if restored is None or not restored.metadata["finished"]:
        raise ValueError(f"`run_dir` must hold the end of the stage {start!r}, from which {name!r} starts.")
    return restored.state.learner


def _resume(run: _Run, stage: Stage, metadata: Mapping[str, Any]) -> int:
    """Restores the loop's state from the metadata of a checkpoint, and returns the number of its update."""
    require_fields(metadata, f"of the stage {stage.name}")
    update, target = metadata["update"], stage.training.target_return
    if stage.num_updates < update:
        raise ValueError(
            f"`training.total_steps` must be at least the {update * stage.steps_per_update} steps that the stage "
            f"{stage.name!r} has done, got {stage.training.total_steps}."
        )
    for name in REMEMBERED:
        setattr(run, name, metadata[name])
    run.seconds_before = metadata["seconds"]
    run.reached_target = _reaches(target, run.score)
    run.progress.message(f"Resumed {stage.name} at update {update} of {stage.num_updates}.")
    if metadata["num_updates"] != stage.num_updates:
        planned = metadata["num_updates"]
        run.progress.message(
            f"It was to end at update {planned}: schedules of optimisers run over the new length, those of other "
            "numbers over the old one."
        )
    return update


def _held_best(run: _Run, best: Checkpoints) -> dict[str, Any] | None:
    """Returns the metadata of the best checkpoint; if it is damaged, the next evaluation becomes the best one."""
    try:
        return best.latest_metadata()
    except ValueError as error:
        run.best = None
        run.progress.message(f"The best checkpoint is lost, the next evaluation takes its place: {error}")
        return None


def _reaches(target: float | None, score: float | None) -> bool:
    return target is not None and score is not None and score >= target


def _train_stage(run: _Run, index: int, folders: list[list[Checkpoints]], restored: Restored | None) -> Params:
    """Runs a stage to its end, and returns the parameters of its policy."""
    stage, (last, best) = run.experiment.stages[index], folders[index]
    if restored is None or not restored.metadata["finished"]:
        run.ahead.train(index)
    if restored is None:
        run.score, run.best, run.reached_target, update = None, None, False, 0
        run.steps_before, run.counts_before = run.steps, run.counts
        state = stage.runner.init(run.experiment.seed, index, _start_of(run, index, folders))
    else:
        update, state = _resume(run, stage, restored.metadata), stage.runner.from_global(restored.state)
    held, pending, clock = _held_best(run, best), None, None
    counts = {unit: np.asarray(count) - run.counts_before.get(unit, 0) for unit, count in run.counts.items()}
    run.ahead.wait(stage.runner.run)
    chunks = run_chunks(stage, state, update=update, played=run.steps - run.steps_before, counts=counts)
    for chunk in () if run.reached_target else chunks:
        state, update = chunk.state, chunk.end
        if not run.trained:
            jax.block_until_ready(chunk.metrics)
            run.trained = True
            run.first_update_seconds = run.first_update_seconds or first_update_time(chunk) - run.started
        run.ahead.follow(index)
        # The device works on this chunk while the host logs the previous one.
        if pending is not None:
            clock = _log(run, stage, pending, clock)
        pending = chunk
        if {"evaluate", "checkpoint"} & chunk.due:
            clock, pending = _log(run, stage, chunk, clock), None
            improved = "evaluate" in chunk.due and _evaluate(run, stage, chunk, stage.runner.params(state))
            # A run that was killed between the best checkpoint and the last one passes here again.
            improved = improved and (held is None or (held["update"], held["best"]) != (update, run.best))
            finished = run.reached_target or chunk.is_last
            save = "checkpoint" in chunk.due or run.reached_target
            if save or improved:
                _save(run, stage, update, state, finished, last if save else None, best if improved else None)
            clock = time.monotonic()  # Evaluations and checkpoints do not count in the training speed.
        if run.reached_target:
            break
        if run.is_preempted() and not chunk.is_last:
            _end_early(run, stage, pending, clock, update, state, last)
    run.updates_before += update
    return stage.runner.params(state)


def _end_early(
    run: _Run, stage: Stage, pending: Chunk | None, clock: float | None, update: int, state: PyTree, last: Checkpoints
) -> None:
    """Logs what is left, saves, and raises `Preempted`."""
    if pending is not None:
        _log(run, stage, pending, clock)
    _save(run, stage, update, state, False, last, None)
    raise Preempted(
        f"Asked to end, the run has saved update {update} of {stage.num_updates} of {stage.name}; the same command "
        "with its `run_dir` goes on from there."
    )


def _log(run: _Run, stage: Stage, chunk: Chunk, clock: float | None) -> float:
    """Logs a chunk that began at `clock` (None: it was compiled during the chunk), and returns when it was done."""
    values = {name: np.asarray(value) for name, value in chunk.metrics.items()}
    now = time.monotonic()
    run.steps += chunk.steps
    run.counts = add_counts(run.counts, values)
    values |= {f"rollout/{unit}": count for unit, count in run.counts.items()}
    seconds = np.nan if clock is None else max(now - clock, 1e-9)
    values["time/steps_per_second"] = np.asarray(chunk.steps * max(run.experiment.num_seeds, 1) / seconds)
    _tell(run, stage, chunk.end, values)
    _find_divergence(run, stage, chunk.end, values)
    return now


def _tell(run: _Run, stage: Stage, update: int, values: Mapping[str, np.ndarray]) -> None:
    run.logger.log(run.steps, run.updates_before + update, values)
    run.progress.update(run.steps, values, _planned(run, stage))


def _planned(run: _Run, stage: Stage) -> int:
    """Returns how many of the planned steps are done, without the excess of a last round of replayed groups."""
    names = [one.name for one in run.experiment.stages]
    budgets = [one.num_updates * one.steps_per_update for one in run.experiment.stages]
    index = names.index(stage.name)
    return sum(budgets[:index]) + min(run.steps - run.steps_before, budgets[index])


def _find_divergence(run: _Run, stage: Stage, update: int, values: Mapping[str, np.ndarray]) -> None:
    """Records the seeds in which a metric of the learner is infinite, see `program.report`; stops if all have one."""
    bad = {name: np.isinf(value) for name, value in values.items() if name.startswith("train/")}
    bad = {name: bad[name] for name in sorted(bad, key=lambda name: name != "train/loss") if bad[name].any()}
    for seed in sorted({int(seed) for where in bad.values() for seed in np.flatnonzero(where)}):
        name = next(name for name, where in bad.items() if np.atleast_1d(where)[seed])
        if str(seed) in run.diverged:
            continue
        run.diverged[str(seed)] = {"metric": name, "stage": stage.name, "update": run.updates_before + update}
        if len(run.diverged) >= max(run.experiment.num_seeds, 1):
            _refuse(run, stage, name, update)
        run.progress.message(
            f"Seed {run.experiment.seed + seed} has diverged: `{name}` was NaN or infinite by update "
            f"{run.updates_before + update}. It stays as it was before; the other seeds go on."
        )


def _refuse(run: _Run, stage: Stage, name: str, update: int) -> None:
    way_out = "try a lower learning rate or gradient clipping"
    if jax.process_count() == 1 and not isinstance(stage.environment, HostEnvironment):  # These check every step.
        fault = describe_not_finite(stage.environment, jax.random.key(run.experiment.seed))
        way_out = f"mend the world: played at random, {fault} is not finite" if fault else way_out
    raise FloatingPointError(
        f"`{name}` must be finite, got NaN or infinity by update {run.updates_before + update} ({run.steps} steps); "
        f"the checkpoints before it are kept; {way_out}."
    )


def _evaluate(run: _Run, stage: Stage, chunk: Chunk, params: Params) -> bool:
    """Evaluates, logs, and returns whether the policy is the best of the stage so far; of equal ones, the last is.

    Returns of opposed teams are relative to each other and cannot rank policies: for these, the last policy is the
    best.
    """
    run.ahead.wait(stage.evaluate_last if chunk.is_last else stage.evaluate)
    means = mean_evaluation(stage, params, is_last=chunk.is_last)
    run.score = float(means[RETURN].mean())
    run.reached_target = _reaches(stage.training.target_return, run.score)
    if run.reached_target and not chunk.is_last and stage.evaluation.final_episodes is not None:
        means = mean_evaluation(stage, params, is_last=True)
    score = float(means[RETURN].mean())
    _tell(run, stage, chunk.end, means)
    run.evaluation = {name: value.tolist() for name, value in means.items()}
    improved = math.isfinite(score) and (run.best is None or bool(stage.environment.teams) or score >= run.best)
    run.best = score if improved else run.best
    return improved


def _save(
    run: _Run,
    stage: Stage,
    update: int,
    state: PyTree,
    finished: bool,
    last: Checkpoints | None,
    best: Checkpoints | None,
) -> None:
    """Saves into the given folders; a last checkpoint is valid only if the best one that it refers to is."""
    snapshot = stage.runner.to_global(state)
    bad = first_not_finite(stage.runner.params(state))
    if bad is not None:
        _refuse(run, stage, f"params{bad}", update)
    metadata = {
        "update": update,
        "num_updates": stage.num_updates,
        "stage": stage.name,
        "finished": finished,
        **{name: getattr(run, name) for name in REMEMBERED},
        **{name: {unit: np.asarray(n).tolist() for unit, n in getattr(run, name).items()} for name in COUNTED},
        "seconds": run.seconds,
        "config": run.experiment.config,
        "run_hash": run.experiment.run_digest,
    }
    if isinstance(stage.policy, LanguagePolicy):
        metadata["tokenizer"] = base64.b64encode(stage.policy.tokenizer.data).decode()
    if best is not None:
        best.save(update, snapshot, metadata, acting=stage.runner.acting)
    if last is not None:
        last.save(update, snapshot, metadata, after=best, acting=stage.runner.acting)


def _close_log(run: _Run, run_dir: Path) -> None:
    """Draws the curves, and passes the config, the curves and the final evaluation to TensorBoard."""
    steps = run.steps
    run.logger.text(steps, "config", f"```json\n{json.dumps(run.experiment.config, indent=2)}\n```")
    finals = {f"final/{name.removeprefix('eval/')}": float(np.mean(v)) for name, v in run.evaluation.items()}
    run.logger.hyper_parameters(run.experiment.config, finals)
    path = write_curves(run_dir) if run.experiment.logging.curves else None
    if path is not None:
        with Image.open(path) as picture:
            run.logger.image(steps, "curves", np.asarray(picture.convert("RGB")))


def _result(run: _Run) -> dict[str, Any]:
    experiment = run.experiment
    statuses = ["diverged" if str(i) in run.diverged else "finished" for i in range(max(experiment.num_seeds, 1))]
    return {
        "experiment": experiment.name,
        "seed": experiment.seed,
        "num_seeds": max(experiment.num_seeds, 1),
        "steps": run.steps,
        "evaluation": {name.removeprefix("eval/"): value for name, value in run.evaluation.items()},
        "best_episode_return": run.best,
        "reached_target": run.reached_target,
        "status": statuses if experiment.num_seeds else statuses[0],
        "diverged": run.diverged,
        "seconds": run.seconds,
        "seconds_to_first_update": run.first_update_seconds,
        "device": jax.devices()[0].device_kind,
        "num_devices": len(experiment.stages[0].runner.replicated.device_set),
        "config_hash": experiment.digest,
    }
