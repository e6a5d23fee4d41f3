"""Progress of a run on stderr: a bar in a terminal, a line every ten seconds elsewhere. Stdout is not used."""

import bisect
import datetime
import itertools
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TextIO

import jax
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar

from jaxagents.ops.checks import check_counts
from jaxagents.types import Mean

_LINE_SECONDS = 10.0
_SPEED_SECONDS = 30.0  # Window over which the speed is measured.
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


class Progress(NamedTuple):
    """Display of a run's progress; on processes other than 0, nothing is shown.

    Attributes:
        update: `(steps, metrics, planned=None) -> None`. It shows the returns of rollouts and evaluations (the first
            metric of the phase with "return" in its name) and the best return of the evaluations, or else of the
            rollouts. `planned` is the number of planned steps done, if it differs from the steps played, as with
            dynamic sampling; the displayed fraction is that of the planned steps.
        message: `(text) -> None`, prints a separate line, even if progress is not enabled.
        close: `() -> None`, leaves the last state on the screen.
    """

    update: Callable[..., None]
    message: Callable[[str], None]
    close: Callable[[], None]


@dataclass
class _Track:
    """State of the display."""

    total_steps: int
    clock: Callable[[], float]
    names: tuple[str, ...]  # Names of the stages.
    ends: tuple[int, ...]  # Steps at the end of each stage.
    stage: int = 0
    history: deque = field(default_factory=deque)  # (seconds, steps, planned steps), oldest first.
    returns: dict[str, float] = field(default_factory=dict)  # By phase.
    best: dict[str, float] = field(default_factory=dict)  # By phase.
    loss: float = math.nan  # For runs that do not play, as in supervised learning.
    last_line: float = -math.inf
    outdated: bool = False


def open_progress(
    total_steps: int,
    title: str,
    enabled: bool = True,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
    stages: Mapping[str, int] | None = None,
) -> Progress:
    """Opens the display of a run's progress.

    Args:
        total_steps: environment steps of the whole run.
        title: name of the run.
        enabled: whether to show progress; messages are shown in any case.
        stream: stream to write to; None for stderr.
        clock: function that returns seconds since any fixed time.
        stages: steps of every stage by its name, in order; None: there is one stage. Speed and remaining time are those
            of the current stage, since a step of another one may take far longer.

    Returns:
        The functions of the display.

    Raises:
        ValueError: `total_steps` is less than 1.
    """
    check_counts(total_steps=total_steps)
    stream = stream or sys.stderr
    if not enabled:
        # The process index is queried only for a message: the query starts the backend, for which it may be too early.
        return Progress(update=_ignore, message=partial(_print_of_first, stream), close=_ignore)
    if jax.process_index() != 0:
        return Progress(update=_ignore, message=_ignore, close=_ignore)
    ends = tuple(itertools.accumulate((stages or {title: total_steps}).values()))
    track = _Track(total_steps=total_steps, clock=clock, names=tuple(stages or (title,)), ends=ends)
    if stream.isatty():
        return _open_bar(track, title, stream)
    return Progress(
        update=partial(_update_line, track, title, stream),
        message=partial(_print, stream),
        close=partial(_close_line, track, title, stream),
    )


def _open_bar(track: _Track, title: str, stream: TextIO) -> Progress:
    console = Console(file=stream)
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[state]}"),
    )
    # If redirected, the program's output to stdout would end up on stderr.
    bar = Bar(*columns, console=console, redirect_stdout=False, refresh_per_second=4)
    task = bar.add_task(escape(title), total=track.total_steps, state="compiling")
    bar.start()

    def update(steps: int, metrics: Mapping[str, Any], planned: int | None = None) -> None:
        _observe(track, steps, metrics, planned)
        bar.update(task, completed=track.history[-1][2], state=" · ".join(_describe(track)))

    return Progress(
        update=update,
        message=lambda text: bar.console.print(text, markup=False, highlight=False),
        close=bar.stop,
    )


def _update_line(
    track: _Track, title: str, stream: TextIO, steps: int, metrics: Mapping[str, Any], planned: int | None = None
) -> None:
    _observe(track, steps, metrics, planned)
    track.outdated = True
    if track.clock() - track.last_line >= _LINE_SECONDS:
        _tell(track, title, stream)


def _close_line(track: _Track, title: str, stream: TextIO) -> None:
    if track.outdated:
        _tell(track, title, stream)


def _tell(track: _Track, title: str, stream: TextIO) -> None:
    percent = 100 * track.history[-1][2] / track.total_steps
    _print(stream, f"{title}: {percent:.0f} %, {', '.join(_describe(track))}")
    track.last_line, track.outdated = track.clock(), False


def _observe(track: _Track, steps: int, metrics: Mapping[str, Any], planned: int | None) -> None:
    planned = int(steps if planned is None else planned)
    stage = min(bisect.bisect_left(track.ends, planned), len(track.ends) - 1)
    if stage != track.stage:
        track.stage = stage
        track.history.clear()
        # Returns of demonstrations and of the policy form no common curve; evaluations are of the policy.
        track.returns.pop("rollout", None)
        track.best.pop("rollout", None)
    track.history.append((track.clock(), int(steps), planned))
    while len(track.history) > 2 and track.history[-1][0] - track.history[1][0] >= _SPEED_SECONDS:
        track.history.popleft()
    for phase in ("eval", "rollout"):
        value = _find_return(phase, metrics)
        if math.isfinite(value):
            track.returns[phase] = value
            track.best[phase] = max(value, track.best.get(phase, -math.inf))
    if "train/loss" in metrics:
        track.loss = math.nan if math.isfinite(_find_return("rollout", metrics)) else _mean(metrics["train/loss"])


def _find_return(phase: str, metrics: Mapping[str, Any]) -> float:
    found = (value for name, value in metrics.items() if name.startswith(f"{phase}/") and "return" in name)
    return _mean(next(found, math.nan))


def _mean(value: Any) -> float:
    values = np.asarray(value.value if isinstance(value, Mean) else value, np.float64)
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else math.nan


def _describe(track: _Track) -> list[str]:
    (start, first, first_planned), (now, steps, planned) = track.history[0], track.history[-1]
    total = f"/{_short(track.total_steps)}" if steps == planned else ""
    parts = [f"{_short(steps)}{total} steps"]
    if now > start and steps > first:
        parts.append(f"{_short((steps - first) / (now - start))}/s")
        end = track.ends[track.stage]
        if first_planned < planned < end:
            whose = "" if end == track.ends[-1] else f" of {track.names[track.stage]}"
            left = (end - planned) * (now - start) / (planned - first_planned)
            parts.append(f"{datetime.timedelta(seconds=round(left))} left{whose}")
    if math.isfinite(track.loss):
        parts.append(f"loss {track.loss:.4g}")
    elif "rollout" in track.returns:
        where = f" in {track.names[track.stage]}" if len(track.names) > 1 else ""
        parts.append(f"return{where} {track.returns['rollout']:.4g}")
    if "eval" in track.returns:
        parts.append(f"eval {track.returns['eval']:.4g}")
    if track.best:
        parts.append(f"best {track.best.get('eval', track.best.get('rollout')):.4g}")
    return parts


def _short(number: float) -> str:
    for size, unit in _UNITS:
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def _print_of_first(stream: TextIO, text: str) -> None:
    if jax.process_index() == 0:
        _print(stream, text)


def _print(stream: TextIO, text: str) -> None:
    print(text, file=stream, flush=True)


def _ignore(*arguments: Any) -> None:
    return None
