"""Whether stored runs come out again: one seed of every arm with today's code, in units of the spread over seeds.

What is found by its settings says nothing about code. After a change of learners one run of every arm tells whether
the others still stand: a difference far above the spread is another algorithm, and `version` in the study's file lets
its runs expire.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxagents.papers.arms import compose_arm
from jaxagents.papers.execution import Session, run_seeds
from jaxagents.papers.judge import values_of
from jaxagents.papers.plan import Job, Request, prepare_devices, reported_metrics, wanted_arms, wanted_seeds
from jaxagents.papers.runs import Run, read_runs, rounded_curves
from jaxagents.papers.study import Paper
from jaxagents.reporting.progress import open_progress


class Check(NamedTuple):
    """What one seed of an arm logs today.

    Attributes:
        paper: id of the paper.
        arm: name of the arm.
        seed: that was run again; None: none is stored.
        metric: that is compared, see `metrics.measure`.
        stored: its value in the stored run; NaN without.
        today: its value in the run of today's code.
        spread: standard deviation over the stored seeds; NaN of fewer than two.
        same: whether everything that was logged is the same in every stored digit.
        failure: why it could not be run.
    """

    paper: str
    arm: str
    seed: int | None
    metric: str
    stored: float = math.nan
    today: float = math.nan
    spread: float = math.nan
    same: bool = False
    failure: str = ""

    @property
    def difference(self) -> float:
        """Today's value minus the stored one in units of the spread; 0 where the run is the same."""
        difference = 0.0 if self.same else self.today - self.stored
        return difference / self.spread if difference and self.spread else difference * math.inf if difference else 0.0


def check_papers(papers: Sequence[Paper], request: Request) -> list[Check]:
    """Runs one stored seed of every arm again; nothing is stored.

    The seed runs alone. Where others ran beside it, sums in another order may lead to another run of the same
    algorithm, whose difference is of the size of the spread; with as many `seeds_at_once` it is the same program.

    Args:
        papers: see `library.load_paper`.
        request: which results, arms and seeds; the first seed that is stored is taken.

    Returns:
        One check per arm; what papers share is run once.
    """
    session = Session(request, open_progress(1, "check", enabled=False))
    checks: dict[str, Check] = {}
    for paper in papers:
        for arm in wanted_arms(paper, request):
            settings: dict[str, Any] = {"quick": request.quick, "overrides": request.overrides}
            composed = compose_arm(paper.study, arm, request.config_folder, **settings)
            if composed.address in checks:
                continue
            stored = read_runs(request.results, composed.address).runs
            seeds = [seed for seed in wanted_seeds(paper, request) if seed in stored]
            made = Check(paper.id, arm.name, seeds[0] if seeds else None, reported_metrics(paper)[0])
            if seeds:
                group = 1 if composed.function is not None else request.seeds_at_once or 1
                job = Job(paper=paper, composed=composed, seeds=seeds[:1], group=group)
                made = _check(job, made, [stored[seed] for seed in seeds], session)
            session.progress.message(f"{paper.id}: {arm.name} is checked.")
            checks[composed.address] = made
    return list(checks.values())


def _same(stored: Run, today: Run) -> bool:
    first, second = (
        json.dumps([run.status, run.start, run.budget, rounded_curves(run.curves)], sort_keys=True)
        for run in (stored, today)
    )
    return first == second


def _check(job: Job, check: Check, stored: Sequence[Run], session: Session) -> Check:
    try:
        prepare_devices([job])
        (today,) = run_seeds(job, job.seeds, session)
    except Exception as error:  # One arm that fails stops no other.
        return check._replace(failure=" ".join(str(error).split()) or type(error).__name__)
    values = values_of({run.seed: run for run in stored}, check.metric)
    spread = float(np.std([*values.values()], ddof=1)) if len(values) > 1 else math.nan
    return check._replace(
        stored=values.get(today.seed, math.nan),
        today=values_of({today.seed: today}, check.metric).get(today.seed, math.nan),
        spread=spread,
        same=_same(stored[0], today),
    )
