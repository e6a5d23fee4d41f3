"""Where a run directory stands: which checkpoint a run goes on from, and what of its past is damaged or missing."""

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
    """Returns the stage that a run stands in, and the metadata of its newest checkpoint; 0 and None of a new run.

    Args:
        folders: of the last checkpoints of every stage.
        names: of the stages, for messages.

    Raises:
        ValueError: no checkpoint of a stage is whole, or its metadata lack a field.
    """
    for index, name in reversed(list(enumerate(names))):
        metadata = folders[index].latest_metadata()
        if metadata is not None:
            require_fields(metadata, f"of the stage {name}")
            return index, metadata
    return 0, None


def require_fields(metadata: Mapping[str, Any], of: str, names: Collection[str] = _OF_RUNS) -> None:
    """Refuses metadata of checkpoints that lack a field which runs write."""
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
    """Returns `Tokenizer.data` from the metadata of a checkpoint of a language policy; None of others."""
    return base64.b64decode(metadata["tokenizer"]) if metadata and "tokenizer" in metadata else None


def require_same_tokenizer(stage: Stage, metadata: Mapping[str, Any], run_dir: Path) -> None:
    """Refuses checkpoints of another tokenizer than the one that the config makes now."""
    saved = tokenizer_of(metadata)
    if saved is not None and saved != stage.policy.tokenizer.data:  # type: ignore[union-attr]
        raise ValueError(
            f"`run_dir` must hold checkpoints of the tokenizer {stage.policy.tokenizer.name!r} as it is made now, got "  # type: ignore[union-attr]
            f"{run_dir} with another one; go on with the packages that began it, or try another `run_dir`."
        )


def require_no_past(experiment: Experiment, run_dir: Path) -> str | None:
    """Refuses to begin a run anew where one was saved before, whose checkpoints are gone.

    The second save waits for the first one: who logged more than that had a checkpoint. Before, a run that was killed
    has none.

    Args:
        experiment: that has no whole checkpoint in `run_dir`.
        run_dir: of the run.

    Returns:
        What to say of a run that begins anew though it has logged something; None where it is new.

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
    """Says that rows of a log are missing which a run wrote before the checkpoint that it goes on from.

    Args:
        run_dir: of the run.
        update: of the checkpoint, counted over all stages.
        say: reports it.
    """
    last = max((row["update"] for row in read_metrics(run_dir)), default=0)
    if last < update:
        say(f"{METRICS_FILE} ends at update {last}, the checkpoint is of update {update}: the rows between are lost.")
