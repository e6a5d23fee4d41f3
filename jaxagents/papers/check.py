"""Whether stored runs are reproduced: one seed of every arm with today's code, in units of the spread over seeds.

Runs are found by their settings, which say nothing about the code. After a change of learners, one run of every arm
shows whether the stored runs are still valid: a difference far above the spread means that the algorithm has changed;
then raise `version` in the study's file, so that its runs no longer count.
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
    """What one seed of an arm logs with today's code.

    Attributes:
        paper: id of the paper.
        arm: name of the arm.
        seed: seed that was run again; None: no run is stored.
        metric: compared metric, see `metrics.measure`.
        stored: its value in the stored run; NaN if there is none.
        today: its value in the run of today's code.
        spread: standard deviation over the stored seeds; NaN with fewer than two.
        same: whether all logged values agree in every stored digit.
        failure: reason why it could not be run.
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
        """Today's value minus the stored one, in units of the spread; 0 if the two runs are the same."""
        difference = 0.0 if self.same else self.today - self.stored
        return difference / self.spread if difference and self.spread else difference * math.inf if difference else 0.0


def check_papers(papers: Sequence[Paper], request: Request) -> list[Check]:
    """Runs one stored seed of every arm again, and stores nothing.

    The seed runs alone. If others ran beside it, sums in another order may lead to a different run of the same
    algorithm, with a difference of about the spread; with the same `seeds_at_once`, it is the same program.

    Args:
        papers: see `library.load_paper`.
        request: results, arms and seeds to check; the first stored seed is taken.

    Returns:
        One check per arm; runs that papers share are run once.
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
    except Exception as error:  # The failure of one arm stops no other.
        return check._replace(failure=" ".join(str(error).split()) or type(error).__name__)
    values = values_of({run.seed: run for run in stored}, check.metric)
    spread = float(np.std([*values.values()], ddof=1)) if len(values) > 1 else math.nan
    return check._replace(
        stored=values.get(today.seed, math.nan),
        today=values_of({today.seed: today}, check.metric).get(today.seed, math.nan),
        spread=spread,
        same=_same(stored[0], today),
    )
