"""What `experiments/reproduce.py` does with papers: runs what is missing, here or in workers, and prints the results.

Workers are processes of this machine that share the work of one command through the leases of the store.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from jaxagents.papers.batch import check_batch, compose_batch, missing_seeds, read_batch, run_batch, turned
from jaxagents.papers.batch_page import write_batch_page
from jaxagents.papers.batch_table import measure_batch, print_batch
from jaxagents.papers.check import check_papers
from jaxagents.papers.claims import Claim, read_confirmed, read_registered
from jaxagents.papers.confirm import confirm_batch, read_confirmations
from jaxagents.papers.execution import run_papers
from jaxagents.papers.library import load_batch, load_paper, select_papers
from jaxagents.papers.migration import migrate
from jaxagents.papers.plan import Request, check_request
from jaxagents.papers.printing import print_checks, print_claim, print_status, read_status
from jaxagents.papers.study import LEAST_SEEDS, SEARCH_SEEDS, Paper, choose_arms
from jaxagents.reporting.loggers import to_json
from jaxagents.training.methods import read_methods


def reproduce_papers(config: DictConfig, folder: Path, request: Request, script: Path) -> tuple[dict[str, Any], bool]:
    """Runs, checks or migrates papers; returns the printed results as JSON, and whether anything failed.

    Args:
        config: config of the command.
        folder: folder that holds `papers` and `studies`.
        request: see `plan.make_request`.
        script: script that workers run, with the arguments of this process.
    """
    papers = [load_paper(folder, name) for name in select_papers(folder, config.paper or (), config.study or ())]
    check_request(papers, request)
    if config.worker is not None:
        raise SystemExit(1 if run_papers(turned(papers, _turn(config)), request) else 0)
    if config.migrate:
        return {"moved": migrate(papers, request, config.renamed or {}, config.added or {})}, False
    if config.check:
        differences, failed = check(papers, request)
        return {"differences": to_json(differences)}, failed
    failed = not config.status and run_missing(papers, request, config, script)
    return {"verdicts": tell(papers, request, config)}, failed


def reproduce_studies(config: DictConfig, folder: Path, request: Request, script: Path) -> tuple[dict[str, Any], bool]:
    """Runs the batches of studies, or confirms their claims; see `reproduce_papers`."""
    words: dict[str, str] = {}
    verdicts: dict[str, str] = {}
    failures: dict[str, str] = {}
    for name in config.study:
        for found, of_study in zip((words, verdicts, failures), run_study(name, folder, request, config, script)):
            found.update(of_study)
    return {"words": words, **({"verdicts": verdicts} if config.confirm else {})}, bool(failures)


def run_missing(papers: Sequence[Paper], request: Request, config: DictConfig, script: Path) -> bool:
    """Runs what is missing, in this process or several others, and returns whether anything failed.

    Args:
        papers: see `library.load_paper`.
        request: see `plan.make_request`.
        config: config of the command; reads `workers`.
        script: script that workers run, with the arguments of this process.
    """
    if config.workers > 1:
        return any(run_workers(script, sys.argv[1:], config.workers))
    return bool(run_papers(papers, request))


def run_study(
    name: str, folder: Path, request: Request, config: DictConfig, script: Path
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Runs the batch of a study and prints its table; with `confirm`, also registers its claims and runs fresh seeds.

    Args:
        name: name of the study.
        folder: folder that holds `papers` and `studies`.
        request: see `plan.make_request`; its seeds are those of the batch, None for 8 search seeds.
        config: config of the command; reads `workers`, `status` and `confirm`.
        script: script that workers run, with the arguments of this process.

    Returns:
        Words of the arms, verdicts of the confirmed papers, and reasons why arms failed, each by name.
    """
    if config.confirm and (config.status or request.overrides):
        other = "status=true" if config.status else f"overrides={list(request.overrides)}"
        raise ValueError(f"`confirm` must be alone: it registers claims about the committed arms, got {other}, too.")
    batch = load_batch(folder, name, batch_seeds(request))
    choose_arms(batch, request.arms)  # Refuses unknown arms before anything runs.
    if config.worker is not None:
        if config.confirm:
            papers = [claim.paper for claim in confirmed_claims(batch, request, config.arms)]
            raise SystemExit(1 if run_papers(turned(papers, _turn(config)), _fresh(request)) else 0)
        raise SystemExit(1 if run_batch(batch, request, turn=_turn(config), check=False) else 0)
    failures: dict[str, str] = {}
    if not (config.status or config.confirm):
        if config.workers > 1:
            failures = check_batch(batch, request)
            run_workers(script, sys.argv[1:], config.workers)
        else:
            failures = run_batch(batch, request)
    ran = not (config.status or config.confirm)
    # The table has all arms: p is adjusted over all, and the requested arms are compared with the others.
    composed, broken = compose_batch(batch, request if ran and request.is_trial else replace(request, arms=None))
    failures = {**broken, **failures}
    if ran:  # For example, what a killed worker has left.
        asked = [arm for name, arm in composed.items() if request.arms is None or name in request.arms]
        lacking = {arm.name: len(missing_seeds(batch, arm, request)) for arm in asked}
        failures = {**{name: f"{count} runs are missing" for name, count in lacking.items() if count}, **failures}
    lines = read_batch(request.results, batch.study.id)
    rows, checks = measure_batch(batch, lines, composed, failures)
    print_batch(batch, rows, checks)
    words = {row.arm: row.word for row in rows if row.word}
    if config.confirm:
        options: dict[str, Any] = {"arms": config.arms, "anew": request.register, "say": print}
        confirm_batch(batch, rows, read_methods(request.config_folder), composed, request.results, **options)
        if config.workers > 1:
            failures |= {
                f"worker {i}": "" for i, code in enumerate(run_workers(script, sys.argv[1:], config.workers)) if code
            }
        else:
            papers = [claim.paper for claim in confirmed_claims(batch, request, config.arms)]
            failures |= run_papers(papers, _fresh(request))
    writes = not (config.status or request.is_trial or (request.arms and not config.confirm))
    claims = confirmed_claims(batch, request) if writes or config.confirm else []
    if writes:
        write_batch_page(request.results, batch, rows, checks, claims)
    verdicts = {}
    for claim in claims if config.confirm else ():
        if config.arms is None or claim.paper.arms[0].name in config.arms:
            verdicts[claim.paper.id] = claim.describe()
            print_claim(claim)
    return words, verdicts, failures


def batch_seeds(request: Request) -> tuple[int, ...]:
    """Returns the seeds of a batch: by default eight search seeds, or two in quick mode.

    Raises:
        ValueError: a verdict may count one of the seeds.
    """
    seeds = request.seeds or tuple(range(SEARCH_SEEDS, SEARCH_SEEDS + (2 if request.quick else LEAST_SEEDS)))
    if min(seeds) < SEARCH_SEEDS:
        raise ValueError(
            f"`seeds` of a batch must be search seeds, from {SEARCH_SEEDS} on, got {min(seeds)}: those below are for "
            "verdicts; try confirm=true, which takes fresh ones."
        )
    return seeds


def confirmed_claims(batch: Paper, request: Request, arms: Sequence[str] | None = None) -> list[Claim]:
    """Reads the claims of a study that the rule has registered.

    Args:
        batch: see `library.load_batch`.
        request: request that selects the results.
        arms: arms whose claims are read; None: all.
    """
    methods = read_methods(request.config_folder)
    records = [one for one in read_confirmations(request.results).values() if one.study == batch.study.id]
    return [
        read_confirmed(one, batch, methods, request.config_folder, request.results, quick=request.quick)
        for one in records
        if arms is None or one.arm in arms
    ]


def _turn(config: DictConfig) -> float:
    """Returns where a worker begins: each one elsewhere, because two that compile the same program waste a core."""
    return float(config.worker / max(config.workers, 1))


def _fresh(request: Request) -> Request:
    """Returns a request for all arms and the registered seeds of confirmed papers."""
    return replace(request, arms=None, seeds=None)


def check(papers: Sequence[Paper], request: Request) -> tuple[dict[str, float], bool]:
    """Runs one stored seed of every arm again; returns differences in units of the spread, and whether any failed."""
    checks = check_papers(papers, request)
    print_checks(checks)
    done = [one for one in checks if one.seed is not None]
    return {f"{one.paper}: {one.arm}": one.difference for one in done}, any(one.failure for one in done)


def tell(papers: Sequence[Paper], request: Request, config: DictConfig) -> dict[str, str]:
    """Prints the requested results, and returns the verdict of every paper.

    Args:
        papers: see `library.load_paper`.
        request: see `plan.make_request`.
        config: config of the command; reads `status`.
    """
    if config.status:
        rows = read_status(papers, request)
        print_status(rows)
        return {row.paper: row.verdict for row in rows}
    settings: dict[str, Any] = {"quick": request.quick, "overrides": request.overrides}
    claims = [read_registered(paper, request.config_folder, request.results, **settings) for paper in papers]
    for claim in claims:
        print_claim(claim)
    return {claim.paper.id: claim.describe() for claim in claims}


def run_workers(script: Path, arguments: Sequence[str], num_workers: int) -> list[int]:
    """Runs a script in several processes and waits for them; they end with this process, whatever signal ends it.

    They share the cores evenly, and use the memory of an accelerator as needed.

    Args:
        script: script that each process runs.
        arguments: arguments of the script; `worker=<number>` is added.
        num_workers: number of processes.

    Returns:
        Exit codes of the processes.
    """
    cores = max(1, (os.cpu_count() or 1) // num_workers)
    shared = {"PJRT_NPROC": str(cores), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments, f"worker={number}"],
            stdin=subprocess.PIPE,  # Its end tells the workers that this process has ended.
            stdout=sys.stderr.fileno(),
            env={**shared, **os.environ},
            start_new_session=True,  # Ctrl-C reaches only this process, which reports it once.
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
    """Ends this process as soon as the process that started it as a worker is gone."""

    def watch() -> None:
        # Unbuffered: a lock on `sys.stdin` that is held when the interpreter exits is fatal.
        while os.read(0, 4096):
            pass
        os._exit(143)

    threading.Thread(target=watch, daemon=True).start()
