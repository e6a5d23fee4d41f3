"""What `experiments/reproduce.py` prints: verdicts, the progress of papers, and checks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from jaxagents.papers.check import Check
from jaxagents.papers.claims import Claim, read_registered
from jaxagents.papers.execution import lease_name
from jaxagents.papers.judge import NOT_RUN, UNFINISHED, Finding, values_of
from jaxagents.papers.leases import held_leases
from jaxagents.papers.plan import Request, reported_metrics, wanted_seeds
from jaxagents.papers.runs import DIVERGED
from jaxagents.papers.study import Paper
from jaxagents.papers.summary import describe_finding, describe_values

_RUN_AGAIN = " The same command without status=true sets it aside, and runs it again."


class Status(NamedTuple):
    """Progress of a paper.

    Attributes:
        paper: id of the paper.
        verdict: verdict in words, see `Verdict.describe`, and whether something has changed since the registration.
        done: number of requested runs that are stored.
        needed: number of requested runs.
        running: number of requested runs that workers have leased.
        diverged: number of stored runs that diverged.
        minutes_left: remaining minutes, from the mean of stored runs, else from the paper's own estimate.
        damaged: files of the arms that hold no valid run and are not counted.
        unneeded: numbers of missing committed runs by arm, if the verdict is known without them.
    """

    paper: str
    verdict: str
    done: int
    needed: int
    running: int
    diverged: int
    minutes_left: float
    damaged: tuple[Path, ...] = ()
    unneeded: Mapping[str, int] = {}


def read_status(papers: Sequence[Paper], request: Request) -> list[Status]:
    """Reads the progress of papers; runs that papers share count for each of them.

    Args:
        papers: see `library.load_paper`.
        request: request that selects results and seeds.

    Returns:
        One status per paper.
    """
    leases = held_leases(request.results)
    return [_status(paper, request, leases) for paper in papers]


def _status(paper: Paper, request: Request, leases: Mapping[str, str]) -> Status:
    settings: dict[str, Any] = {"quick": request.quick, "overrides": request.overrides}
    claim = read_registered(paper, request.config_folder, request.results, **settings)
    composed, runs, verdict = claim.composed, claim.runs, claim.verdict
    seeds = wanted_seeds(paper, request)
    stored = {name: [of.runs[seed] for seed in seeds if seed in of.runs] for name, of in runs.items()}
    names = [lease_name(arm, seed) for arm in composed.values() for seed in seeds]
    done, needed = sum(map(len, stored.values())), len(seeds) * len(composed)
    planned = paper.minutes / (len(paper.seeds) * len(paper.arms))
    left = [
        (len(seeds) - len(of_arm)) * (float(np.mean([run.minutes for run in of_arm])) if of_arm else planned)
        for of_arm in stored.values()
    ]
    lacking = {name: sum(seed not in of.runs for seed in paper.seeds) for name, of in runs.items()}
    is_open = request.is_trial or verdict.word in (UNFINISHED, NOT_RUN)
    return Status(
        paper=paper.id,
        verdict=claim.describe(),
        done=done,
        needed=needed,
        running=sum(name in leases for name in names),
        diverged=sum(run.status == DIVERGED for of_arm in stored.values() for run in of_arm),
        minutes_left=sum(left),
        damaged=tuple(path for of in runs.values() for path in of.damaged),
        unneeded={} if is_open else {name: count for name, count in lacking.items() if count},
    )


def print_claim(claim: Claim) -> None:
    """Prints the result of a claim; all seeds are shown, with search seeds separate."""
    paper, verdict = claim.paper, claim.verdict
    console = Console(width=160, force_jupyter=False)
    console.print(f"{paper.title}\nThe paper: {paper.claim}", markup=False, highlight=False)
    table = Table(title=f"{paper.id}: means over seeds with 95 % intervals")
    for column in ("metric", "arm", "mean", "interval", "seeds"):
        table.add_column(column, justify="left" if column in ("metric", "arm") else "right")
    groups = {}
    for name, of_arm in claim.runs.items():
        groups[name] = {seed: run for seed, run in of_arm.runs.items() if seed in paper.seeds}
        groups[f"{name} (search)"] = {seed: run for seed, run in of_arm.runs.items() if seed not in paper.seeds}
    for metric in reported_metrics(paper):
        for name, of_group in groups.items():
            if values := values_of(of_group, metric):
                mean, _, interval = describe_values(values).partition(" ")
                table.add_row(metric, name, mean, interval.strip("()"), str(len(values)))
        table.add_section()
    console.print(table)
    for finding in (*verdict.checks, *verdict.headline, *verdict.secondary):
        console.print(_finding(finding), markup=False, highlight=False)
    if verdict.diverged:
        line = ", ".join(f"{count} of {name}" for name, count in verdict.diverged.items())
        console.print(f"Diverged runs: {line}", markup=False, highlight=False)
    if claim.changed:
        line = f"Changed since it was registered: {', '.join(claim.changed)}"
        console.print(line, markup=False, highlight=False)
    counted = f"; secondary {verdict.count_secondary()}" if verdict.count_secondary() else ""
    expected = f" of {paper.minutes:g}" if paper.minutes else ""  # Confirmations have no estimate.
    minutes = f"{verdict.minutes:.1f}{expected} minutes"
    line = f"{verdict.describe(trial=claim.is_trial)}{'' if claim.is_trial else counted}"
    console.print(f"Verdict: {line} ({minutes})", markup=False, highlight=False)
    if claim.is_trial:
        line = "Small variants and other settings are trials: what they measure says nothing about the claim."
        console.print(line, markup=False, highlight=False)


def print_status(rows: Sequence[Status]) -> None:
    """Prints the progress of papers, the arms that were not run and need not be, and the damaged files."""
    table = Table()
    for column in ("paper", "verdict", "runs", "running", "diverged", "minutes left"):
        table.add_column(column, justify="left" if column in ("paper", "verdict") else "right")
    for row in rows:
        counts = (f"{row.done} of {row.needed}", str(row.running), str(row.diverged))
        table.add_row(row.paper, row.verdict, *counts, f"{row.minutes_left:.1f}")
    Console(width=160, force_jupyter=False).print(table)
    for row in rows:
        if row.unneeded:
            unneeded = ", ".join(f"{count} of {arm}" for arm, count in row.unneeded.items())
            print(f"{row.paper}: runs are not there, and its verdict needs none of them: {unneeded}.")
    damaged = dict.fromkeys(path for row in rows for path in row.damaged)  # Papers share runs.
    for path in damaged:
        print(f"Damaged: {path}; it counts nowhere.{_RUN_AGAIN}")


def print_checks(checks: Sequence[Check]) -> None:
    """Prints how far one run of every arm differs from the stored one, in units of the spread over seeds."""
    table = Table(title="one stored seed of every arm, run again")
    for column in ("paper", "arm", "seed", "metric", "stored", "today", "spread", "difference / spread"):
        table.add_column(column, justify="left" if column in ("paper", "arm", "metric") else "right")
    for one in checks:
        numbers = [f"{value:.4g}" for value in (one.stored, one.today, one.spread)]
        last = one.failure or ("same digits" if one.same else f"{one.difference:+.2f}")
        seed, last = ("", "not run") if one.seed is None else (str(one.seed), last)
        table.add_row(one.paper, one.arm, seed, one.metric, *numbers, last)
    Console(width=160, force_jupyter=False).print(table)


def _finding(finding: Finding) -> str:
    measured = "" if finding.measured is None else "measured "
    return f"{finding.role}, {finding.outcome}: {finding.expectation.describe()}; {measured}{describe_finding(finding)}"
