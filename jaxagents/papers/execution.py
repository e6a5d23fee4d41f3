"""Runs the missing runs of papers from shared starts into the store; several workers can share the work."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jaxagents.papers.arms import (
    Composed,
    Recipe,
    build_stages,
    compose_arm,
    compose_arms,
    settings_of,
    start_address,
    steps_of,
)
from jaxagents.papers.judge import judge, values_of
from jaxagents.papers.leases import Lease, take_lease
from jaxagents.papers.metrics import Curves
from jaxagents.papers.plan import (
    Job,
    Request,
    build_job,
    choose_groups,
    make_job,
    prepare_devices,
    require_equal_budgets,
    require_logged,
    require_metrics,
    wanted_arms,
    wanted_seeds,
)
from jaxagents.papers.registration import register
from jaxagents.papers.runs import DIVERGED, DONE, ArmRuns, Run, read_runs, run_path, write_asked, write_run
from jaxagents.papers.seeds import TrainedPolicy, call_function, train_seeds
from jaxagents.papers.starts import Start, prepare_starts, stack_params, start_path
from jaxagents.papers.study import SEARCH_SEEDS, Paper
from jaxagents.reporting.progress import Progress, open_progress
from jaxagents.reporting.reports import versions
from jaxagents.training.build import Stage
from jaxagents.training.full_disk import is_full_disk

_POLL_SECONDS = 1.0


@dataclass
class Session:
    """What one process remembers while it runs papers.

    Attributes:
        request: what to run.
        progress: display of what is being run.
        failures: reasons why arms could not be run, by arm.
        starts: loaded starts, by address and seed.
        start_stages: address and stages of the latest start's recipe, kept for their compiled programs.
        checked: papers whose metrics and budgets have been checked.
    """

    request: Request
    progress: Progress
    failures: dict[str, str] = field(default_factory=dict)
    starts: dict[str, dict[int, Start]] = field(default_factory=dict)
    start_stages: tuple[str, Sequence[Stage]] = ("", ())
    checked: set[str] = field(default_factory=set)


def run_papers(papers: Sequence[Paper], request: Request) -> dict[str, str]:
    """Runs the missing runs of papers; returns when none is missing, or all that are missing have failed here.

    Arms that other workers have leased are left to them, and checked again later: if a worker dies, by whatever signal,
    the others run what it has left.

    Args:
        papers: see `library.load_paper`.
        request: what to run.

    Returns:
        Reasons why arms failed, by `<paper>: <arm>`; the failure of one arm does not stop the others.
    """
    session = Session(request, open_progress(1, "reproduce", enabled=False))
    waiting = list(papers)
    while waiting:
        busy = []
        for paper in waiting:
            try:
                if not _run_paper(paper, session):
                    busy.append(paper)
            except Exception as error:  # An error in one paper, or a full disk, stops no other.
                _fail(session, paper.id, error)
        if len(busy) == len(waiting):
            time.sleep(_POLL_SECONDS)
        waiting = busy
    return session.failures


def read_paper_runs(
    paper: Paper, config_folder: str | Path, results: str | Path, *, quick: bool = False, overrides: Sequence[str] = ()
) -> dict[str, ArmRuns]:
    """Reads the stored runs of all arms of a paper, with their current settings, by arm.

    Args:
        paper: see `library.load_paper`.
        config_folder: folder of the experiments' configs.
        results: folder of the store.
        quick: whether to read those of the small variants.
        overrides: overrides of trials.

    Returns:
        The runs that `judge.judge` judges.
    """
    composed = compose_arms(paper, config_folder, quick=quick, overrides=overrides)
    return {name: read_runs(results, arm.address) for name, arm in composed.items()}


def _run_paper(paper: Paper, session: Session) -> bool:
    """Runs what no other worker has leased; returns whether nothing is missing except for what failed here."""
    request = session.request
    in_looks = bool(paper.looks) and request.seeds is None and not request.is_trial
    if in_looks:  # Nothing beyond the next look, and nothing after a look that decides.
        runs = read_paper_runs(paper, request.config_folder, request.results)
        request = replace(request, seeds=judge(paper, runs).seeds)
    settings: dict[str, Any] = {"quick": request.quick, "overrides": request.overrides}
    chosen = [compose_arm(paper.study, arm, request.config_folder, **settings) for arm in wanted_arms(paper, request)]
    jobs = [make_job(paper, composed, request, session.progress.message) for composed in chosen]
    jobs = [job for job in jobs if job.seeds and f"{paper.id}: {job.composed.name}" not in session.failures]
    if not jobs:
        if paper.id not in session.checked and not session.failures:
            session.checked.add(paper.id)
            count = len(chosen) * len(wanted_seeds(paper, request))
            session.progress.message(f"{paper.id}: nothing to run, {count} stored runs are reused.")
        return True
    prepare_devices(jobs)
    choose_groups(jobs, request)
    if paper.id not in session.checked:
        for job in jobs:
            build_job(job)
        require_metrics(paper, jobs)
        require_equal_budgets(paper, {job.composed.name: job.budget for job in jobs})
        counted = not request.is_trial and min(wanted_seeds(paper, request)) < SEARCH_SEEDS
        if counted and paper.source is not None:
            resolved = settings_of(compose_arms(paper, request.config_folder))
            options: dict[str, Any] = {"again": request.register, "files": paper.files, "say": session.progress.message}
            register(request.results, paper, resolved, **options)
        session.checked.add(paper.id)
    finished = True
    for job in jobs:
        try:
            finished &= _run_job(job, session)
        except Exception as error:  # Includes XLA errors when memory runs out.
            _fail(session, f"{paper.id}: {job.composed.name}", error)
        job.stages.clear()  # Compiled programs are large.
    return finished and not in_looks


def _fail(session: Session, name: str, error: Exception) -> None:
    session.failures[name] = describe_failure(error, session.request.results)
    session.progress.message(f"Failed: {name}: {session.failures[name]}")


def describe_failure(error: Exception, results: Path) -> str:
    """Describes in one line why something could not be run; for a full disk, it names the full folder."""
    message = " ".join(str(error).split()) or type(error).__name__
    full = is_full_disk(error)
    if full:
        where = getattr(error, "filename", None) or results
        message = f"No space left on device: {where}; what is stored stays, and the same command runs the rest."
    known = full or isinstance(error, ValueError | OSError)
    return message if known else f"{type(error).__name__}: {message}"


def _run_job(job: Job, session: Session) -> bool:
    """Runs the seeds of a job that no other worker has leased; returns whether all of them are stored."""
    results, address = session.request.results, job.composed.address

    def missing() -> list[int]:
        return [seed for seed in job.seeds if not run_path(results, address, seed).exists()]

    return run_groups(job, results, missing, lambda seeds: _store_group(job, seeds, session))


def run_groups(
    job: Job, results: Path, missing: Callable[[], list[int]], store: Callable[[list[int]], Any], *, prefix: str = ""
) -> bool:
    """Runs the seeds of a job that no other worker has leased, group by group.

    Args:
        job: job whose `group` is the number of seeds that run in parallel.
        results: folder of the store, which holds the leases.
        missing: function that returns the seeds that are not stored.
        store: function that runs seeds and stores the runs.
        prefix: prefix of the names of leases.

    Returns:
        Whether no seed is missing; False if other workers have leased some.
    """
    while waiting := missing():
        leases: dict[int, Lease] = {}
        for seed in waiting:
            lease = take_lease(results, f"{prefix}{lease_name(job.composed, seed)}")
            leases |= {} if lease is None else {seed: lease}
            if len(leases) == job.group:
                break
        try:
            if seeds := [seed for seed in missing() if seed in leases]:  # Not stored in the meantime.
                store(seeds)
        finally:
            for taken in leases.values():
                taken.release()
        if not leases:
            return False
    return True


def lease_name(composed: Composed, seed: int) -> str:
    """Returns the name of a run's lease."""
    return f"{composed.address}-{seed}"


def run_seeds(job: Job, seeds: Sequence[int], session: Session) -> list[Run]:
    """Runs seeds of an arm from their starts; stores nothing except starts that were missing."""
    composed, paper = job.composed, job.paper
    if composed.recipe is not None and not job.stages:
        build_job(job, check=not job.logged)
    starts = starts_of(composed.start, seeds, session)
    _require_same_start(session.request.results, composed, starts)
    began = time.monotonic()
    if composed.function is not None:
        results = [(_call(composed, seed, starts.get(seed)), False) for seed in seeds]
    else:
        results = _train_group(job, seeds, starts)
    minutes, made_with = (time.monotonic() - began) / 60.0, versions()
    runs = []
    for seed, (curves, diverged) in zip(seeds, results):
        start = starts.get(seed)
        if composed.function is not None:
            require_logged(paper, composed.name, list(curves))
        if start is not None and composed.function is None:
            _prepend(curves, start.evaluation)
        run = Run(
            address=composed.address,
            seed=seed,
            status=DIVERGED if diverged else DONE,
            curves=curves,
            minutes=minutes / len(seeds),
            start=start and start.digest,
            budget=job.budget,
            versions=made_with,
        )
        runs.append(run)
    return runs


def _store_group(job: Job, seeds: Sequence[int], session: Session) -> None:
    composed, paper, results = job.composed, job.paper, session.request.results
    runs = run_seeds(job, seeds, session)
    write_asked(run_path(results, composed.address, 0).parent, composed.asked)
    for run in runs:
        write_run(results, run)
    found = values_of({run.seed: run for run in runs}, paper.study.metric)
    numbers = ", ".join(f"{found.get(run.seed, math.nan):.4g}" for run in runs)
    values = f"{paper.study.metric} {numbers}" if found else "stored"
    which = f"seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]}"
    minutes = sum(run.minutes for run in runs)
    session.progress.message(f"{paper.id}: {composed.name}, {which}: {values} ({minutes:.1f} minutes)")


def _train_group(job: Job, seeds: Sequence[int], starts: Mapping[int, Start]) -> list[tuple[Curves, bool]]:
    padded = [*seeds, *[seeds[-1]] * (job.group - len(seeds))]  # The last group uses the same program.
    params = stack_params([starts[seed].params for seed in padded]) if starts else None
    progress = open_progress(steps_of(job.stages), f"{job.composed.name} {', '.join(map(str, seeds))}")
    try:
        trained = train_seeds(job.stages, padded, params, first_stage=job.composed.recipe.first, progress=progress)
    finally:
        progress.close()
    return list(zip(trained.curves, trained.diverged))[: len(seeds)]


def _call(composed: Composed, seed: int, start: Start | None) -> Curves:
    if start is None:
        return call_function(composed.function, seed)
    trained = TrainedPolicy(environment=start.stage.environment, policy=start.stage.policy, params=start.params)
    return call_function(composed.function, seed, trained)


def starts_of(recipe: Recipe | None, seeds: Sequence[int], session: Session) -> dict[int, Start]:
    """Returns the start of every seed; all share one if the recipe has a seed of its own."""
    if recipe is None:
        return {}
    of_seed = {seed: seed if recipe.seed is None else recipe.seed for seed in seeds}
    address, request = start_address(recipe), session.request
    known = session.starts.setdefault(address, {})
    if missing := sorted({*of_seed.values()} - {*known}):
        if session.start_stages[0] != address:
            session.start_stages = (address, build_stages(recipe, 1))
        # A start that all seeds share is kept with the results; those of single seeds would take most of the space.
        folder = request.cache if recipe.seed is None else request.results
        options: dict[str, Any] = {"say": session.progress.message, "stages": session.start_stages[1]}
        known.update(prepare_starts(recipe, missing, folder, request.cache, **options))
    return {seed: known[own] for seed, own in of_seed.items()}


def _require_same_start(results: Path, composed: Composed, starts: Mapping[int, Start]) -> None:
    """Refuses to add runs whose start differs from that of the arm's stored runs."""
    if composed.start is None or composed.start.seed is None:
        return
    here = {start.digest for start in starts.values()}
    stored = {run.start for run in read_runs(results, composed.address).runs.values()}
    if stored - here:
        raise ValueError(
            f"`start` must be {' or '.join(map(str, stored))}, that of the stored runs of {composed.name}, got "
            f"{' or '.join(here)}: training it on this machine gave other parameters; bring its file to "
            f"{start_path(results, start_address(composed.start), composed.start.seed)}."
        )


def _prepend(curves: Curves, evaluation: Mapping[str, float]) -> None:
    """Prepends the evaluation of the start to the curves."""
    for name, value in evaluation.items():
        curve = curves.setdefault(name, {"steps": [], "values": []})
        curve["steps"].insert(0, 0)
        curve["values"].insert(0, value)
