"""What the pages say of a paper that is tested here: words and numbers, whatever they are written in."""

import fnmatch
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxagents.papers.catalogue import Entry
from jaxagents.papers.judge import TRIAL, Finding, values_of
from jaxagents.papers.metrics import find_metrics
from jaxagents.papers.plan import reported_metrics
from jaxagents.papers.runs import DIVERGED, Run
from jaxagents.papers.study import Paper
from jaxagents.reporting.curves import Curve
from jaxagents.reporting.loggers import to_json
from jaxagents.reporting.panels import Panel, lay_out_panel
from jaxagents.reporting.statistics import describe, holm, welch_p_value
from jaxagents.reporting.tables import describe_interval

NOT_TESTED = "not tested here"
MAX_PANELS = 12


class ArmRow(NamedTuple):
    """One arm in the table of a paper.

    Attributes:
        name: of the arm.
        seeds: that are stored, in words.
        values: mean and interval of every reported metric, "-" without.
        minutes: of its runs.
    """

    name: str
    seeds: str
    values: list[str]
    minutes: float


def verdict_of(entry: Entry) -> str:
    """Returns the verdict in words, without what it counts: what the site filters by."""
    if entry.verdict is None:
        return NOT_TESTED
    return TRIAL if entry.is_trial else entry.verdict.word


def describe_finding(finding: Finding) -> str:
    """Returns what was measured of an expectation, or why nothing was."""
    if finding.measured is None:
        return finding.reason
    seeds = f" over {len(finding.seeds)} seeds" if len(finding.seeds) > 1 else ""
    return f"{describe_interval(finding.measured._asdict())}{seeds}"


def describe_seeds(seeds: Sequence[int]) -> str:
    """Returns "10 to 17" for a range, else the list."""
    seeds = sorted(seeds)
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def arm_rows(entry: Entry) -> list[ArmRow]:
    """Returns the table of a paper: every arm with its committed seeds."""
    rows, is_exact = [], entry.paper.study.deterministic
    for arm in entry.paper.arms:
        runs = _committed(entry, arm.name)
        diverged = sum(run.status == DIVERGED for run in runs.values())
        seeds = (describe_seeds(list(runs)) or "none") + (f", {diverged} diverged" if diverged else "")
        values = [describe_values(values_of(runs, metric), is_exact) for metric in reported_metrics(entry.paper)]
        rows.append(ArmRow(arm.name, seeds, values, sum(run.minutes for run in runs.values())))
    return rows


def study_rows(entries: Sequence[Entry]) -> list[ArmRow]:
    """Returns the table of a study: every arm of its papers that has runs, the best one by its metric first.

    Args:
        entries: papers of the study that are tested here.

    Returns:
        The rows; values are that of the study's metric, the p-value of its difference to the first baseline (Welch's
        test, adjusted by Holm over all arms), and those of further metrics.
    """
    study = entries[0].paper.study
    names, baseline = [arm.name for arm in study.arms], next((arm.name for arm in study.arms), "")
    found: dict[str, tuple[np.ndarray, Mapping[int, Run]]] = {}
    for entry in entries:
        for arm in entry.paper.arms:
            name = arm.name if arm.name in names else f"{arm.name} ({entry.card.id})"
            values = values_of(runs := _committed(entry, arm.name), study.metric)
            if values and (name not in found or len(runs) > len(found[name][1])):
                found[name] = np.asarray([*values.values()]), runs
    comparable = baseline in found and not study.deterministic and found[baseline][0].size > 1
    others = [name for name, (of, _) in found.items() if comparable and name != baseline and of.size > 1]
    adjusted = holm([welch_p_value(found[name][0], found[baseline][0]) for name in others])
    p_values = {name: f"{p:.2g}" for name, p in zip(others, adjusted)}
    rows = []
    for name in sorted(found, key=lambda name: found[name][0].mean(), reverse=study.higher_is_better):
        of_arm = found[name][1]
        first, *further = (
            describe_values(values_of(of_arm, metric), study.deterministic) for metric in (study.metric, *study.metrics)
        )
        cells = [first, p_values.get(name, "-"), *further]
        rows.append(ArmRow(name, describe_seeds(list(of_arm)), cells, sum(run.minutes for run in of_arm.values())))
    return rows


def panels_of(entry: Entry) -> list[Panel]:
    """Returns the pictures of a paper: a panel for every reported metric, with all arms that log it."""
    committed = {arm.name: _committed(entry, arm.name) for arm in entry.paper.arms}
    logged = {name for runs in committed.values() for run in runs.values() for name in run.curves}
    panels = []
    for name in _logged_metrics(entry.paper, sorted(logged)):
        curves = {arm: curve for arm, runs in committed.items() if (curve := gather_curve(runs, name)) is not None}
        if curves:
            panels.append(lay_out_panel(name, curves, list(committed)))
    return panels[:MAX_PANELS]


def steps_unit(entry: Entry) -> str:
    """Returns what the steps of all curves count, such as "episodes"; "" where that differs or is nothing."""
    runs = [run for arm in entry.paper.arms for run in _committed(entry, arm.name).values()]
    units = {run.budget[0] if run.budget else "" for run in runs}
    return units.pop().replace("_", " ") if len(units) == 1 else ""


def gather_curve(runs: Mapping[int, Run], name: str) -> Curve | None:
    """Returns what the runs of an arm logged under a name, at the steps that all of them have; None without."""
    logged = [run.curves[name] for run in runs.values() if name in run.curves]
    tables = [dict(zip(curve["steps"], curve["values"])) for curve in logged]
    steps = sorted(set.intersection(*map(set, tables))) if tables else []
    values = np.asarray([[table[step] for table in tables] for step in steps], np.float64)
    values = values.reshape(len(steps), len(tables))
    seen = np.isfinite(values).any(axis=1)
    return Curve(steps=np.asarray(steps, np.float64)[seen], values=values[seen]) if seen.any() else None


def authors_rows(entry: Entry) -> list[tuple[str, str, str]]:
    """Returns where the authors' setting and this one differ or agree: name, theirs, ours."""
    settings = {name: (theirs, _look_up(entry, name)) for name, theirs in (entry.paper.authors or {}).items()}
    return [(name, _setting(theirs), _setting(ours)) for name, (theirs, ours) in settings.items()]


def _setting(value: Any) -> str:
    return "not set" if value is None else json.dumps(to_json(value))


def describe_values(values: Mapping[int, float], deterministic: bool = False) -> str:
    """Returns the mean of an arm's values by seed, with its 95 % Student interval unless it is deterministic."""
    if not values:
        return "-"
    if deterministic:
        return f"{np.mean([*values.values()]):.3g}"
    return describe_interval(describe(np.asarray([*values.values()])))


def _committed(entry: Entry, arm: str) -> dict[int, Run]:
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


def _look_up(entry: Entry, name: str) -> Any:
    """Returns a value of the treatment's config by its dotted name."""
    node: Any = entry.settings
    for key in name.split("."):
        if not isinstance(node, Mapping) or key not in node:
            known = ", ".join(map(str, node)) if isinstance(node, Mapping) else node
            raise ValueError(
                f"`authors` of {entry.card.id} must name settings of {entry.paper.arms[0].name}, got {name!r}; where "
                f"{key!r} is looked for, there is {known}."
            )
        node = node[key]
    return node
