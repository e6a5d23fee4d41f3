"""A study as one batch: all arms on search seeds, in `<results>/studies/<family>/<name>.jsonl`, one line per run.

A line is found by the hash of its settings, like the runs of verdicts; it holds the metrics of the study's table and a
short curve, and no verdict counts it.
"""

import json
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxagents.papers.arms import Composed, build_stages, compose_arm, logged_names, start_address
from jaxagents.papers.execution import Session, describe_failure, run_groups, run_seeds
from jaxagents.papers.judge import values_of
from jaxagents.papers.leases import leased
from jaxagents.papers.metrics import curve_of
from jaxagents.papers.plan import (
    Job,
    Request,
    build_job,
    choose_groups,
    prepare_devices,
    reported_metrics,
    require_equal_budgets,
    require_logged,
)
from jaxagents.papers.runs import DIVERGED, Run
from jaxagents.papers.study import Arm, Paper
from jaxagents.reporting.loggers import to_json
from jaxagents.reporting.progress import open_progress
from jaxagents.training.trust import functions_of_others

STUDIES_FOLDER = "studies"
_POINTS = 8  # Number of points of a stored curve.
_POLL_SECONDS = 1.0


class Line(NamedTuple):
    """One run of a batch.

    Attributes:
        arm: name of the arm when it ran.
        address: address of the arm, see `arms.Composed`.
        seed: seed of the run.
        status: `runs.DONE` or DIVERGED.
        values: metrics by name, see `plan.reported_metrics`; values that are not finite are left out. For a diverged
            run, the last evaluation counts, as in verdicts.
        start: the same metrics for the parameters that the run started from.
        curve: steps and values of the study's metric.
        minutes: duration in minutes.
        cpu_minutes: CPU minutes over all cores.
        overrides: overrides of a trial; empty for a run that the table counts.
        commit: commit of the code.
    """

    arm: str
    address: str
    seed: int
    status: str
    values: Mapping[str, float]
    start: Mapping[str, float]
    curve: Sequence[Sequence[float]]
    minutes: float
    cpu_minutes: float
    overrides: Sequence[str]
    commit: str | None


def batch_path(results: str | Path, study: str) -> Path:
    """Returns the file of the runs of a study's batch."""
    return Path(results) / STUDIES_FOLDER / f"{study}.jsonl"


def read_batch(results: str | Path, study: str) -> list[Line]:
    """Reads all runs of a batch; a truncated line, left by a killed process, counts as missing."""
    path, lines = batch_path(results, study), []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            lines.append(Line(**json.loads(text)))
        except (ValueError, TypeError):
            continue
    return lines


def run_batch(batch: Paper, request: Request, *, turn: float = 0.0, check: bool = True) -> dict[str, str]:
    """Runs the missing runs of a batch; returns when none is missing, or all that are missing have failed here.

    Args:
        batch: see `library.load_batch`.
        request: what to run; its seeds are those of the batch, and `arms` selects some of the arms.
        turn: fraction of the missing arms to skip at first, so that different workers begin with different arms.
        check: whether to build and trace every missing arm before the first run.

    Returns:
        Reasons why arms failed, by name; the failure of one arm stops no other.
    """
    session = Session(request, open_progress(1, "reproduce", enabled=False))
    jobs = _jobs(batch, request, session)
    if check:
        _prepare(batch, jobs, session)
    waiting = turned(jobs, turn)
    while waiting := [job for job in waiting if job.composed.name not in session.failures]:
        busy = [job for job in waiting if not _finish(job, batch, session)]
        if len(busy) == len(waiting) and not session.failures.keys() & {job.composed.name for job in busy}:
            time.sleep(_POLL_SECONDS)
        waiting = busy
    return session.failures


def turned(items: Sequence[Any], turn: float) -> list[Any]:
    """Returns the items rotated by the fraction `turn` of their number: the skipped ones come last."""
    first = int(turn * len(items))
    return [*items[first:], *items[:first]]


def check_batch(batch: Paper, request: Request) -> dict[str, str]:
    """Composes, builds and traces every arm that lacks runs; returns the reasons why arms failed, by name."""
    session = Session(request, open_progress(1, "reproduce", enabled=False))
    _prepare(batch, _jobs(batch, request, session), session)
    return session.failures


def compose_batch(batch: Paper, request: Request) -> tuple[dict[str, Composed], dict[str, str]]:
    """Composes the requested arms of a batch; returns them, and the reasons why others failed, by name."""
    composed, failures = {}, {}
    for arm in _wanted(batch, request):
        try:
            settings: dict[str, Any] = {"quick": request.quick, "overrides": request.overrides}
            composed[arm.name] = compose_arm(batch.study, arm, request.config_folder, **settings)
        except Exception as error:  # An error in one arm stops no other.
            failures[arm.name] = describe_failure(error, request.results)
    return composed, failures


def _wanted(batch: Paper, request: Request) -> list[Arm]:
    return [arm for arm in batch.arms if request.arms is None or arm.name in request.arms]


def _jobs(batch: Paper, request: Request, session: Session) -> list[Job]:
    composed, failures = compose_batch(batch, request)
    for name, reason in failures.items():
        _fail(session, name, reason)
    jobs = [Job(batch, one, missing_seeds(batch, one, request)) for one in composed.values()]
    jobs = [job for job in jobs if job.seeds]
    prepare_devices(jobs)
    choose_groups(jobs, request)
    return jobs


def missing_seeds(batch: Paper, composed: Composed, request: Request) -> list[int]:
    """Returns the seeds of a batch for which an arm has no line."""
    done = {line.seed for line in read_batch(request.results, batch.study.id) if line.address == composed.address}
    return [seed for seed in batch.seeds if seed not in done]


def _prepare(batch: Paper, jobs: Sequence[Job], session: Session) -> None:
    """Builds and traces all arms and their starts; budgets must equal that of the first baseline that trains."""
    began = time.monotonic()
    traced: set[str] = set()
    for job in jobs:
        _try(session, job, lambda job=job: _trace_start(job, traced))
        _try(session, job, lambda job=job: _build(batch, job))
        _try(session, job, lambda job=job: _try_functions_of_others(batch, job.composed, session.request))
    known = {job.composed.name: job.budget for job in jobs if job.budget}
    first = next(iter(known.items()), None)
    for job in jobs:
        if first is not None and job.budget is not None:
            _try(
                session,
                job,
                lambda job=job: require_equal_budgets(batch, dict([first, (job.composed.name, job.budget)])),
            )
    if not jobs:
        return session.progress.message(f"{batch.id}: nothing to run, the stored runs are reused.")
    built = sum(job.composed.name not in session.failures for job in jobs)
    seconds = time.monotonic() - began
    session.progress.message(f"{batch.id}: {built} of {len(jobs)} arms are built and traced ({seconds:.0f} seconds).")


def _trace_start(job: Job, traced: set[str]) -> None:
    """Builds and traces the stages that an arm starts from, unless another arm with the same start was traced."""
    start = job.composed.start
    if start is not None and (address := start_address(start)) not in traced:
        logged_names(build_stages(start, 1))
        traced.add(address)


def _build(batch: Paper, job: Job, *, check: bool = True) -> None:
    if job.stages or job.composed.recipe is None:
        return
    build_job(job, check=check)
    if check:
        require_logged(batch, job.composed.name, job.logged, [batch.study.metric])


def _try_functions_of_others(batch: Paper, arm: Composed, request: Request) -> None:
    """Runs a quick variant of an arm that calls functions of others, such as a user's reward, verifier or judge.

    Raises:
        ValueError: it produced numbers that are not finite; names the functions.
    """
    recipes = [recipe.stages for recipe in (arm.recipe, arm.start) if recipe is not None]
    arguments = {name: value for name, value in (arm.function or {}).items() if name != "_target_"}
    if request.quick or not (functions := functions_of_others([*recipes, arguments])):
        return
    (asked,) = (one for one in batch.arms if one.name == arm.name)
    quick = compose_arm(batch.study, asked, request.config_folder, quick=True, overrides=request.overrides)
    with tempfile.TemporaryDirectory() as folder:
        elsewhere = replace(request, quick=True, results=Path(folder), cache=Path(folder))
        job, progress = Job(batch, quick, [*batch.seeds[:1]]), open_progress(1, "trial", enabled=False)
        (run,) = run_seeds(job, job.seeds, Session(elsewhere, progress))
    infinite = [f"`{name}`" for name, curve in run.curves.items() if math.inf in curve["values"]]
    if run.status == DIVERGED or infinite:
        raise ValueError(
            f"{' and '.join(f'`{name}`' for name in functions)} must return finite numbers, got NaN or infinite "
            f"{', '.join(infinite) or 'parameters'} in a quick run."
        )


def _finish(job: Job, batch: Paper, session: Session) -> bool:
    """Runs the seeds of an arm that no other worker has leased; returns whether none is missing, or it has failed."""
    request = session.request

    def missing() -> list[int]:
        return missing_seeds(batch, job.composed, request)

    def store(seeds: list[int]) -> None:
        _build(batch, job, check=False)  # Checked by `_prepare`, here or in the process that started this worker.
        _run_group(job, batch, seeds, session)

    _try(session, job, lambda: run_groups(job, request.results, missing, store, prefix="batch-"))
    job.stages.clear()  # Compiled programs are large.
    return job.composed.name in session.failures or not missing()


def _run_group(job: Job, batch: Paper, seeds: Sequence[int], session: Session) -> None:
    began = time.process_time()
    runs = run_seeds(job, seeds, session)
    cpu_minutes = (time.process_time() - began) / 60.0 / len(runs)
    lines = [_line(batch, job.composed.name, run, cpu_minutes, session.request.overrides) for run in runs]
    _append(session.request.results, batch.study.id, lines)
    values = ", ".join(f"{line.values.get(batch.study.metric, math.nan):.4g}" for line in lines)
    which = f"seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]}"
    session.progress.message(
        f"{batch.id}: {job.composed.name}, {which}: {batch.study.metric} {values} "
        f"({cpu_minutes * len(runs):.1f} CPU minutes)"
    )


def _line(batch: Paper, arm: str, run: Run, cpu_minutes: float, overrides: Sequence[str]) -> Line:
    of_run, metrics = {run.seed: run}, reported_metrics(batch)
    values = {metric: values_of(of_run, metric).get(run.seed) for metric in metrics}
    start = {metric: values_of(of_run, metric, at_start=True).get(run.seed) for metric in metrics}
    try:
        _, curve = curve_of(batch.study.metric, run.curves)
    except ValueError:  # The run diverged before the first evaluation.
        curve = {"steps": [], "values": []}
    last = len(curve["steps"]) - 1
    chosen = np.unique(np.linspace(0, last, _POINTS).round().astype(int)) if last >= 0 else ()
    points = [[curve["steps"][i], curve["values"][i]] for i in chosen if math.isfinite(curve["values"][i])]
    return Line(
        arm=arm,
        address=run.address,
        seed=run.seed,
        status=run.status,
        values={name: _rounded(value) for name, value in values.items() if value is not None},
        start={name: _rounded(value) for name, value in start.items() if value is not None},
        curve=[[int(step) for step, _ in points], [_rounded(value) for _, value in points]],
        minutes=_rounded(run.minutes),
        cpu_minutes=_rounded(cpu_minutes),
        overrides=list(overrides),
        commit=run.versions.get("commit"),
    )


def _append(results: Path, study: str, lines: Sequence[Line]) -> None:
    """Appends lines to the file of a batch, on a new line if a killed process left the last one incomplete."""
    path = batch_path(results, study)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(to_json(line._asdict()), separators=(",", ":")) + "\n" for line in lines)
    with leased(results, f"batch-{study}"), path.open("ab+") as file:
        file.seek(max(0, file.seek(0, 2) - 1))
        whole = file.read() in (b"", b"\n")
        file.write(("" if whole else "\n").encode() + text.encode())


def _try(session: Session, job: Job, call: Any) -> None:
    name = job.composed.name
    if name in session.failures:
        return
    try:
        call()
    except Exception as error:  # Includes XLA errors when memory runs out.
        _fail(session, name, describe_failure(error, session.request.results))


def _fail(session: Session, name: str, reason: str) -> None:
    session.failures[name] = reason
    session.progress.message(f"Failed: {name}: {reason}")


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
