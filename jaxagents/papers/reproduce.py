"""What `experiments/reproduce.py` does with papers: runs what is missing, and tells what is there."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from jaxagents.papers.catalogue import read_paper
from jaxagents.papers.check import check_papers
from jaxagents.papers.execution import run_papers
from jaxagents.papers.plan import Request, reported_metrics
from jaxagents.papers.power import plan_seeds
from jaxagents.papers.printing import print_checks, print_paper, print_plan, print_status
from jaxagents.papers.status import read_status
from jaxagents.papers.study import Paper
from jaxagents.papers.workers import run_workers


def run_missing(papers: Sequence[Paper], request: Request, config: DictConfig, script: Path) -> bool:
    """Runs what is missing, here or in several processes, and returns whether anything failed.

    Args:
        papers: see `library.load_paper`.
        request: see `plan.make_request`.
        config: of the command: `workers`.
        script: that workers start, with the arguments of this process.
    """
    if config.workers > 1:
        return any(run_workers(script, sys.argv[1:], config.workers))
    return run_here(papers, request)


def run_here(papers: Sequence[Paper], request: Request) -> bool:
    """Runs what is missing in this process, and returns whether anything failed."""
    return bool(run_papers(papers, request))


def check(papers: Sequence[Paper], request: Request) -> tuple[dict[str, float], bool]:
    """Runs one stored seed of every arm again; returns its difference in units of the spread, and if any failed."""
    checks = check_papers(papers, request)
    print_checks(checks)
    done = [one for one in checks if one.seed is not None]
    return {f"{one.paper}: {one.arm}": one.difference for one in done}, any(one.failure for one in done)


def tell(papers: Sequence[Paper], request: Request, config: DictConfig) -> dict[str, str]:
    """Prints what was asked for, and returns the verdict of every paper.

    Args:
        papers: see `library.load_paper`.
        request: see `plan.make_request`.
        config: of the command: `status` and `plan`.
    """
    if config.status:
        rows = read_status(papers, request)
        print_status(rows)
        return {row.paper: row.verdict for row in rows}
    verdicts = {}
    for paper in papers:
        settings: dict[str, Any] = {"quick": request.quick, "overrides": request.overrides}
        _, runs, verdict, changed = read_paper(paper, request.config_folder, request.results, **settings)
        verdicts[paper.id] = verdict.describe(trial=request.is_trial, changed=bool(changed))
        if config.plan:
            print_plan(paper, plan_seeds(paper, runs))
        else:
            print_paper(paper, runs, verdict, reported_metrics(paper), changed=changed, trial=request.is_trial)
    return verdicts
