"""Runs a paper: all arms and seeds that are missing, from shared starts, to numbers on the disk."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxagents.ops.checks import require_positive
from jaxagents.papers.arms import (
    Composed,
    Curves,
    budget_of,
    build_stages,
    call_target,
    compose_arm,
    find_metric,
    logged_names,
    train_seeds,
)
from jaxagents.papers.spec import Paper, Variant, choose_arms, load_paper
from jaxagents.papers.starts import Start, prepare_start, start_digest
from jaxagents.papers.store import read_results, select_arms, stale_arms, write_results
from jaxagents.papers.verdicts import judge, start_values, summarize_arms
from jaxagents.reporting.progress import Progress, open_progress
from jaxagents.reporting.reports import versions
from jaxagents.training.build import Stage
from jaxagents.training.config import DevicesConfig, make_section
from jaxagents.training.launch import prepare_backend
from jaxagents.types import Params


@dataclass(frozen=True)
class Request:
    """What to run of a paper.

    Attributes:
        config_folder: of the experiments.
        results_file: JSON file that is gone on with.
        starts_folder: where shared starts are kept.
        arms: names; None: all.
        seeds: per arm; None: the paper's.
        seeds_at_once: None: the paper's.
        quick: seconds instead of minutes.
        full: the paper's large variant.
        redo: replaces earlier results of these arms, and their starts.
        overrides: of all arms.
    """

    config_folder: Path
    results_file: Path
    starts_folder: Path
    arms: tuple[str, ...] | None = None
    seeds: int | None = None
    seeds_at_once: int | None = None
    quick: bool = False
    full: bool = False
    redo: bool = False
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.quick and self.full:
            raise ValueError("`quick` and `full` must not both be true, got both; try one of them.")
        for name in ("seeds", "seeds_at_once"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))


def make_request(config: Mapping[str, Any], paper: Paper, root: Path) -> Request:
    """Makes a request of `configs/paper/reproduce.yaml`.

    Args:
        config: composed.
        paper: that it names.
        root: of the repository.

    Returns:
        The request.
    """
    folder = config["results_folder"] or (root / "experiments" / "results" if not config["quick"] else "runs/reproduce")
    suffix = "_full" if config["full"] else ""
    return Request(
        config_folder=root / "configs",
        results_file=Path(folder) / f"{paper.id}{suffix}.json",
        starts_folder=Path(config["starts"]),
        arms=None if config["arms"] is None else tuple(config["arms"]),
        overrides=tuple(config["overrides"]),
        **{name: config[name] for name in ("seeds", "seeds_at_once", "quick", "full", "redo")},
    )


@dataclass
class _Job:
    """An arm that is to be trained: its stages, built once for groups of seeds."""

    composed: Composed
    seeds: list[int]
    group: int
    stages: list[Stage] = field(default_factory=list)


def reproduce(paper: Paper, request: Request) -> dict[str, Any]:
    """Runs what is missing of a paper, and writes the results after every group of seeds.

    Args:
        paper: see `papers.load_paper`.
        request: what to run.

    Returns:
        The results, see `paper_results.read_results` and `conclude`.

    Raises:
        ValueError: an arm, a metric, a budget or the file of earlier results does not hold.
    """
    chosen = [arm.name for arm in choose_arms(paper, request.arms)]
    settings = {"quick": request.quick, "full": request.full, "overrides": list(request.overrides)}
    composed = compose_arms(paper, request.config_folder, **settings)
    results = read_results(request.results_file, paper.id)
    digests = {name: arm.digest for name, arm in composed.items()}
    results = {**select_arms(results, digests, chosen if request.redo else ()), "settings": settings}
    _require_metrics(paper, results)
    trained = next((arm for arm in composed.values() if "devices" in arm.config), None)
    if trained is not None:
        prepare_backend(make_section(DevicesConfig, "devices", trained.config["devices"]))
    jobs = [_make_job(paper, request, composed[name], results["arms"].get(name)) for name in chosen]
    jobs = [job for job in jobs if job.seeds]
    budgets = {name: arm["budget"] for name, arm in results["arms"].items()}
    budgets |= {job.composed.name: _check_job(paper, job) for job in jobs}
    _require_equal_budgets(paper, budgets)
    progress = open_progress(sum(len(job.seeds) for job in jobs) or 1, paper.id, enabled=False)
    starts = _prepare_starts(paper, request, jobs, results, progress)
    for job in jobs:
        start = starts.get(job.composed.name)
        arm = {"hash": job.composed.digest, "budget": budgets[job.composed.name], "start": start and start.digest}
        results["arms"].setdefault(job.composed.name, {**arm, "runs": {}})
        _run_job(paper, job, start, results, request.results_file, progress)
        job.stages.clear()  # Compiled programs are large.
    order = [name for name in composed if name in results["arms"]]
    results = conclude(paper, {**results, "arms": {name: results["arms"][name] for name in order}})
    write_results(request.results_file, results)
    return results


def compose_arms(
    paper: Paper, config_folder: Path, *, quick: bool = False, full: bool = False, overrides: Sequence[str] = ()
) -> dict[str, Composed]:
    """Composes every arm of a paper as it is now.

    Args:
        paper: see `papers.load_paper`.
        config_folder: of the experiments.
        quick: the paper's small variant.
        full: its large one.
        overrides: further ones of all arms.

    Returns:
        The arms by name.
    """
    variant = _variant(paper, quick, full)
    options = {"overrides": (*variant.overrides, *overrides), "arguments": variant.arguments, "quick": quick}
    return {arm.name: compose_arm(paper, arm, config_folder, **options) for arm in paper.arms}


def read_conclusion(path: str | Path, config_folder: str | Path) -> dict[str, Any]:
    """Reads results and concludes from those of today's settings; stale ones are told apart and get no verdict.

    Args:
        path: file of `experiments/reproduce.py`.
        config_folder: holds the paper as it is now.

    Returns:
        See `conclude`.

    Raises:
        ValueError: the file is damaged, or was cut off before its verdict.
    """
    results = read_results(path)
    if "verdict" not in results:
        raise ValueError(f"`{path}` must be finished, got no verdict; run reproduce.py again.")
    paper = load_paper(Path(config_folder) / "paper", results["paper"])
    composed = compose_arms(paper, Path(config_folder), **results.get("settings", {}))
    return conclude(paper, select_arms(results, {name: arm.digest for name, arm in composed.items()}))


def conclude(paper: Paper, results: Mapping[str, Any]) -> dict[str, Any]:
    """Adds to results what they say: the claim, means and intervals, findings and verdict.

    Args:
        paper: its claim and expectations.
        results: see `paper_results.read_results`.

    Returns:
        The results with these entries, as plain data.
    """
    metrics = reported_metrics(paper)
    findings, verdict = judge(paper, results)
    runs = [run for arm in results["arms"].values() for run in arm["runs"].values()]
    told = {name: getattr(paper, name) for name in ("title", "claim", "notes")}
    return {
        **results,
        **told,
        "metrics": metrics,
        "summary": summarize_arms(metrics, results),
        "stale": summarize_arms(metrics, {"arms": stale_arms(results)}),
        "start": {metric: start_values(results, metric) for metric in metrics},
        "findings": [
            {**finding._asdict(), "measured": finding.measured and finding.measured._asdict()} for finding in findings
        ],
        "verdict": verdict,
        "minutes": sum(run["minutes"] for run in runs),
        "minutes_planned": paper.minutes,
    }


def num_seeds(paper: Paper, request: Request) -> int:
    """Returns the seeds of every arm that are asked for."""
    default = 3 if request.quick else paper.seeds
    return 1 if paper.deterministic else request.seeds or _variant(paper, request.quick, request.full).seeds or default


def reported_metrics(paper: Paper) -> list[str]:
    """Returns the metrics of the verdict first, each once."""
    return list(dict.fromkeys([paper.metric, *(expected.metric for expected in paper.expect), *paper.metrics]))


def _variant(paper: Paper, quick: bool, full: bool) -> Variant:
    return paper.when_full if full else paper.when_quick if quick else Variant()


def _make_job(paper: Paper, request: Request, composed: Composed, earlier: Mapping[str, Any] | None) -> _Job:
    done = {int(seed) for seed in earlier["runs"]} if earlier else set()
    missing = [seed for seed in range(num_seeds(paper, request)) if seed not in done]
    at_once = request.seeds_at_once or paper.seeds_at_once or len(missing)
    return _Job(composed=composed, seeds=missing, group=max(1, min(at_once, len(missing))))


def _check_job(paper: Paper, job: _Job) -> list[Any] | None:
    """Builds the stages of a job; returns `[unit, length]` of its training, None for a function."""
    if "_target_" in job.composed.config:
        return None
    job.stages = build_stages(job.composed, job.group, start=paper.start)
    names = logged_names(job.stages)
    for metric in reported_metrics(paper):
        find_metric(metric, names)
    return list(budget_of(job.stages))


def _require_metrics(paper: Paper, results: Mapping[str, Any]) -> None:
    """Refuses earlier results without the curve of a metric, which was not reported then."""
    for name, arm in results["arms"].items():
        for run in arm["runs"].values():
            for metric in reported_metrics(paper):
                try:
                    find_metric(metric, list(run["curves"]))
                except ValueError as error:
                    raise ValueError(
                        f"`metrics` must be those that earlier results report, got {metric}, which is new to {name}; "
                        "try redo=true, or leave it out."
                    ) from error


def _require_equal_budgets(paper: Paper, budgets: Mapping[str, Sequence[Any] | None]) -> None:
    if paper.budget == "none":
        return
    told = {name: f"{length} {unit}" for name, (unit, length) in ((n, b) for n, b in budgets.items() if b)}
    if len(set(told.values())) > 1 or any(not text.endswith(f" {paper.budget}") for text in told.values()):
        raise ValueError(
            f"`arms` must have the same budget in {paper.budget}, got "
            f"{', '.join(f'{text} of {name}' for name, text in told.items())}; try equal training.total_steps, or "
            "budget: none."
        )


def _prepare_starts(
    paper: Paper, request: Request, jobs: Sequence[_Job], results: dict[str, Any], progress: Progress
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
    paper: Paper, job: _Job, start: Start | None, results: dict[str, Any], path: Path, progress: Progress
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


def _train_group(paper: Paper, job: _Job, seeds: Sequence[int], params: Params | None) -> list[Curves]:
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
    kept = {n: _rounded(c) for n, c in curves.items() if n in reported or n.startswith("eval/")}
    return {"curves": kept, "last": {n: _rounded(c)["values"][-1] for n, c in curves.items() if n not in kept}}


def _rounded(curve: Mapping[str, list]) -> dict[str, list]:
    return {"steps": curve["steps"], "values": [float(f"{value:.6g}") for value in curve["values"]]}
