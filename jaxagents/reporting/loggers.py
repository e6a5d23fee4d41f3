"""Metrics of a run: `metrics.jsonl`, one JSON object per line, and TensorBoard beside it.

A line is `{"step": steps, "update": number, "<phase>/<name>": value, ...}`; a value is a number, a list of numbers (one
per seed), or null if it is not finite.
"""

import errno
import json
import math
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.data.files import write_whole
from jaxagents.types import Mean

METRICS_FILE = "metrics.jsonl"
WANDB_FILE = "wandb_id.txt"
PHASES = ("rollout", "train", "eval", "time")


class Logger(NamedTuple):
    """Logger of a run's metrics; on processes other than 0, it writes nothing.

    Attributes:
        log: `(steps, update, metrics) -> None`; `metrics` maps "<phase>/<name>" to a number, an array `[]` or
            `[seeds]`, or a `Mean`. Raises ValueError for another name or shape.
        text: `(steps, name, text) -> None`, Markdown, to TensorBoard only.
        image: `(steps, name, image) -> None`, uint8 `[height, width, 3]`, to TensorBoard only.
        hyper_parameters: `(config, metrics) -> None`, a nested dict and final numbers, to TensorBoard only.
        close: `() -> None`.
    """

    log: Callable[[int, int, Mapping[str, Any]], None]
    text: Callable[[int, str, str], None]
    image: Callable[[int, str, np.ndarray], None]
    hyper_parameters: Callable[[Mapping[str, Any], Mapping[str, float]], None]
    close: Callable[[], None]


def open_logger(
    run_dir: str | Path,
    tensorboard: bool = True,
    resume_update: int | None = None,
    *,
    tracked: Mapping[str, Any] | None = None,
) -> Logger:
    """Opens the log of a run's metrics.

    TensorBoard receives the mean over the finite seeds, and for several seeds the standard deviation as
    `<phase>/<name>_std`.

    Args:
        run_dir: directory of the run, created if missing.
        tensorboard: whether to write `<run_dir>/tensorboard`, too.
        resume_update: number of updates of the checkpoint from which the run resumes (0: none was saved); later lines
            are removed. None for a new run.
        tracked: config of a run whose metrics are sent to Weights & Biases, too; None: they are not.

    Returns:
        The functions of the logger.

    Raises:
        ValueError: the run is new, but `run_dir` has metrics already, or wandb is not installed.
    """
    if jax.process_index() != 0:
        return Logger(*[_ignore] * len(Logger._fields))
    path = Path(run_dir) / METRICS_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    if resume_update is not None:
        truncate_metrics(run_dir, resume_update)
    elif path.exists() and path.stat().st_size:
        raise ValueError(f"`run_dir` must be new, got {run_dir} with a {METRICS_FILE}; try resuming, or another one.")
    steps = [row["step"] for row in read_metrics(run_dir)]
    writer = cache(partial(_open_tensorboard, Path(run_dir), steps[-1] + 1 if steps else 0)) if tensorboard else None
    tracker = None if tracked is None else _open_wandb(Path(run_dir), tracked, is_new=resume_update is None)
    file = path.open("a", encoding="utf-8")

    def log(steps: int, update: int, metrics: Mapping[str, Any]) -> None:
        arrays = {name: _to_array(name, value) for name, value in metrics.items()}
        row = {"step": int(steps), "update": int(update)}
        file.write(json.dumps({**row, **to_json(arrays)}, allow_nan=False) + "\n")
        file.flush()
        if writer is not None:
            _require_alive(writer(), run_dir)
            for name, value in _scalars(arrays).items():
                writer().add_scalar(name, value, int(steps))
        if tracker is not None:
            tracker.log(_scalars(arrays), step=int(steps))

    def close() -> None:
        file.close()
        if tracker is not None:
            tracker.finish()
        if writer is not None and writer.cache_info().currsize:
            writer().close()

    if writer is None:
        return Logger(log=log, text=_ignore, image=_ignore, hyper_parameters=_ignore, close=close)

    def image(steps: int, name: str, image: np.ndarray) -> None:
        writer().add_image(name, np.asarray(image), steps, dataformats="HWC")

    def hyper_parameters(config: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        writer().add_hparams(_flatten(config), finite, name="hyper_parameters")

    def text(steps: int, name: str, text: str) -> None:
        writer().add_text(name, text, steps)

    return Logger(log=log, text=text, image=image, hyper_parameters=hyper_parameters, close=close)


def read_metrics(run_dir: str | Path) -> list[dict[str, Any]]:
    """Reads the metrics of a run, which may still be running.

    Args:
        run_dir: directory of the run.

    Returns:
        The lines, with null as NaN; an incomplete last line is left out. Empty if there is no file.

    Raises:
        ValueError: an earlier line is not a JSON object.
    """
    path = Path(run_dir) / METRICS_FILE
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines[:-1], start=1):  # What follows the last line break is incomplete or empty.
        try:
            rows.append(_from_json(json.loads(line)))
        except (ValueError, AttributeError) as error:
            raise ValueError(
                f"`{path}` must hold a JSON object per line, got {line[:80]!r} in line {number}."
            ) from error
    return rows


def truncate_metrics(run_dir: str | Path, update: int) -> None:
    """Removes the lines after an update, and an incomplete last line, atomically.

    Args:
        run_dir: directory of the run; without metrics, nothing happens.
        update: last update to keep.
    """
    path = Path(run_dir) / METRICS_FILE
    kept = [row for row in read_metrics(run_dir) if row["update"] <= update]
    if path.exists():
        write_whole(path, "".join(json.dumps(to_json(row), allow_nan=False) + "\n" for row in kept))


def to_json(value: Any) -> Any:
    """Converts nested dicts, lists, arrays and numbers to JSON data; non-finite numbers become null.

    Args:
        value: value to convert; a float32 becomes the shortest decimal that reads back as the same float32.

    Returns:
        Dicts with string keys, lists, strings, numbers, bools and None; other objects as their `str`.
    """
    if isinstance(value, Mapping):
        return {str(name): to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        array = np.asarray(value)
        if array.ndim:
            return [to_json(item) for item in array]
        value = float(str(array)) if jnp.issubdtype(array.dtype, jnp.floating) else array.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | None) else str(value)


def _from_json(row: dict[str, Any]) -> dict[str, Any]:
    def number(value: Any) -> Any:
        return [number(item) for item in value] if isinstance(value, list) else math.nan if value is None else value

    return {name: number(value) for name, value in row.items()}


def _to_array(name: str, value: Any) -> np.ndarray:
    if name.partition("/")[0] not in PHASES or not name.partition("/")[2]:
        raise ValueError(f"`metrics` must be named <phase>/<name> with a phase of {PHASES}, got {name!r}.")
    array = np.asarray(value.value if isinstance(value, Mean) else value)
    if array.ndim > 1:
        raise ValueError(f"`{name}` must be a number or one per seed, got shape {array.shape}; try its mean.")
    return array


def _scalars(arrays: Mapping[str, np.ndarray]) -> dict[str, float]:
    scalars = {}
    for name, array in arrays.items():
        values = np.atleast_1d(np.asarray(array, np.float64))
        finite = values[np.isfinite(values)]  # A seed in which no episode has ended yet has no return.
        if finite.size:
            scalars[name] = float(np.mean(finite))
        if finite.size and values.size > 1:
            scalars[f"{name}_std"] = float(np.std(finite))
    return scalars


def _open_tensorboard(run_dir: Path, purge_step: int) -> Any:
    # Imported when the first line is written, so that the first update does not wait for it, and without torch, which
    # tensorboardX imports if it is installed, for pictures of networks, and which takes seconds. None in `sys.modules`
    # makes an import fail, which the type stubs of the standard library do not allow.
    hidden = sys.modules.setdefault("torch", None) is None  # type: ignore[arg-type]
    try:
        from tensorboardX import SummaryWriter
    finally:
        if hidden:
            del sys.modules["torch"]

    # The suffix keeps two sessions that start within the same second from sharing, and overwriting, a file.
    options = {"purge_step": purge_step, "filename_suffix": f".{purge_step}", "flush_secs": 30}
    return SummaryWriter(logdir=str(run_dir / "tensorboard"), **options)


def _require_alive(writer: Any, run_dir: str | Path) -> None:
    """Refuses to write events to a thread that has ended, as on a full disk: a full queue would block for ever."""
    worker = getattr(getattr(writer.file_writer, "event_writer", None), "_worker", None)
    if worker is not None and not worker.is_alive():
        message = f"`run_dir` must have free space for TensorBoard's events, got a full disk in {run_dir}"
        raise OSError(errno.ENOSPC, f"{message}; try freeing space, then resume, or logging.tensorboard=false.")


def _open_wandb(run_dir: Path, config: Mapping[str, Any], *, is_new: bool) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ValueError(
            "`logging.wandb` must be false without the package wandb; try pip install -e '.[tracking]'."
        ) from error
    run_dir = run_dir.resolve()
    # A resumed run keeps its number, which its directory stores.
    kept = run_dir / WANDB_FILE
    if is_new or not kept.is_file():
        write_whole(kept, secrets.token_hex(8) + "\n")
    number = kept.read_text(encoding="utf-8").strip()
    project = os.environ.get("WANDB_PROJECT", "jaxagents")
    return wandb.init(
        project=project, name=run_dir.name, id=number, resume="allow", dir=str(run_dir), config=to_json(config)
    )


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    flat = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{name}."))
        else:
            flat[prefix + str(name)] = value if isinstance(value, bool | int | float | str) else str(value)
    return flat


def _ignore(*arguments: Any) -> None:
    return None
