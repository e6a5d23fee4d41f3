"""What `experiments/reproduce.py` does with papers: runs what is missing, here or in workers, and prints what is there.

Workers are processes of this machine that share the work of one command by the leases of the store.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from jaxagents.papers.catalogue import read_paper
from jaxagents.papers.check import check_papers
from jaxagents.papers.execution import run_papers
from jaxagents.papers.plan import Request, reported_metrics
from jaxagents.papers.power import plan_seeds
from jaxagents.papers.printing import print_checks, print_paper, print_plan, print_status, read_status
from jaxagents.papers.study import Paper


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


def run_workers(script: Path, arguments: Sequence[str], num_workers: int) -> list[int]:
    """Runs a script in several processes and waits for them; they end when this process does, by whatever signal.

    Args:
        script: that each of them runs.
        arguments: of the script; `worker=<number>` is added.
        num_workers: how many; they share the cores evenly.

    Returns:
        Their exit codes.
    """
    cores = max(1, (os.cpu_count() or 1) // num_workers)
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments, f"worker={number}"],
            stdin=subprocess.PIPE,  # Its end tells them of the end of this process.
            stdout=sys.stderr.fileno(),
            env={**os.environ, "PJRT_NPROC": os.environ.get("PJRT_NPROC", str(cores))},
            start_new_session=True,  # Ctrl-C is heard by this process alone, which says so once.
        )
        for number in range(num_workers)
    ]
    try:
        return [process.wait() for process in processes]
    finally:
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
            process.wait()


def end_with_parent() -> None:
    """Ends this process as soon as the one that started it as a worker is gone."""

    def watch() -> None:
        # Unbuffered: a lock of `sys.stdin` that is held at the end of the interpreter is fatal.
        while os.read(0, 4096):
            pass
        os._exit(143)

    threading.Thread(target=watch, daemon=True).start()
