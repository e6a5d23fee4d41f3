"""The missing runs of a paper: arms and seeds, checked before anything is trained."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from jaxagents.ops.checks import require_positive
from jaxagents.papers.arms import Composed, budget_of, build_stages, logged_names
from jaxagents.papers.metrics import find_metrics
from jaxagents.papers.registration import read_registrations
from jaxagents.papers.runs import DIVERGED, read_runs
from jaxagents.papers.study import LEAST_SEEDS, SEARCH_SEEDS, Arm, Paper, choose_arms, parse_seeds
from jaxagents.training.build import Stage
from jaxagents.training.config import DevicesConfig, make_section
from jaxagents.training.launch import prepare_backend
from jaxagents.training.store import set_aside


@dataclass(frozen=True)
class Request:
    """What to run.

    Attributes:
        config_folder: folder of the experiments' configs.
        results: folder of the store.
        cache: folder of starts that are too large for the results.
        arms: names of arms; None: all arms, or with search seeds those of the study.
        seeds: seeds to run; None: the committed ones.
        seeds_at_once: number of seeds that run in parallel; None: the study's number.
        quick: whether to run small variants, which take seconds instead of minutes.
        register: whether to register what has changed since the first registration.
        overrides: overrides of all arms, for trials.
    """

    config_folder: Path
    results: Path
    cache: Path
    arms: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    seeds_at_once: int | None = None
    quick: bool = False
    register: bool = False
    overrides: tuple[str, ...] = ()

    @property
    def is_trial(self) -> bool:
        """Whether the runs are of small variants or other settings, and thus say nothing about the claim."""
        return self.quick or bool(self.overrides)

    def __post_init__(self) -> None:
        if self.seeds_at_once is not None:
            require_positive("seeds_at_once", self.seeds_at_once)


def make_request(config: Mapping[str, Any], root: Path) -> Request:
    """Makes a request from `configs/reproduce.yaml`.

    Args:
        config: composed config.
        root: root of the repository.

    Returns:
        The request.
    """
    committed = root / "experiments" / "results"  # Missing in an installed package.
    own = "runs/reproduce" if config["quick"] else committed if committed.is_dir() else "runs/results"
    folder = config["results_folder"] or own
    require_positive("workers", config["workers"])
    return Request(
        config_folder=root / "configs",
        results=Path(folder),
        cache=Path(config["cache"]),
        arms=None if config["arms"] is None else tuple(config["arms"]),
        seeds=None if config["seeds"] is None else _read_seeds(config["seeds"]),
        overrides=tuple(config["overrides"]),
        **{name: config[name] for name in ("seeds_at_once", "quick", "register")},
    )


def _read_seeds(value: Any) -> tuple[int, ...]:
    return parse_seeds("seeds", value if isinstance(value, str | int) else list(value))


@dataclass
class Job:
    """An arm that is to be run.

    Attributes:
        paper: paper that names it.
        composed: composed arm.
        seeds: seeds without a stored run.
        group: number of seeds that run in parallel.
        stages: stages that were built for a group; empty for a function.
        budget: `[unit, length]` of the training of one seed; None for a function.
        logged: names of everything that the stages log, or that stored calls of a function returned; empty if unknown.
    """

    paper: Paper
    composed: Composed
    seeds: list[int]
    group: int = 1
    stages: list[Stage] = field(default_factory=list)
    budget: list[Any] | None = None
    logged: list[str] = field(default_factory=list)


def check_request(papers: Sequence[Paper], request: Request) -> None:
    """Refuses unknown arms, seeds that never count or are too few, and overrides for functions.

    Args:
        papers: see `library.load_paper`.
        request: request for all of these papers.

    Raises:
        ValueError: an arm is unknown, or is a function and takes no overrides; or, except in trials, a seed is neither
            committed nor a search seed, or a paper that is not yet registered has fewer than `LEAST_SEEDS` seeds.
    """
    registered = read_registrations(request.results)
    for paper in papers:
        choose_arms(paper, request.arms)
        untrained = [arm.name for arm in wanted_arms(paper, request) if not arm.overrides]
        if request.overrides and untrained:
            raise ValueError(
                f"`overrides` must be of arms that are trained, got functions, which take none: "
                f"{', '.join(untrained)} of {paper.id}; change their arguments in the files of the paper, or leave "
                "them out with arms=..."
            )
        counted = not request.is_trial and min(wanted_seeds(paper, request)) < SEARCH_SEEDS
        if counted and not paper.study.deterministic and paper.id not in registered and len(paper.seeds) < LEAST_SEEDS:
            raise ValueError(
                f"`seeds` of {paper.id} must be at least {LEAST_SEEDS} to be registered, got {len(paper.seeds)}, "
                "on which no verdict rests; try seeds: 0-7, or seeds: 0-31 with looks: [4, 8, 16, 32]."
            )
        others = sorted({*wanted_seeds(paper, request)} - {*paper.seeds})
        if (first := [seed for seed in others if seed < SEARCH_SEEDS]) and not request.is_trial:
            raise ValueError(
                f"`seeds` of {paper.id} must be committed ones, {', '.join(map(str, paper.seeds))}, or search seeds, "
                f"from {SEARCH_SEEDS} on, got {first[0]}, which would count in no verdict."
            )


def wanted_seeds(paper: Paper, request: Request) -> tuple[int, ...]:
    """Returns the requested seeds: by default the committed ones, in quick mode two of them."""
    seeds = request.seeds or paper.seeds
    return seeds[:2] if request.quick and request.seeds is None else seeds


def wanted_arms(paper: Paper, request: Request) -> list[Arm]:
    """Returns the requested arms: with search seeds those of the study, which serve to choose the setting."""
    searching = request.arms is None and min(wanted_seeds(paper, request)) >= SEARCH_SEEDS
    return list(paper.study.arms) if searching else choose_arms(paper, request.arms)


def make_job(paper: Paper, composed: Composed, request: Request, say: Callable[[str], Any]) -> Job:
    """Finds the missing seeds of an arm; damaged files are set aside and count as missing.

    Args:
        paper: paper that names the arm.
        composed: composed arm.
        request: what to run.
        say: function that reports damaged files.

    Returns:
        The job, without built stages.
    """
    stored = read_runs(request.results, composed.address)
    for path in stored.damaged:
        say(f"`{path}` is damaged: it is {set_aside(path)} now; the run is missing, and is to be run again.")
    missing = [seed for seed in wanted_seeds(paper, request) if seed not in stored.runs]
    job = Job(paper=paper, composed=composed, seeds=missing)
    if composed.function is not None:  # A function returns the same names in every call.
        job.logged = sorted({name for run in stored.runs.values() for name in run.curves if run.status != DIVERGED})
    return job


def prepare_devices(jobs: Sequence[Job]) -> None:
    """Prepares the backend for the first arm that trains."""
    recipe = next((job.composed.recipe or job.composed.start for job in jobs), None)
    if recipe is not None:
        prepare_backend(make_section(DevicesConfig, "devices", recipe.config["devices"]))


def choose_groups(jobs: Sequence[Job], request: Request) -> None:
    """Chooses how many seeds of every job one program trains; function calls are stored one by one.

    The study's choice is for CPUs, where a batch of seeds waits for its longest episode; an accelerator has room for
    all of them. Call `prepare_devices` first.
    """
    for job in (job for job in jobs if job.composed.function is None):
        of_study = job.paper.study.seeds_at_once if jax.default_backend() == "cpu" else None
        job.group = max(1, min(request.seeds_at_once or of_study or len(job.seeds), len(job.seeds)))


def build_job(job: Job, *, check: bool = True) -> None:
    """Builds the stages of a job, unless it is a function, and refuses metrics that it is known not to log.

    Args:
        job: job that receives its stages, its budget, and the names of what they log.
        check: whether to trace the stages, for one seed, to find the names; False if they were checked before.

    Raises:
        ValueError: an expectation about the arm has a metric that it does not log.
    """
    recipe = job.composed.recipe
    if recipe is None:
        if job.logged:
            require_logged(job.paper, job.composed.name, job.logged)
        return
    job.stages = build_stages(recipe, job.group)
    job.budget = budget_of(job.stages, job.paper.study.budget)
    if check:  # Tracing several seeds takes three times as long.
        job.logged = logged_names(job.stages if job.group == 1 else build_stages(recipe, 1))
        require_logged(job.paper, job.composed.name, job.logged)


def require_logged(paper: Paper, arm: str, logged: Sequence[str], further: Sequence[str] = ()) -> None:
    """Refuses metrics of expectations about an arm that the arm does not log.

    Args:
        paper: paper with its expectations.
        arm: name of the arm.
        logged: names that the arm logs, before it is trained; those of a function are known after its first call.
        further: further metrics that the arm must log.

    Raises:
        ValueError: a metric is not logged; the message names it.
    """
    for expected in (*paper.headline, *paper.secondary, *paper.study.checks):
        for metric in expected.metrics if arm in expected.arms else ():
            find_metrics(metric, logged)
    for metric in further:
        find_metrics(metric, logged)


def require_metrics(paper: Paper, jobs: Sequence[Job]) -> None:
    """Refuses reported metrics that no arm logs, once the logged names of all arms are known.

    Args:
        paper: paper to check; a confirmation is skipped, because other arms of the batch may log its further metrics.
        jobs: jobs of the paper's arms.

    Raises:
        ValueError: a metric is not logged; the message names it.
    """
    if paper.source is None:
        return
    known = {job.composed.name for job in jobs if job.logged}
    if known >= {arm.name for arm in paper.arms}:
        logged = sorted({name for job in jobs for name in job.logged})
        for metric in reported_metrics(paper):
            find_metrics(metric, logged)


def reported_metrics(paper: Paper) -> list[str]:
    """Returns the metric of the study first, then those of all expectations, and further ones; each once."""
    expected = [one.metric for one in (*paper.headline, *paper.secondary, *paper.study.checks) if one.kind != "wins"]
    own = [paper.study.metric] if "*" not in paper.study.metric else []
    return list(dict.fromkeys([*own, *expected, *paper.metrics, *paper.study.metrics]))


def require_equal_budgets(paper: Paper, budgets: Mapping[str, Sequence[Any] | None]) -> None:
    """Refuses arms that train for different lengths, or in a unit other than the study's.

    Raises:
        ValueError: the budgets differ; the message names them.
    """
    if paper.study.budget == "none":
        return
    texts = {name: f"{length} {unit}" for name, (unit, length) in ((n, b) for n, b in budgets.items() if b)}
    if len(set(texts.values())) > 1 or any(not text.endswith(f" {paper.study.budget}") for text in texts.values()):
        raise ValueError(
            f"`arms` must have the same budget in {paper.study.budget}, got "
            f"{', '.join(f'{text} of {name}' for name, text in texts.items())}; try equal training.total_steps or "
            f"training.total_{paper.study.budget}, or budget: none."
        )
