"""Moves stored runs whose settings have only been renamed.

A run is found by the hash of its settings, which include names of functions and options. If a name has changed, or an
option without effect was added, the runs are moved to their current address.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jaxagents.papers.arms import Composed, Recipe, compose_arm, start_address, start_asked
from jaxagents.papers.plan import Request
from jaxagents.papers.registration import rename_resolved
from jaxagents.papers.runs import RUNS_FOLDER, run_path, write_asked
from jaxagents.papers.starts import STARTS_FOLDER, copy_start, start_path
from jaxagents.papers.study import Paper
from jaxagents.training.config import config_hash
from jaxagents.training.store import read_fields, read_record, write_record

ASIDE_FOLDER = "earlier"
_SUFFIXES = (".json", ".npz")


def migrate(
    papers: Sequence[Paper], request: Request, renamed: Mapping[str, str], added: Mapping[str, Any]
) -> dict[str, int]:
    """Moves the runs, starts and registrations of papers, and the runs of the baselines of their studies.

    Args:
        papers: see `library.load_paper`.
        request: request that selects the results.
        renamed: current names of functions, modules and options, by their old names.
        added: values at which new options change nothing, by the option's name.

    Returns:
        Numbers of runs and starts that were moved. Their old files are in `<results>/earlier`.
    """
    before = partial(_before, names={new: old for old, new in renamed.items()}, added=added)
    moved: Counter[str] = Counter(runs=0, starts=0)
    sources: set[Path] = set()
    for paper in papers:
        resolved = {}
        for arm in dict.fromkeys(one.name for one in (*paper.arms, *paper.study.arms)):
            (made, *_) = (one for one in (*paper.arms, *paper.study.arms) if one.name == arm)
            composed = compose_arm(paper.study, made, request.config_folder, quick=request.quick)
            settings = {name: value for name, value in composed.asked.items() if name != "version"}
            resolved[arm] = (config_hash(before(settings)), composed.settings)
            moved["runs"] += _copy_runs(request.results, composed, before(composed.asked), sources)
            if (start := composed.start) is not None:
                for folder in (request.results, request.cache):
                    moved["starts"] += _copy_starts(folder, start, before(start_asked(start)), sources)
        rename_resolved(request.results, paper, resolved)
    for folder in sources:
        aside = request.results / ASIDE_FOLDER / folder.parent.name / folder.name
        aside.parent.mkdir(parents=True, exist_ok=True)
        os.rename(folder, aside)
    return dict(moved)


def _copy_runs(results: Path, composed: Composed, asked: Mapping[str, Any], sources: set[Path]) -> int:
    copied = 0
    for path in _files(results / RUNS_FOLDER, asked, composed.address, sources):
        fields, made_with = read_fields(path), read_record(path)["versions"]
        target = run_path(results, composed.address, fields["seed"])
        copied += write_record(target, composed.address, fields, made_with=made_with, once=True)
        write_asked(target.parent, composed.asked)
    return copied


def _copy_starts(folder: Path, start: Recipe, asked: Mapping[str, Any], sources: set[Path]) -> int:
    copied, address = 0, start_address(start)
    for path in _files(folder / STARTS_FOLDER, asked, address, sources):
        target = start_path(folder, address, int(path.stem))
        copied += copy_start(path, target, address)
        write_asked(target.parent, start_asked(start))
    return copied


def _files(folder: Path, asked: Mapping[str, Any], address: str, sources: set[Path]) -> list[Path]:
    """Returns the files under the old settings, and records their folder in `sources`, if the address has changed."""
    own = folder / config_hash(asked)
    found = [] if own.name == address else [path for path in sorted(own.glob("[0-9]*.*")) if path.suffix in _SUFFIXES]
    if found:
        sources.add(own)
    return found


def _before(node: Any, names: Mapping[str, str], added: Mapping[str, Any]) -> Any:
    """Returns settings with their old names, and without new options that change nothing."""
    if isinstance(node, list | tuple):
        return [_before(one, names, added) for one in node]
    if isinstance(node, str):
        return next((old + node[len(new) :] for new, old in names.items() if f"{node}.".startswith(f"{new}.")), node)
    if not isinstance(node, Mapping):
        return node
    kept = {key: value for key, value in node.items() if key not in added or value != added[key]}
    return {names.get(key, key): _before(value, names, added) for key, value in kept.items()}
