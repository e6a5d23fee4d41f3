"""Tests papers' claims: `python experiments/reproduce.py paper=gigpo,nft`; settings: configs/paper/reproduce.yaml."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from jaxagents.training.command import command

if TYPE_CHECKING:
    from jaxagents.papers.plan import Request
    from jaxagents.papers.study import Paper

ROOT = Path(__file__).parents[1]


@command(
    "reproduce", folder="configs/paper", lists=("paper", "study", "arms")
)  # In configs, `paper=` would choose an option of the group.
def main(config: DictConfig) -> None:
    """Runs what is missing, prints the verdicts and, as the last line on stdout, one JSON object."""
    # Imported here and below: help and mistakes in names come without jax.
    from jaxagents.papers.library import load_paper, select_papers
    from jaxagents.papers.plan import make_request
    from jaxagents.papers.workers import end_with_parent

    folder, request = ROOT / "configs", make_request(config, ROOT)
    papers = [load_paper(folder, name) for name in select_papers(folder, config.paper or (), config.study or ())]
    if not papers:
        raise ValueError("`paper` must be ids, <family>/* or all, or `study` a file of configs/study, got neither.")
    if config.worker is not None:
        end_with_parent()
        turn = config.worker * len(papers) // max(config.workers, 1)  # Each begins elsewhere.
        raise SystemExit(1 if _run_here([*papers[turn:], *papers[:turn]], request) else 0)
    failed = False
    if not config.status and not config.plan:
        failed = _run(papers, request, config)
    told = {"results": str(request.results.resolve()), "verdicts": _tell(papers, request, config)}
    print(json.dumps(told), flush=True)
    if failed:
        raise SystemExit(1)


def _run(papers: list["Paper"], request: "Request", config: DictConfig) -> bool:
    from jaxagents.papers.workers import run_workers

    if config.workers > 1 or config.executor != "processes":
        return any(run_workers(Path(__file__).resolve(), sys.argv[1:], config.workers, executor=config.executor))
    return _run_here(papers, request)


def _run_here(papers: list["Paper"], request: "Request") -> bool:
    from jaxagents.papers.execution import run_papers
    from jaxagents.papers.refresh import refresh_papers

    return bool((refresh_papers if request.refresh else run_papers)(papers, request))


def _tell(papers: list["Paper"], request: "Request", config: DictConfig) -> dict[str, str]:
    """Prints what was asked for, and returns the verdict of every paper."""
    from jaxagents.papers.execution import read_paper_runs
    from jaxagents.papers.judge import judge
    from jaxagents.papers.plan import reported_metrics
    from jaxagents.papers.power import plan_seeds
    from jaxagents.papers.printing import print_paper, print_plan, print_status
    from jaxagents.papers.registration import changes_since, read_registrations
    from jaxagents.papers.status import read_status

    if config.status:
        rows = read_status(papers, request)
        print_status(rows)
        return {row.paper: row.verdict for row in rows}
    verdicts, registered = {}, read_registrations(request.results)
    for paper in papers:
        which = (request.config_folder, request.results)
        runs = read_paper_runs(paper, *which, quick=request.quick, overrides=request.overrides)
        verdict = judge(paper, runs)
        verdicts[paper.id] = verdict.describe()
        if config.plan:
            print_plan(paper, plan_seeds(paper, runs))
        else:
            changed = changes_since(paper, registered.get(paper.id, []))
            print_paper(paper, runs, verdict, reported_metrics(paper), changed=changed)
    return verdicts


if __name__ == "__main__":
    main()
