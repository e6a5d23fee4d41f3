"""How far papers are: runs that are stored, running and diverged, and the minutes that are left."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxagents.papers.catalogue import read_paper
from jaxagents.papers.execution import lease_name
from jaxagents.papers.judge import NOT_RUN, UNFINISHED
from jaxagents.papers.leases import held_leases
from jaxagents.papers.plan import Request, wanted_seeds
from jaxagents.papers.runs import DIVERGED
from jaxagents.papers.study import Paper


class Status(NamedTuple):
    """How far a paper is.

    Attributes:
        paper: its id.
        verdict: see `Verdict.describe`, and whether something was changed since it was registered.
        done: wanted runs that are stored.
        needed: wanted runs.
        running: wanted runs that a worker is at.
        diverged: of those that are stored.
        minutes_left: by the mean of stored runs, else by the paper's own estimate.
        damaged: files of the arms that hold no run, and count nowhere.
        unneeded: committed runs that are not there where the verdict is known without them, by arm.
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
    """Reads how far papers are; runs that papers share count for each of them.

    Args:
        papers: see `library.load_paper`.
        request: which results, and which seeds.

    Returns:
        One status per paper.
    """
    leases = held_leases(request.results)
    return [_status(paper, request, leases) for paper in papers]


def _status(paper: Paper, request: Request, leases: Mapping[str, str]) -> Status:
    settings: dict[str, Any] = {"quick": request.quick, "overrides": request.overrides}
    composed, runs, verdict, changed = read_paper(paper, request.config_folder, request.results, **settings)
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
        verdict=verdict.describe(trial=request.is_trial, changed=bool(changed)),
        done=done,
        needed=needed,
        running=sum(name in leases for name in names),
        diverged=sum(run.status == DIVERGED for of_arm in stored.values() for run in of_arm),
        minutes_left=sum(left),
        damaged=tuple(path for of in runs.values() for path in of.damaged),
        unneeded={} if is_open else {name: count for name, count in lacking.items() if count},
    )
