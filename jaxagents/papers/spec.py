"""What `configs/paper/<family>/<id>.yaml` says: claim, arms, metric, expectations."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from jaxagents.ops.checks import require_positive
from jaxagents.training.config import make_section

START = "start"  # In expectations, what all arms start from.
BUDGETS = ("episodes", "env_steps", "none")


class Arm(NamedTuple):
    """One way of training that a paper compares.

    Attributes:
        name: of the arm.
        overrides: of `configs/train.yaml`, such as "world=bandit"; none for an arm with a `target`.
        target: node with a `_target_`: `(seed) -> {metric: number, or list of numbers over training}`.
    """

    name: str
    overrides: tuple[str, ...] = ()
    target: dict[str, Any] | None = None


class Expectation(NamedTuple):
    """One thing that should come out.

    Attributes:
        metric: of the arms.
        kind: "higher" and "lower": the metric of the first arm is at least `margin` higher (lower) than that of the
            second; "equal": they differ by `margin` at most; "above" and "below": that of the only arm is above or
            below `margin`.
        arms: one or two; `START` is what all arms start from.
        margin: in units of the metric.
        confidence: of the interval that decides.
    """

    metric: str
    kind: str
    arms: tuple[str, ...]
    margin: float
    confidence: float

    def describe(self) -> str:
        """Returns the expectation in words."""
        first, second = self.arms[0], self.arms[-1]
        if self.kind in ("above", "below"):
            return f"{self.metric} of {first} {self.kind} {self.margin:g}"
        if self.kind == "equal":
            return f"{self.metric} of {first} and {second} equal within {self.margin:g}"
        return f"{self.metric} of {first} {self.kind} than of {second} by {self.margin:g}"


@dataclass(frozen=True)
class Variant:
    """What `full=true` and `quick=true` change."""

    overrides: tuple[str, ...] = ()
    arguments: Mapping[str, Any] | None = None
    seeds: int | None = None


@dataclass(frozen=True)
class Paper:
    """A paper's claim, and how it is put to the test here.

    Attributes:
        id: name of the file.
        title: of the paper.
        claim: the paper's own numbers.
        arms: in order; the treatment first.
        metric: that of the verdict, see `arms.measure`.
        expect: committed before the results.
        minutes: on two cores, all arms and seeds.
        experiment: of all arms, option of `configs/experiment`; None where `overrides` name a world and an algorithm.
        overrides: of all arms.
        arguments: of all arms with a target; an arm's own come first, and those of a variant before them.
        higher_is_better: of `metric`.
        metrics: further ones to report.
        budget: unit of training in which all arms must agree; "none" does not compare them.
        start: stage that all arms share; None: each trains all of its stages for every seed.
        start_seed: of the shared stage.
        seeds: of every arm.
        seeds_at_once: trained side by side in one program; None: all.
        deterministic: one run per arm says it all, and numbers are compared as they are.
        notes: deviations, diagnosis.
        when_full: changes of `full=true`.
        when_quick: changes of `quick=true`.
    """

    id: str
    title: str
    claim: str
    arms: tuple[Arm, ...]
    metric: str
    expect: tuple[Expectation, ...]
    minutes: float
    experiment: str | None = None
    overrides: tuple[str, ...] = ()
    arguments: Mapping[str, Any] | None = None
    higher_is_better: bool = True
    metrics: tuple[str, ...] = ()
    budget: str = "none"
    start: str | None = None
    start_seed: int = 0
    seeds: int = 5
    seeds_at_once: int | None = None
    deterministic: bool = False
    notes: str = ""
    when_full: Variant = Variant()
    when_quick: Variant = Variant()

    def __post_init__(self) -> None:
        require_positive("paper.seeds", self.seeds)
        if self.seeds_at_once is not None:
            require_positive("paper.seeds_at_once", self.seeds_at_once)
        if self.budget not in BUDGETS:
            raise ValueError(f"`paper.budget` must be one of {', '.join(BUDGETS)}, got {self.budget!r}.")


def paper_files(folder: str | Path) -> dict[str, Path]:
    """Returns the file of every paper by its id, in order: `<folder>/<family>/<id>.yaml`."""
    return {path.stem: path for path in sorted(Path(folder).glob("*/*.yaml"), key=lambda path: path.stem)}


def load_paper(folder: str | Path, paper_id: str) -> Paper:
    """Reads a paper.

    Args:
        folder: `configs/paper`.
        paper_id: name of the file without family and `.yaml`.

    Returns:
        The paper.

    Raises:
        ValueError: there is no such paper (the nearest ones are offered), or its file does not hold.
    """
    files = paper_files(folder)
    if paper_id not in files:
        near = difflib.get_close_matches(paper_id, files, n=3, cutoff=0.4) or list(files)
        raise ValueError(f"`paper` must be a file of configs/paper, got {paper_id!r}; try {' or '.join(near)}.")
    try:
        return make_paper({**yaml.safe_load(files[paper_id].read_text(encoding="utf-8")), "id": paper_id})
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise ValueError(f"{files[paper_id].name}: {error}") from error


def make_paper(values: Mapping[str, Any]) -> Paper:
    """Makes a paper of plain data, as in its YAML file.

    Raises:
        ValueError: a key is missing or unknown, or an expectation is about an unknown arm.
    """
    values = dict(values)
    arms = tuple(
        _make_arm(name, node, values.get("experiment"), values.get("overrides", ()))
        for name, node in (values.get("arms") or {}).items()
    )
    if not arms or START in [arm.name for arm in arms]:
        raise ValueError(f"`arms` must be named, and not {START!r}, got {[arm.name for arm in arms]}.")
    higher = values.get("higher_is_better", True)
    names = [*(arm.name for arm in arms), *([START] if values.get("start") else [])]
    expect = tuple(_make_expectation(node, values.get("metric"), higher, names) for node in values.get("expect") or ())
    if not expect:
        raise ValueError("`expect` must have an entry, got none; write down what should come out before the results.")
    variants = {
        name: make_section(Variant, name, {**node, "overrides": _texts(name, node.get("overrides", ()))})
        for name, node in values.items()
        if name in ("when_full", "when_quick")
    }
    lists = {name: _texts(name, values[name]) for name in ("overrides", "metrics") if name in values}
    return make_section(Paper, "paper", values | lists | variants | {"arms": arms, "expect": expect})


def choose_arms(paper: Paper, names: Sequence[str] | None) -> list[Arm]:
    """Returns the arms of these names in the paper's order, all of them for None.

    Raises:
        ValueError: an unknown name; the nearest ones are offered.
    """
    known = {arm.name: arm for arm in paper.arms}
    for name in names or ():
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=2, cutoff=0.4) or list(known)
            raise ValueError(f"`arms` must be of the paper {paper.id}, got {name!r}; try {' or '.join(near)}.")
    return [arm for arm in paper.arms if not names or arm.name in names]


def _make_arm(name: str, node: Any, experiment: str | None, overrides: Sequence[str]) -> Arm:
    if isinstance(node, Mapping) and "_target_" in node:
        return Arm(name=name, target=dict(node))
    if isinstance(node, Mapping):
        unknown = set(node) - {"experiment", "overrides"}
        if unknown:
            raise ValueError(f"`arms.{name}` has no key {sorted(unknown)[0]!r}; try experiment or overrides.")
        experiment, node = node.get("experiment", experiment), node.get("overrides") or ()
    own = (*_texts("overrides", overrides or ()), *_texts(f"arms.{name}", node or ()))
    if experiment is None and not any(text.startswith("world=") for text in own):
        raise ValueError(
            f"`arms.{name}` must have an experiment, of its own or of the paper, got none; try one of "
            "configs/experiment, or overrides with world=... and algorithm=..."
        )
    return Arm(name=name, overrides=own if experiment is None else (f"experiment={experiment}", *own))


def _texts(name: str, values: Any) -> tuple[str, ...]:
    if not isinstance(values, Sequence) or isinstance(values, str) or not all(isinstance(v, str) for v in values):
        raise ValueError(f"`{name}` must be a list of texts, got {values!r}; try quotes, as in ['loss=plain'].")
    return tuple(values)


def _make_expectation(node: Any, metric: str, higher_is_better: bool, names: Sequence[str]) -> Expectation:
    """Reads `{better: a, worse: b, margin: x}`, `{higher: a, lower: b, ...}`, `{equal: [a, b], ...}` or
    `{arm: a, above | below: x}`, each with an optional `metric` and `confidence`."""
    node = dict(node)
    own_metric, confidence = node.pop("metric", metric), float(node.pop("confidence", 0.95))
    keys = set(node)
    if keys == {"better", "worse", "margin"} and own_metric == metric:
        kind, arms = "higher" if higher_is_better else "lower", (node["better"], node["worse"])
    elif keys == {"higher", "lower", "margin"}:
        kind, arms = "higher", (node["higher"], node["lower"])
    elif keys == {"equal", "margin"} and len(node["equal"]) == 2:
        kind, arms = "equal", tuple(node["equal"])
    elif keys in ({"arm", "above"}, {"arm", "below"}):
        kind, arms = (keys - {"arm"}).pop(), (node["arm"],)
    else:
        raise ValueError(
            f"`expect` must be better, worse, margin (of the paper's metric); higher, lower, margin; equal, margin; or "
            f"arm, above or below; got {sorted(keys)} of {own_metric}."
        )
    for arm in arms:
        if arm not in names:
            raise ValueError(f"`expect` must be about the arms {', '.join(names)}, got {arm!r}.")
    margin = float(node.get("margin", node.get(kind, 0.0)))
    if not 0.0 < confidence < 1.0 or (len(arms) == 2 and margin < 0.0):
        raise ValueError(
            f"`expect` must have a confidence between 0 and 1 and a margin of at least 0, got {confidence}, {margin}."
        )
    return Expectation(metric=own_metric, kind=kind, arms=arms, margin=margin, confidence=confidence)
