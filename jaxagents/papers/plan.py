"""What is to be run of a paper: arms and seeds that are missing, checked before anything is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxagents.ops.checks import require_positive
from jaxagents.papers.arms import Composed, budget_of, build_stages, logged_names, variant_of
from jaxagents.papers.metrics import find_metric
from jaxagents.papers.spec import Paper
from jaxagents.papers.verdicts import reported_metrics
from jaxagents.training.build import Stage


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
class Job:
    """An arm that is to be run.

    Attributes:
        composed: the arm.
        seeds: that are missing.
        group: how many run side by side.
        stages: built for a group; none of a function.
        budget: `[unit, length]` of the training of a seed; None of a function.
    """

    composed: Composed
    seeds: list[int]
    group: int
    stages: list[Stage] = field(default_factory=list)
    budget: list[Any] | None = None


def plan_jobs(
    paper: Paper, request: Request, composed: Mapping[str, Composed], earlier: Mapping[str, Mapping[str, Any]]
) -> list[Job]:
    """Plans what is missing, and checks it against what is there.

    Args:
        paper: that is put to the test.
        request: what to run.
        composed: the chosen arms.
        earlier: stored arms of today's settings, by name.

    Returns:
        One job for every arm that lacks seeds, its stages built.

    Raises:
        ValueError: an arm does not log a metric, or earlier results do not, or budgets differ.
    """
    _require_metrics(paper, earlier)
    jobs = [_make_job(paper, request, arm, earlier.get(name)) for name, arm in composed.items()]
    jobs = [job for job in jobs if job.seeds]
    for job in jobs:
        _build(paper, job)
    budgets = {name: arm["budget"] for name, arm in earlier.items()}
    _require_equal_budgets(paper, budgets | {job.composed.name: job.budget for job in jobs})
    return jobs


def num_seeds(paper: Paper, request: Request) -> int:
    """Returns the seeds of every arm that are asked for."""
    default = 3 if request.quick else paper.seeds
    return (
        1
        if paper.deterministic
        else request.seeds or variant_of(paper, quick=request.quick, full=request.full).seeds or default
    )


def _make_job(paper: Paper, request: Request, composed: Composed, earlier: Mapping[str, Any] | None) -> Job:
    done = {int(seed) for seed in earlier["runs"]} if earlier else set()
    missing = [seed for seed in range(num_seeds(paper, request)) if seed not in done]
    at_once = request.seeds_at_once or paper.seeds_at_once or len(missing)
    return Job(composed=composed, seeds=missing, group=max(1, min(at_once, len(missing))))


def _build(paper: Paper, job: Job) -> None:
    """Builds the stages of a job, unless it is a function."""
    if "_target_" in job.composed.config:
        return
    job.stages = build_stages(job.composed, job.group, start=paper.start)
    names = logged_names(job.stages)
    for metric in reported_metrics(paper):
        find_metric(metric, names)
    job.budget = list(budget_of(job.stages))


def _require_metrics(paper: Paper, arms: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuses earlier results without the curve of a metric, which was not reported then."""
    for name, arm in arms.items():
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
