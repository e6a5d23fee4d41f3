"""The host's side of a run: chunks of updates, logs, evaluations, checkpoints, stages."""

import base64
import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image

from jaxagents.reporting.curves import write_curves
from jaxagents.reporting.loggers import METRICS_FILE, Logger, open_logger
from jaxagents.reporting.progress import Progress, open_progress
from jaxagents.training.build import Experiment, Stage
from jaxagents.training.checkpoints.manager import Checkpoints, Restored, open_checkpoints
from jaxagents.training.chunks import Chunk, run_chunks
from jaxagents.training.transcripts import show_transcripts
from jaxagents.types import LanguagePolicy, Params, PyTree, State

RETURN = "eval/episode_return"
KINDS = ("last", "best")


@dataclass
class _Run:
    """What the loop keeps in mind between chunks; what checkpoints save of it is their metadata.

    `steps` are those that were played by what is logged, `steps_before` those of earlier stages; of one seed.
    """

    experiment: Experiment
    logger: Logger
    progress: Progress
    started: float
    first_update_seconds: float | None = None
    best: float | None = None
    evaluation: dict[str, Any] = field(default_factory=dict)
    reached_target: bool = False
    steps: int = 0
    steps_before: int = 0


def train(experiment: Experiment, run_dir: str | Path, *, started: float | None = None) -> dict[str, Any]:
    """Runs all stages of an experiment, or goes on where the run directory stands.

    Args:
        experiment: see `build`.
        run_dir: of the run; may hold checkpoints of the same config.
        started: `time.time()` when the command began, for the time to the first update.

    Returns:
        The result: final evaluation, counts and times, as plain data.

    Raises:
        ValueError: the checkpoints are all damaged or of another config.
        FloatingPointError: a metric or a parameter is not finite; the checkpoints before it are kept.
        OSError: the disk is full; the checkpoints before are kept.
    """
    run_dir = Path(run_dir)
    total = sum(stage.num_updates * stage.steps_per_update for stage in experiment.stages)
    with ExitStack() as stack:
        folders = [
            [_open(stack, checkpoint_folder(run_dir, experiment, index, kind), stage, kind) for kind in KINDS]
            for index, stage in enumerate(experiment.stages)
        ]
        current, metadata = _find_progress([last for last, _ in folders])
        if metadata is not None:
            _require_same_config(experiment, metadata, run_dir)
            _require_same_tokenizer(experiment.stages[current], metadata, run_dir)
        progress = open_progress(total, experiment.name, experiment.logging.progress)
        stack.callback(progress.close)
        restored = _restore(experiment.stages[current], folders[current][0], progress)
        start = None
        if restored is None and current > 0:
            start = _final_learner(experiment.stages[current - 1], folders[current - 1][0], progress)
        done = _updates_before(experiment, current) + (restored.metadata["update"] if restored else 0)
        is_new = done == 0 and not (run_dir / METRICS_FILE).exists()
        logger = open_logger(run_dir, experiment.logging.tensorboard, None if is_new else done)
        stack.callback(logger.close)
        run = _Run(experiment=experiment, logger=logger, progress=progress, started=started or time.time())
        for index in range(current, len(experiment.stages)):
            start = _train_stage(run, index, folders[index], restored, start)
            restored = None
        if jax.process_index() == 0:
            if experiment.logging.transcripts and jax.process_count() == 1:
                show_transcripts(experiment, start.params, run_dir)
            _close_log(run, run_dir)
        return _result(run)


def checkpoint_folder(run_dir: Path, experiment: Experiment, index: int, kind: str) -> Path:
    """Returns where a stage's checkpoints are: `checkpoints/last`, with several stages `checkpoints/<name>/last`."""
    root = Path(run_dir) / "checkpoints"
    return (root / experiment.stages[index].name if len(experiment.stages) > 1 else root) / kind


def _open(stack: ExitStack, folder: Path, stage: Stage, kind: str) -> Checkpoints:
    checkpoints = open_checkpoints(folder, keep=stage.training.keep_checkpoints if kind == "last" else 1)
    stack.callback(checkpoints.close)
    return checkpoints


def _find_progress(folders: list[Checkpoints]) -> tuple[int, dict[str, Any] | None]:
    """Returns the stage that a run stands in, and the metadata of its newest checkpoint."""
    for index in reversed(range(len(folders))):
        metadata = folders[index].latest_metadata()
        if metadata is not None:
            return index, metadata
    return 0, None


def _updates_before(experiment: Experiment, index: int) -> int:
    return sum(stage.num_updates for stage in experiment.stages[:index])


def _require_same_config(experiment: Experiment, metadata: Mapping[str, Any], run_dir: Path) -> None:
    if metadata["config_hash"] != experiment.digest:
        raise ValueError(
            f"`run_dir` must be new or of the same config, got {run_dir} with checkpoints of config "
            f"{metadata['config_hash']} for a run of config {experiment.digest}; try another `run_dir`."
        )


def tokenizer_of(metadata: Mapping[str, Any] | None) -> bytes | None:
    """Returns `Tokenizer.data` from the metadata of a checkpoint of a language policy; None of others."""
    return base64.b64decode(metadata["tokenizer"]) if metadata and "tokenizer" in metadata else None


def _require_same_tokenizer(stage: Stage, metadata: Mapping[str, Any], run_dir: Path) -> None:
    saved = tokenizer_of(metadata)
    if saved is not None and saved != stage.policy.tokenizer.data:
        raise ValueError(
            f"`run_dir` must hold checkpoints of the tokenizer {stage.policy.tokenizer.name!r} as it is made now, got "
            f"{run_dir} with another one; go on with the packages that began it, or try another `run_dir`."
        )


def _restore(stage: Stage, checkpoints: Checkpoints, progress: Progress) -> Restored | None:
    return checkpoints.restore(stage.runner.abstract, on_fallback=progress.message)


def _final_learner(stage: Stage, checkpoints: Checkpoints, progress: Progress) -> State:
    restored = _restore(stage, checkpoints, progress)
    if restored is None:
        raise ValueError(f"`run_dir` must hold the checkpoints of the stage {stage.name!r}, which are missing.")
    return restored.state.learner


def _train_stage(
    run: _Run, index: int, folders: list[Checkpoints], restored: Restored | None, start: State | None
) -> State:
    """Runs a stage from the learner of the one before, and returns its own."""
    stage = run.experiment.stages[index]
    last, best = folders
    run.best, run.reached_target, update = None, False, 0
    if restored is None:
        state = stage.runner.init(run.experiment.seed, index, start)
        run.steps_before = run.steps
    else:
        update = restored.metadata["update"]
        run.steps, run.steps_before = restored.metadata["steps"], restored.metadata["steps_before"]
        run.best, run.evaluation = restored.metadata["best"], restored.metadata["evaluation"]
        run.reached_target = restored.metadata["reached_target"]
        state = stage.runner.from_global(restored.state)
        run.progress.message(f"Resumed {stage.name} at update {update} of {stage.num_updates}.")
    offset, pending, clock = _updates_before(run.experiment, index), None, time.time()
    chunks = run_chunks(stage, state, update=update, played=run.steps - run.steps_before)
    for chunk in () if run.reached_target else chunks:
        state = chunk.state
        if run.first_update_seconds is None:
            jax.block_until_ready(chunk.metrics)
            run.first_update_seconds = time.time() - run.started
            clock = time.time()
        # The device works on this chunk while the host logs the one before.
        if pending is not None:
            clock = _log(run, stage, offset, pending, clock)
        pending = chunk
        if {"evaluate", "checkpoint"} & chunk.due:
            clock, pending = _log(run, stage, offset, chunk, clock), None
            improved = "evaluate" in chunk.due and _evaluate(run, stage, offset + chunk.end, stage.runner.params(state))
            save = "checkpoint" in chunk.due or run.reached_target
            if save or improved:
                _save(run, stage, chunk.end, state, [last] * save + [best] * improved)
        if run.reached_target:
            break
    return stage.runner.to_global(state).learner


def _log(run: _Run, stage: Stage, offset: int, chunk: Chunk, clock: float) -> float:
    values = {name: np.asarray(value) for name, value in chunk.metrics.items()}
    now, end = time.time(), offset + chunk.end
    run.steps += chunk.steps
    speed = chunk.steps * max(run.experiment.num_seeds, 1) / max(now - clock, 1e-9)
    values["time/steps_per_second"] = np.asarray(speed)
    run.logger.log(run.steps, end, values)
    run.progress.update(run.steps, values)
    for name, value in values.items():
        if name.startswith("train/") and np.any(np.isinf(value) | np.isnan(value)) and not _uncounted(name, values):
            _refuse(name, end, run.steps)
    return now


def _uncounted(name: str, values: Mapping[str, np.ndarray]) -> bool:
    """A learner that did not update yet reports NaN for all of its metrics."""
    return all(np.all(np.isnan(value)) for key, value in values.items() if key.startswith("train/"))


def _refuse(name: str, update: int, steps: int) -> None:
    raise FloatingPointError(
        f"`{name}` must be finite, got NaN or infinity by update {update} ({steps} steps); the "
        "checkpoints before it are kept; try a lower learning rate or gradient clipping."
    )


def _evaluate(run: _Run, stage: Stage, update: int, params: Params) -> bool:
    """Evaluates, logs, and returns whether the policy is the best of the stage so far."""
    episodes = {name: np.asarray(value) for name, value in stage.evaluate(params).items()}
    means = {f"eval/{name}": value.mean(axis=-1) for name, value in episodes.items()}
    run.logger.log(run.steps, update, means)
    run.progress.update(run.steps, means)
    run.evaluation = {name: value.tolist() for name, value in means.items()}
    score = float(means[RETURN].mean())
    target = stage.training.target_return
    run.reached_target = target is not None and score >= target
    improved = run.best is None or score > run.best
    run.best = score if improved else run.best
    return improved


def _save(run: _Run, stage: Stage, update: int, state: PyTree, folders: list[Checkpoints]) -> None:
    snapshot = stage.runner.to_global(state)
    bad = _first_not_finite(stage.runner.params(state))
    if bad is not None:
        _refuse(f"params{bad}", update, run.steps)
    metadata = {
        "update": update,
        "stage": stage.name,
        "best": run.best,
        "evaluation": run.evaluation,
        "reached_target": run.reached_target,
        "steps": run.steps,
        "steps_before": run.steps_before,
        "config": run.experiment.config,
        "config_hash": run.experiment.digest,
    }
    if isinstance(stage.policy, LanguagePolicy):
        metadata["tokenizer"] = base64.b64encode(stage.policy.tokenizer.data).decode()
    for checkpoints in folders:
        checkpoints.save(update, snapshot, metadata)


def _first_not_finite(params: Params) -> str | None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact) and not np.all(np.isfinite(np.asarray(leaf))):
            return jax.tree_util.keystr(path)
    return None


def _close_log(run: _Run, run_dir: Path) -> None:
    """Draws the curves, and gives TensorBoard the config, the curves and the final evaluation."""
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
    return {
        "experiment": experiment.name,
        "seed": experiment.seed,
        "num_seeds": max(experiment.num_seeds, 1),
        "steps": run.steps,
        "evaluation": {name.removeprefix("eval/"): value for name, value in run.evaluation.items()},
        "best_episode_return": run.best,
        "reached_target": run.reached_target,
        "seconds": time.time() - run.started,
        "seconds_to_first_update": run.first_update_seconds,
        "device": jax.devices()[0].device_kind,
        "num_devices": len(experiment.stages[0].runner.replicated.device_set),
        "config_hash": experiment.digest,
    }
