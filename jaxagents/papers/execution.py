"""Runs a paper: all arms and seeds that are missing, from shared starts, to numbers on the disk."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxagents.papers.arms import budget_of, compose_arms
from jaxagents.papers.metrics import Curves, find_metric
from jaxagents.papers.plan import Job, Request, plan_jobs
from jaxagents.papers.seeds import call_target, train_seeds
from jaxagents.papers.spec import Paper, choose_arms
from jaxagents.papers.starts import Start, prepare_start, start_digest
from jaxagents.papers.store import read_results, select_arms, write_results
from jaxagents.papers.verdicts import conclude, reported_metrics
from jaxagents.reporting.progress import Progress, open_progress
from jaxagents.reporting.reports import versions
from jaxagents.training.config import DevicesConfig, make_section
from jaxagents.training.launch import prepare_backend
from jaxagents.types import COUNTERS, Params

_COUNTERS = [f"rollout/{unit}" for unit in COUNTERS]  # `x@turns=N` reads them.


def reproduce(paper: Paper, request: Request) -> dict[str, Any]:
    """Runs what is missing of a paper, and writes the results after every group of seeds.

    Args:
        paper: see `papers.load_paper`.
        request: what to run.

    Returns:
        The results, see `store.read_results` and `conclude`.

    Raises:
        ValueError: an arm, a metric, a budget or the file of earlier results does not hold.
    """
    chosen = [arm.name for arm in choose_arms(paper, request.arms)]
    settings = {"quick": request.quick, "full": request.full, "overrides": list(request.overrides)}
    composed = compose_arms(paper, request.config_folder, **settings)
    results = read_results(request.results_file, paper.id)
    digests = {name: arm.digest for name, arm in composed.items()}
    results = {**select_arms(results, digests, chosen if request.redo else ()), "settings": settings}
    trained = next((arm for arm in composed.values() if "devices" in arm.config), None)
    if trained is not None:
        prepare_backend(make_section(DevicesConfig, "devices", trained.config["devices"]))
    jobs = plan_jobs(paper, request, {name: composed[name] for name in chosen}, results["arms"])
    progress = open_progress(sum(len(job.seeds) for job in jobs) or 1, paper.id, enabled=False)
    starts = _prepare_starts(paper, request, jobs, results, progress)
    for job in jobs:
        start = starts.get(job.composed.name)
        arm = {"hash": job.composed.digest, "budget": job.budget, "start": start and start.digest, "runs": {}}
        results["arms"].setdefault(job.composed.name, arm)
        _run_job(paper, job, start, results, request.results_file, progress)
        job.stages.clear()  # Compiled programs are large.
    order = [name for name in composed if name in results["arms"]]
    results = conclude(paper, {**results, "arms": {name: results["arms"][name] for name in order}})
    write_results(request.results_file, results)
    return results


def _prepare_starts(
    paper: Paper, request: Request, jobs: Sequence[Job], results: dict[str, Any], progress: Progress
) -> dict[str, Start]:
    """Returns the start of every job; those of one digest are one."""
    if paper.start is None:
        return {}
    by_digest: dict[str, Start] = {}
    by_arm: dict[str, Start] = {}
    for job in (job for job in jobs if job.stages):
        digest = start_digest(job.composed, paper.start, paper.start_seed)
        if digest not in by_digest:
            by_digest[digest] = prepare_start(
                job.composed,
                paper.start,
                paper.start_seed,
                request.starts_folder,
                say=progress.message,
                redo=request.redo,
            )
            earlier = results["starts"].setdefault(digest, {"evaluation": by_digest[digest].evaluation})
            if earlier["evaluation"] != by_digest[digest].evaluation:
                raise ValueError(
                    f"`starts` must hold the start {digest} of the earlier results, got one with another evaluation; "
                    "try redo=true, or the folder and the code that they were made with."
                )
        by_arm[job.composed.name] = by_digest[digest]
    if len(by_digest) > 1:
        groups = [" ".join(n for n, s in by_arm.items() if s.digest == digest) for digest in by_digest]
        progress.message(f"The arms have {len(by_digest)} starts of their own configs: {'; '.join(groups)}.")
    return by_arm


def _run_job(
    paper: Paper, job: Job, start: Start | None, results: dict[str, Any], path: Path, progress: Progress
) -> None:
    name = job.composed.name
    for first in range(0, len(job.seeds), job.group):
        seeds, began = job.seeds[first : first + job.group], time.time()
        curves = _train_group(paper, job, seeds, start.params if start else None)
        minutes = (time.time() - began) / 60.0
        made_with = versions()
        for seed, of_seed in zip(seeds, curves):
            if start is not None:
                _prepend(of_seed, start.evaluation)
            run = {"minutes": round(minutes / len(seeds), 4), "commit": made_with.get("commit")}
            results["arms"][name]["runs"][str(seed)] = {**run, **_record(paper, of_seed)}
        results["versions"] = made_with
        write_results(path, results)
        values = ", ".join(f"{curve[find_metric(paper.metric, list(curve))]['values'][-1]:.4g}" for curve in curves)
        told = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
        progress.message(f"{paper.id}: {name}, {told}: {paper.metric} {values} ({minutes:.1f} minutes)")


def _train_group(paper: Paper, job: Job, seeds: Sequence[int], params: Params | None) -> list[Curves]:
    if not job.stages:
        return [call_target(job.composed, seed) for seed in seeds]
    padded = [*seeds, *[seeds[-1]] * (job.group - len(seeds))]  # The last group runs in the same program.
    total = budget_of(job.stages)[1]
    progress = open_progress(total, f"{job.composed.name} {', '.join(map(str, seeds))}")
    try:
        curves, _ = train_seeds(
            job.stages, padded, params, first_stage=0 if paper.start is None else 1, progress=progress
        )
    finally:
        progress.close()
    return curves[: len(seeds)]


def _prepend(curves: Curves, evaluation: Mapping[str, float]) -> None:
    """Puts the evaluation of the start before the curves."""
    for name, value in evaluation.items():
        if name in curves:
            curves[name]["steps"].insert(0, 0)
            curves[name]["values"].insert(0, value)


def _record(paper: Paper, curves: Curves) -> dict[str, Any]:
    """Keeps the reported curves and evaluations, and the last value of everything else."""
    reported = {find_metric(metric, list(curves)) for metric in reported_metrics(paper)}
    kept = {n: _rounded(c) for n, c in curves.items() if n in reported or n.startswith("eval/") or n in _COUNTERS}
    return {"curves": kept, "last": {n: _rounded(c)["values"][-1] for n, c in curves.items() if n not in kept}}


def _rounded(curve: Mapping[str, list]) -> dict[str, list]:
    return {"steps": curve["steps"], "values": [float(f"{value:.6g}") for value in curve["values"]]}
