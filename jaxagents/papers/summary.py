"""What pages show about claims and arms: words, numbers and curves."""

import fnmatch
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxagents.papers.claims import Claim
from jaxagents.papers.index import StudyEntry
from jaxagents.papers.judge import Finding, values_of
from jaxagents.papers.metrics import find_metrics
from jaxagents.papers.plan import reported_metrics
from jaxagents.papers.runs import DIVERGED, Run
from jaxagents.papers.study import Paper
from jaxagents.reporting.curves import Curve
from jaxagents.reporting.loggers import to_json
from jaxagents.reporting.panels import Panel, lay_out_panel
from jaxagents.reporting.statistics import describe
from jaxagents.reporting.tables import describe_interval, describe_number

MAX_PANELS = 12


class ArmRow(NamedTuple):
    """One arm in the table of a paper.

    Attributes:
        name: name of the arm.
        seeds: stored seeds, in words.
        values: mean and interval of every reported metric; "-" without a value.
        minutes: minutes of its runs.
    """

    name: str
    seeds: str
    values: list[str]
    minutes: float


def describe_finding(finding: Finding) -> str:
    """Returns the measured result of an expectation, or the reason why there is none."""
    if finding.measured is None:
        return finding.reason
    seeds = f" over {len(finding.seeds)} seeds" if len(finding.seeds) > 1 else ""
    return f"{describe_interval(finding.measured._asdict())}{seeds}"


def describe_seeds(seeds: Sequence[int]) -> str:
    """Returns "10 to 17" for a range, otherwise the list."""
    seeds = sorted(seeds)
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def arm_rows(entry: Claim) -> list[ArmRow]:
    """Returns the table of a paper: every arm with its committed seeds."""
    rows, is_exact = [], entry.paper.study.deterministic
    for arm in entry.paper.arms:
        runs = _committed(entry, arm.name)
        diverged = sum(run.status == DIVERGED for run in runs.values())
        seeds = (describe_seeds(list(runs)) or "none") + (f", {diverged} diverged" if diverged else "")
        values = [describe_values(values_of(runs, metric), is_exact) for metric in reported_metrics(entry.paper)]
        rows.append(ArmRow(arm.name, seeds, values, sum(run.minutes for run in runs.values())))
    return rows


def panels_of(entry: Claim) -> list[Panel]:
    """Returns the plots of a claim: a panel for every reported metric, with all arms that log it."""
    committed = {arm.name: _committed(entry, arm.name) for arm in entry.paper.arms}
    logged = {name for runs in committed.values() for run in runs.values() for name in run.curves}
    panels = []
    for name in _logged_metrics(entry.paper, sorted(logged)):
        of_arms = {
            arm: [run.curves[name] for run in of.values() if name in run.curves] for arm, of in committed.items()
        }
        curves = {arm: curve for arm, of in of_arms.items() if (curve := gather_curve(of)) is not None}
        if curves:
            panels.append(lay_out_panel(name, curves, list(committed)))
    return panels[:MAX_PANELS]


def study_panel(study: StudyEntry, arms: Sequence[str]) -> Panel | None:
    """Returns the plot of some arms of a batch: its metric over training, from the stored points of every run."""
    curves = {}
    for arm in arms:
        kept = [{"steps": line.curve[0], "values": line.curve[1]} for line in study.lines.get(arm, {}).values()]
        if (curve := gather_curve(kept)) is not None:
            curves[arm] = curve
    return lay_out_panel(study.batch.study.metric, curves, list(arms)) if curves else None


def steps_unit(entry: Claim) -> str:
    """Returns what the steps of all curves count, such as "episodes"; "" if that differs or is undefined."""
    runs = [run for arm in entry.paper.arms for run in _committed(entry, arm.name).values()]
    units = {run.budget[0] if run.budget else "" for run in runs}
    return units.pop().replace("_", " ") if len(units) == 1 else ""


def gather_curve(logged: Sequence[Mapping[str, Sequence[float]]]) -> Curve | None:
    """Returns `steps` and `values` of several runs at the steps that all of them have; None if there are none."""
    tables = [dict(zip(curve["steps"], curve["values"])) for curve in logged]
    steps = sorted(set.intersection(*map(set, tables))) if tables else []
    values = np.asarray([[table[step] for table in tables] for step in steps], np.float64)
    values = values.reshape(len(steps), len(tables))
    seen = np.isfinite(values).any(axis=1)
    return Curve(steps=np.asarray(steps, np.float64)[seen], values=values[seen]) if seen.any() else None


def authors_rows(entry: Claim) -> list[tuple[str, str, str]]:
    """Returns where the authors' setting and this one differ or agree, as name, their value, our value."""
    settings = {name: (theirs, _look_up(entry, name)) for name, theirs in (entry.paper.authors or {}).items()}
    return [(name, _setting(theirs), _setting(ours)) for name, (theirs, ours) in settings.items()]


def _setting(value: Any) -> str:
    return "not set" if value is None else json.dumps(to_json(value))


def describe_values(values: Mapping[int, float], deterministic: bool = False) -> str:
    """Returns the mean of an arm's values by seed, with its 95 % Student interval unless it is deterministic."""
    if not values:
        return "-"
    if deterministic:
        return describe_number(float(np.mean([*values.values()])))
    return describe_interval(describe(np.asarray([*values.values()])))


def _committed(entry: Claim, arm: str) -> dict[int, Run]:
    """Returns the stored runs of an arm that a verdict counts."""
    return {seed: run for seed, run in entry.runs[arm].runs.items() if seed in entry.paper.seeds}


def _logged_metrics(paper: Paper, logged: Sequence[str]) -> list[str]:
    """Returns the logged names behind the reported metrics and the games, each once."""
    names = []
    for metric in reported_metrics(paper):
        try:
            names += find_metrics(metric, logged)
        except ValueError:
            continue
    games = [one.metric for one in (*paper.headline, *paper.secondary) if one.kind == "wins"]
    names += [name for pattern in games for name in fnmatch.filter(logged, pattern)]
    return list(dict.fromkeys(names))


def _look_up(entry: Claim, name: str) -> Any:
    """Returns a value of the treatment's config by its dotted name."""
    node: Any = entry.settings
    for key in name.split("."):
        if not isinstance(node, Mapping) or key not in node:
            known = ", ".join(map(str, node)) if isinstance(node, Mapping) else node
            raise ValueError(
                f"`authors` of {entry.paper.id} must name settings of {entry.paper.arms[0].name}, got {name!r}; where "
                f"{key!r} is looked for, there is {known}."
            )
        node = node[key]
    return node
