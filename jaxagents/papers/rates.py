"""Equal tuning: every trained arm of a paper with the same multiples of its learning rates, on the same search seeds.

The rates of an arm are all numbers named `learning_rate` of what it trains after the start of its study. Each of them
times the factor is an arm that was tried; its runs are stored as any other, and no verdict counts them.
"""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from jaxagents.papers.arms import compose_arm
from jaxagents.papers.execution import run_papers
from jaxagents.papers.judge import values_of
from jaxagents.papers.plan import Request, wanted_arms
from jaxagents.papers.runs import read_runs
from jaxagents.papers.study import SEARCH_SEEDS, Arm, Paper, Study
from jaxagents.reporting.loggers import to_json, write_atomically
from jaxagents.training.composition import compose

RATES_FOLDER = "rates"
_SEEDS = (SEARCH_SEEDS, SEARCH_SEEDS + 1)


@dataclass(frozen=True)
class Tried:
    """An arm with its learning rates times a factor.

    Attributes:
        arm: its name.
        factor: of all of its rates.
        rates: what they were, by option.
        values: of the study's metric, by seed; diverged runs have none.
        diverged: how many runs diverged.
    """

    arm: str
    factor: float
    rates: Mapping[str, float]
    values: Mapping[int, float]
    diverged: int = 0

    @property
    def mean(self) -> float:
        """Mean over seeds; NaN where any of the runs diverged, or none is there."""
        return statistics.fmean(self.values.values()) if self.values and not self.diverged else float("nan")


def scaled_rates(study: Study, arm: Arm, config_folder: str | Path, factor: float) -> dict[str, float]:
    """Returns the learning rates of an arm times a factor, by option; those of the study's start are left alone.

    Args:
        study: of the arm.
        arm: that is trained.
        config_folder: of the experiments.
        factor: more than 0.

    Raises:
        ValueError: the factor is not positive, or the arm has no learning rate.
    """
    if not factor > 0.0:
        raise ValueError(f"`rates` must be positive factors of learning rates, got {factor}.")
    rates = _composed_rates(Path(config_folder), arm.overrides)
    found = {name: rate for name, rate in rates.items() if name.partition(".")[0] != study.start}
    if not found:
        raise ValueError(f"`rates` needs an arm with a number named `learning_rate`; {arm.name} has none.")
    return {name: float(f"{rate * factor:.3g}") for name, rate in found.items()}


def run_rates(papers: Sequence[Paper], request: Request, factors: Sequence[float], *, first: int = 0) -> dict[str, str]:
    """Runs every trained arm of papers with every factor, what is stored excepted; returns why runs failed.

    Args:
        papers: see `library.load_paper`.
        request: which arms and, where not 100 and 101, which search seeds.
        factors: of learning rates.
        first: with which trial to begin, where several processes share them.
    """
    trials = [one for paper in papers for one in _trials(paper, request, factors)]
    first %= max(len(trials), 1)
    failures: dict[str, str] = {}
    for paper, asked, _, _ in [*trials[first:], *trials[:first]]:
        failures |= run_papers([paper], asked)
    return failures


def gather_rates(papers: Sequence[Paper], request: Request, factors: Sequence[float]) -> dict[str, list[Tried]]:
    """Reads what the runs of `run_rates` came to, and adds it to the files of the papers; returns all, by paper."""
    gathered = {}
    for paper in papers:
        kept = {(one.arm, one.factor): one for one in read_rates(request.results, paper.id)}
        for _, asked, arm, factor in _trials(paper, request, factors):
            settings: dict[str, Any] = {"quick": request.quick, "overrides": asked.overrides}
            composed = compose_arm(paper.study, arm, request.config_folder, **settings)
            runs = read_runs(request.results, composed.address).runs
            runs = {seed: run for seed, run in runs.items() if seed in (asked.seeds or ())}
            values = {seed: value for seed, value in values_of(runs, paper.study.metric).items() if value == value}
            rates = scaled_rates(paper.study, arm, request.config_folder, factor)
            if runs:
                kept[arm.name, factor] = Tried(arm.name, factor, rates, values, len(runs) - len(values))
        gathered[paper.id] = [kept[key] for key in sorted(kept)]
        text = json.dumps([to_json(asdict(one)) for one in gathered[paper.id]], indent=1)
        path = _path(request.results, paper.id)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"{text}\n")
    return gathered


def read_rates(results: str | Path, paper: str) -> list[Tried]:
    """Reads what was tried of a paper; nothing where there is no file."""
    path = _path(results, paper)
    nodes: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return [Tried(**node | {"values": {int(seed): one for seed, one in node["values"].items()}}) for node in nodes]


def rates_table(tried: Sequence[Tried], higher_is_better: bool = True) -> list[list[str]]:
    """Returns a row per arm: its name, the mean of every factor in their order with the seeds, and the best factor."""
    factors = sorted({one.factor for one in tried})
    rows = []
    for arm in dict.fromkeys(one.arm for one in tried):
        of_arm = {one.factor: one for one in tried if one.arm == arm}
        sign = 1.0 if higher_is_better else -1.0
        best = max(
            (one for one in of_arm.values() if one.mean == one.mean), key=lambda one: sign * one.mean, default=None
        )
        cells = [_cell(of_arm[factor]) if factor in of_arm else "" for factor in factors]
        rows.append([arm, *cells, "" if best is None else f"{best.factor:g}"])
    return rows


def rates_head(tried: Sequence[Tried]) -> list[str]:
    """Returns the names of the columns of `rates_table`."""
    return ["arm", *(f"rates x {factor:g}" for factor in sorted({one.factor for one in tried})), "best factor"]


def _cell(tried: Tried) -> str:
    values = ", ".join(f"{value:.3g}" for value in tried.values.values())
    rates = ", ".join(dict.fromkeys(f"{rate:g}" for rate in tried.rates.values()))
    return f"{tried.diverged} diverged ({rates})" if tried.diverged else f"{tried.mean:.3f} of {values} ({rates})"


def _trials(paper: Paper, request: Request, factors: Sequence[float]) -> Iterator[tuple[Paper, Request, Arm, float]]:
    """Yields what is to be run: a request for one arm with the overrides of one factor."""
    asked = replace(request, seeds=request.seeds or _SEEDS)
    for arm in wanted_arms(paper, replace(asked, seeds=None)):
        for factor in factors if arm.overrides else ():
            rates = scaled_rates(paper.study, arm, request.config_folder, factor) if factor != 1.0 else {}
            overrides = tuple(f"{name}={rate:g}" for name, rate in rates.items())
            yield paper, replace(asked, arms=(arm.name,), overrides=overrides), arm, factor


@cache
def _composed_rates(folder: Path, overrides: tuple[str, ...]) -> dict[str, float]:
    return dict(_learning_rates(OmegaConf.to_container(compose(folder, *overrides), resolve=False)))


def _learning_rates(node: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yields the names and values of numbers called `learning_rate`, but for those that refer to others."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _learning_rates(value, f"{name}.{key}" if name else str(key))
    elif name.rpartition(".")[2] == "learning_rate" and isinstance(node, int | float):
        yield name, float(node)


def _path(results: str | Path, paper: str) -> Path:
    return Path(results) / RATES_FOLDER / f"{paper}.json"
