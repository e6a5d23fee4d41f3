"""Resuming of runs: the checkpoint that a run continues from, and checks for damaged or missing data."""

import base64
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from jaxagents.reporting.loggers import METRICS_FILE, read_metrics
from jaxagents.reporting.reports import RESULT_FILE
from jaxagents.training.asynchronous import require_same_lag
from jaxagents.training.build import Experiment, Stage
from jaxagents.training.checkpoints.manager import Checkpoints
from jaxagents.training.chunks import event_periods

COUNTED = ("counts", "counts_before")
REMEMBERED = (
    *("score", "best", "evaluation", "reached_target", "steps", "steps_before", "updates_before", "diverged"),
    *COUNTED,
    "first_update_seconds",
)
_OF_RUNS = ("update", "num_updates", "stage", "finished", "seconds", "config", "run_hash", *REMEMBERED)


def find_progress(folders: list[Checkpoints], names: Collection[str]) -> tuple[int, dict[str, Any] | None]:
    """Returns the index of a run's current stage and the metadata of its newest checkpoint; 0 and None for a new run.

    Args:
        folders: folders of the last checkpoints of every stage.
        names: names of the stages, for messages.

    Raises:
        ValueError: a stage has checkpoints but no intact one, or the metadata lack a field.
    """
    for index, name in reversed(list(enumerate(names))):
        metadata = folders[index].latest_metadata()
        if metadata is not None:
            require_fields(metadata, f"of the stage {name}")
            return index, metadata
    return 0, None


def require_fields(metadata: Mapping[str, Any], of: str, names: Collection[str] = _OF_RUNS) -> None:
    """Refuses metadata of checkpoints that lack a field which runs always write."""
    missing = [name for name in names if name not in metadata]
    if missing:
        raise ValueError(
            f"The metadata of a checkpoint must have the fields that runs write, got those {of} without "
            f"{', '.join(missing)}; try the version that wrote them, or another `run_dir`."
        )


def require_same_config(experiment: Experiment, metadata: Mapping[str, Any], run_dir: Path) -> None:
    """Refuses checkpoints of another config."""
    if metadata["run_hash"] != experiment.run_digest:
        raise ValueError(
            f"`run_dir` must be new or of the same config, got {run_dir} with checkpoints of config "
            f"{metadata['run_hash']} for a run of config {experiment.run_digest}; try another `run_dir`."
        )
    require_same_lag(experiment.config["devices"], metadata["config"]["devices"])


def tokenizer_of(metadata: Mapping[str, Any] | None) -> bytes | None:
    """Returns `Tokenizer.data` from the metadata of a checkpoint of a language policy; None for other policies."""
    return base64.b64decode(metadata["tokenizer"]) if metadata and "tokenizer" in metadata else None


def require_same_tokenizer(stage: Stage, metadata: Mapping[str, Any], run_dir: Path) -> None:
    """Refuses checkpoints of a tokenizer that differs from the one that the config makes now."""
    saved = tokenizer_of(metadata)
    if saved is not None and saved != stage.policy.tokenizer.data:  # type: ignore[union-attr]
        raise ValueError(
            f"`run_dir` must hold checkpoints of the tokenizer {stage.policy.tokenizer.name!r} as it is made now, got "  # type: ignore[union-attr]
            f"{run_dir} with another one; go on with the packages that began it, or try another `run_dir`."
        )


def require_no_past(experiment: Experiment, run_dir: Path) -> str | None:
    """Refuses to start a run afresh if it was saved before, but its checkpoints are gone.

    The second save waits for the first one, so a run that logged more than that had a checkpoint. A run that was killed
    earlier has none.

    Args:
        experiment: experiment that has no intact checkpoint in `run_dir`.
        run_dir: directory of the run.

    Returns:
        A message about a run that starts afresh though it has logged something; None for a new run.

    Raises:
        ValueError: the run has a result, or has logged updates beyond its second checkpoint.
    """
    updates = max((row["update"] for row in read_metrics(run_dir)), default=0)
    first = experiment.stages[0]
    two_saves = 2 * event_periods(first)["checkpoint"]
    was_saved = two_saves < first.num_updates and updates > two_saves
    if was_saved or (Path(run_dir) / RESULT_FILE).exists():
        left = f"{METRICS_FILE} at update {updates}" if updates else RESULT_FILE
        raise ValueError(
            f"`run_dir` must hold the checkpoints of its run, got {run_dir} with {left} and without a whole checkpoint "
            f"and its digest; bring checkpoints/ back, or move {METRICS_FILE} and {RESULT_FILE} away to begin anew."
        )
    return f"{run_dir} has no checkpoint yet: the run begins anew, and so does its log." if updates else None


def warn_of_lost_metrics(run_dir: Path, update: int, say: Callable[[str], None]) -> None:
    """Reports missing rows of a log that a run wrote before the checkpoint from which it resumes.

    Args:
        run_dir: directory of the run.
        update: update of the checkpoint, counted over all stages.
        say: function that reports a message.
    """
    last = max((row["update"] for row in read_metrics(run_dir)), default=0)
    if last < update:
        say(f"{METRICS_FILE} ends at update {last}, the checkpoint is of update {update}: the rows between are lost.")
