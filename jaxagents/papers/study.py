"""Contents of `experiments/studies/<family>/<name>.yaml` and `experiments/papers/<family>/<id>.yaml`."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from jaxagents.ops.checks import require_positive
from jaxagents.papers.expectations import START, Expectation, make_expectations
from jaxagents.training.config import make_section
from jaxagents.types import COUNTERS

BUDGETS = (*COUNTERS, "none")
SEARCH_SEEDS = 100  # Seeds from here on serve to choose settings; no verdict counts them.
LEAST_SEEDS = 8  # For new registrations; papers that were registered with fewer seeds keep their verdicts.
_ARM_KEYS = ("experiment", "overrides", "function", "version")
_METHOD = "method"


class Arm(NamedTuple):
    """One approach that is compared with others.

    Attributes:
        name: name of the arm.
        overrides: overrides of `configs/train.yaml`, such as "world=bandit"; empty for a function that needs no
            training.
        function: config node with a `_target_`: `(seed, **keywords) -> {metric: number, or list of numbers}`, or with
            the `method` whose function it is. If there are `overrides`, the function also receives `environment`,
            `policy` and `params` from what the study's `start` trained.
        version: version of this arm alone, see `Study.version`.
    """

    name: str
    overrides: tuple[str, ...] = ()
    function: Mapping[str, Any] | None = None
    version: int = 1


@dataclass(frozen=True)
class Variant:
    """Changes that `quick=true` makes."""

    overrides: tuple[str, ...] = ()
    arguments: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Study:
    """A question with a world, a start, a budget, seeds and baselines.

    Attributes:
        id: `<family>/<name>` of the study's file.
        question: question that the study's papers answer.
        metric: metric of expectations that do not name one, see `metrics.measure`.
        seeds: committed seeds of every arm, below `SEARCH_SEEDS`.
        arms: baselines that papers share; methods are compared with the first one.
        methods: arms that switch on methods of `configs/method`; see `library.load_batch` for those of papers.
        checks: what baselines must show for the question to have an answer.
        rivals: by arm, the baseline that the arm is compared with instead of the first one, because its world differs;
            null: no comparison.
        experiment: option of `configs/experiment` for all arms; None if `overrides` name a world and an algorithm.
        overrides: overrides of all arms.
        arguments: arguments of all functions; an arm's own override them, and those of a variant override both.
        metrics: further metrics to report.
        higher_is_better: whether higher values of `metric` are better.
        smallest_effect: smallest difference of `metric` of practical interest, for the words and confirmations of a
            batch.
        budget: unit of training in which all arms must agree, by their steps or by `training.total_<unit>`; "none": no
            comparison.
        start: first stage that arms share if other stages follow it; None: each arm trains all of its stages for every
            seed.
        start_seed: seed of the shared stage; None: a separate start for every seed.
        seeds_at_once: number of seeds that are trained in parallel in one program; None: all.
        deterministic: whether one run per arm suffices, and numbers are compared exactly.
        notes: notes on how the setting was found.
        learned: lessons of the batch across its methods.
        when_quick: changes that `quick=true` makes.
        version: number that is part of the address of runs. It is raised by hand when code changes the meaning of the
            settings: the stored runs of all arms no longer count, and are run again.
    """

    id: str
    question: str
    metric: str
    seeds: tuple[int, ...]
    arms: tuple[Arm, ...] = ()
    methods: tuple[Arm, ...] = ()
    checks: tuple[Expectation, ...] = ()
    rivals: Mapping[str, str | None] = field(default_factory=dict)
    experiment: str | None = None
    overrides: tuple[str, ...] = ()
    arguments: Mapping[str, Any] | None = None
    metrics: tuple[str, ...] = ()
    higher_is_better: bool = True
    smallest_effect: float = 0.05
    budget: str = "none"
    start: str | None = None
    start_seed: int | None = 0
    seeds_at_once: int | None = None
    deterministic: bool = False
    notes: str = ""
    learned: str = ""
    when_quick: Variant = Variant()
    version: int = 1

    def __post_init__(self) -> None:
        _require_version("version", self.version)
        if not self.smallest_effect > 0.0:
            raise ValueError(f"`smallest_effect` must be more than 0, got {self.smallest_effect}.")
        if self.seeds_at_once is not None:
            require_positive("seeds_at_once", self.seeds_at_once)
        if self.budget not in BUDGETS:
            raise ValueError(f"`budget` must be one of {', '.join(BUDGETS)}, got {self.budget!r}.")
        require_verdict_seeds(self.seeds, self.deterministic)


@dataclass(frozen=True)
class Paper:
    """A paper's claim, and how a study tests it; without a headline, the batch of a study.

    Attributes:
        id: name of the file.
        family: name of the file's folder.
        title: title of the paper.
        claim: numbers that the paper reports.
        study: study in which it is tested.
        arms: arms of the paper, the treatment first, then those of the study that its expectations name.
        headline: one or two expectations, which decide the verdict.
        secondary: further expectations, which are counted but do not decide.
        minutes: estimated minutes on two cores, for all arms and seeds.
        metrics: further metrics to report.
        seeds: committed seeds; those of the study unless the file has its own.
        looks: numbers of seeds after which the paper is judged, such as 4, 8, 16, 32: as soon as a look decides, the
            remaining seeds are not run. Empty: judged once, with all seeds.
        mechanism: whether only the mechanism of the claim is tested, because the claim is about named models, or an
            oracle replaces one.
        authors: settings of the authors, by the dotted name of the treatment's setting here.
        notes: deviations from the paper and its code (file and line), and a diagnosis.
        source: contents of the two files, for the registration; None if it is registered elsewhere, see `confirm`.
        files: files of the paper and its study.
    """

    id: str
    family: str
    title: str
    claim: str
    study: Study
    arms: tuple[Arm, ...]
    headline: tuple[Expectation, ...]
    minutes: float
    seeds: tuple[int, ...]
    secondary: tuple[Expectation, ...] = ()
    metrics: tuple[str, ...] = ()
    looks: tuple[int, ...] = ()
    mechanism: bool = False
    authors: Mapping[str, Any] | None = None
    notes: str = ""
    source: Mapping[str, Any] | None = None
    files: tuple[Path, ...] = ()


def parse_seeds(name: str, value: Any) -> tuple[int, ...]:
    """Parses seeds: `10-17`, including both ends, or a list.

    Raises:
        ValueError: the value is neither, or contains a seed twice.
    """
    match = re.fullmatch(r"(\d+)-(\d+)", value) if isinstance(value, str) else None
    if match:
        value = range(int(match.group(1)), int(match.group(2)) + 1)
        if not value:
            raise ValueError(
                f"`{name}` must be a range from its lowest to its highest, got {match.group()}; try "
                f"{match.group(2)}-{match.group(1)}."
            )
    if not match and not (isinstance(value, Sequence) and not isinstance(value, str)):
        raise ValueError(f"`{name}` must be a range such as 10-17, or a list such as [10], got {value!r}.")
    seeds = tuple(value)
    if not seeds or len(set(seeds)) < len(seeds) or any(not isinstance(seed, int) or seed < 0 for seed in seeds):
        raise ValueError(f"`{name}` must be different whole numbers of at least 0, got {list(seeds)}.")
    return seeds


def require_verdict_seeds(seeds: Sequence[int], deterministic: bool) -> None:
    """Refuses seeds on which no verdict may be based.

    Raises:
        ValueError: there are search seeds, or too few seeds to compute an interval.
    """
    if found := [seed for seed in seeds if seed >= SEARCH_SEEDS]:
        raise ValueError(
            f"`seeds` must be below {SEARCH_SEEDS}, got {found[0]}: search seeds choose settings and count in no "
            f"verdict; try {'0-7' if not deterministic else '[0]'}."
        )
    needed = 1 if deterministic else 3
    if len(seeds) < needed:
        raise ValueError(f"`seeds` must be at least {needed}, got {len(seeds)}; try 0-7.")


def make_study(values: Mapping[str, Any]) -> Study:
    """Makes a study from plain data, as in its YAML file.

    Raises:
        ValueError: a key is missing or unknown, or a check is about an arm that is not a baseline.
    """
    values = {"seeds": [0]} | dict(values) if values.get("deterministic") else dict(values)
    shared = values.get("experiment"), values.get("overrides"), values.get("start")
    arms = _make_arms(values.get("arms"), *shared)
    methods = _make_arms(_method_nodes(values.get("methods")), *shared)
    if twice := {arm.name for arm in arms} & {arm.name for arm in methods}:
        raise ValueError(f"`methods` must have other names than the baselines, got {min(twice)} in both.")
    _require_rivals(values.get("rivals", {}), [arm.name for arm in arms], [arm.name for arm in methods])
    higher = values.get("higher_is_better", True)
    names = [*(arm.name for arm in arms), *([START] if values.get("start") else [])]
    made: dict[str, Any] = {
        "arms": arms,
        "methods": methods,
        "checks": make_expectations("checks", values.get("checks"), values.get("metric"), higher, names),
    }
    if "seeds" in values:
        made["seeds"] = parse_seeds("seeds", values["seeds"])
    if "when_quick" in values:
        node = values["when_quick"]
        lists = {"overrides": _texts("when_quick.overrides", node.get("overrides", ()))}
        made["when_quick"] = make_section(Variant, "when_quick", {**node, **lists})
    made |= {name: _texts(name, values[name]) for name in ("overrides", "metrics") if name in values}
    return make_section(Study, "study", values | made)


def _require_rivals(rivals: Mapping[str, Any], baselines: Sequence[str], methods: Sequence[str]) -> None:
    """Refuses rivals for unknown arms, or that are not baselines."""
    for arm, rival in rivals.items():
        if arm not in (*baselines, *methods):
            raise ValueError(f"`rivals` must be of arms, got {arm!r}; try {nearest(arm, [*baselines, *methods])}.")
        if rival is not None and (rival not in baselines or rival == arm):
            others = ", ".join(name for name in baselines if name != arm)
            raise ValueError(f"`rivals.{arm}` must be one of the other baselines {others} or null, got {rival!r}.")


def make_paper(values: Mapping[str, Any], study: Study, source: Mapping[str, Any] | None = None) -> Paper:
    """Makes a paper from plain data, as in its YAML file.

    Args:
        values: contents of the file, with `id` and `family`; a `start_seed` overrides the study's.
        study: study that it names.
        source: contents of the study's file.

    Raises:
        ValueError: a key is missing or unknown, an arm has the name of a baseline, or an expectation is about an arm
            that belongs neither to the paper nor to its study.
    """
    values = dict(values)
    study = replace(study, start_seed=values.get("start_seed", study.start_seed))
    own = _make_arms(values.get("arms"), study.experiment, study.overrides, study.start)
    shared = {arm.name: arm for arm in study.arms}
    if twice := [arm.name for arm in own if arm.name in shared]:
        raise ValueError(f"`arms.{twice[0]}` must have another name than the baselines of {study.id}, got the same.")
    names = [*(arm.name for arm in own), *shared, *([START] if study.start else [])]
    expected = {
        role: make_expectations(role, values.get(role), study.metric, study.higher_is_better, names)
        for role in ("headline", "secondary")
    }
    named = {arm for of_role in (*expected.values(), study.checks) for one in of_role for arm in one.arms}
    arms = (*own, *(arm for name, arm in shared.items() if name in named))
    made: dict[str, Any] = {**expected, "arms": arms, "study": study}
    made["seeds"] = parse_seeds("seeds", values["seeds"]) if "seeds" in values else study.seeds
    made["looks"] = parse_seeds("looks", values["looks"]) if values.get("looks") else ()
    made["metrics"] = _texts("metrics", values.get("metrics", ()))
    record = {key: node for key, node in values.items() if key not in ("title", "claim", "minutes", "authors", "notes")}
    made["source"] = {"paper": record, "study": dict(source or {})}
    paper = make_section(Paper, "paper", {key: node for key, node in (values | made).items() if key != "start_seed"})
    require_verdict_seeds(paper.seeds, study.deterministic)
    if not 1 <= len(paper.headline) <= 2:
        raise ValueError(
            f"`headline` must be one or two expectations, got {len(paper.headline)}; the others are `secondary`."
        )
    if paper.looks and list(paper.looks) != sorted({*paper.looks, len(paper.seeds)} - {0, 1}):
        raise ValueError(
            f"`looks` must rise from 2 or more to the number of seeds, {len(paper.seeds)}, got {list(paper.looks)}; "
            "try [4, 8, 16, 32] with seeds: 0-31."
        )
    return paper


def choose_arms(paper: Paper, names: Sequence[str] | None) -> list[Arm]:
    """Returns the arms with these names in the paper's order; all arms for None.

    Raises:
        ValueError: a name is unknown; the nearest ones are offered.
    """
    known = {arm.name: arm for arm in paper.arms}
    for name in names or ():
        if name not in known:
            raise ValueError(f"`arms` must be of the paper {paper.id}, got {name!r}; try {nearest(name, known)}.")
    return [arm for arm in paper.arms if not names or arm.name in names]


def _method_nodes(entries: Any) -> dict[str, Any]:
    """Returns the arms in a list of methods: ids, and `{arm: overrides}` for variants and for what a world needs."""
    nodes: dict[str, Any] = {}
    for entry in entries or ():
        named = entry if isinstance(entry, Mapping) else {entry: [f"+{_METHOD}={entry}"]}
        if twice := nodes.keys() & named.keys():
            raise ValueError(f"`methods` must have every name once, got {min(twice)} twice.")
        nodes |= named
    return nodes


def _make_arms(nodes: Any, experiment: str | None, overrides: Any, start: str | None) -> tuple[Arm, ...]:
    if not isinstance(nodes or {}, Mapping) or START in (nodes or {}):
        raise ValueError(f"`arms` must be named, and not {START!r}, got {nodes!r}.")
    return tuple(_make_arm(name, node, experiment, overrides or (), start) for name, node in (nodes or {}).items())


def _make_arm(name: str, node: Any, experiment: str | None, overrides: Sequence[str], start: str | None) -> Arm:
    version = node.get("version", 1) if isinstance(node, Mapping) else 1
    _require_version(f"arms.{name}.version", version)
    if isinstance(node, Mapping) and not {"_target_", _METHOD}.isdisjoint(node):
        function = {key: value for key, value in node.items() if key != "version"}
        trained = _with_experiment(name, experiment, tuple(overrides)) if _METHOD in node and start is not None else ()
        return Arm(name=name, overrides=trained, function=function, version=version)
    node = dict(node) if isinstance(node, Mapping) else {"overrides": node}
    _require_keys(f"arms.{name}", node, _ARM_KEYS)
    function = node.get("function")
    if function is not None and (start is None or "_target_" not in function):
        raise ValueError(
            f"`arms.{name}.function` must have a `_target_`, and its study a `start` that it is called with, got "
            f"{function!r} and {start!r}."
        )
    experiment = node.get("experiment", experiment)
    own = (*_texts("overrides", overrides), *_texts(f"arms.{name}", node.get("overrides") or ()))
    return Arm(
        name=name,
        overrides=_with_experiment(f"arms.{name}", experiment, own),
        function=function and dict(function),
        version=version,
    )


def _with_experiment(name: str, experiment: str | None, overrides: tuple[str, ...]) -> tuple[str, ...]:
    if experiment is None and not any(text.startswith("world=") for text in overrides):
        raise ValueError(
            f"`{name}` must have an experiment, of its own or of the study, got none; try one of configs/experiment, "
            "or overrides with world=... and algorithm=..."
        )
    return overrides if experiment is None else (f"experiment={experiment}", *overrides)


def _require_keys(name: str, node: Any, known: Sequence[str]) -> None:
    unknown = set(node) - set(known) if isinstance(node, Mapping) else {str(node)}
    if unknown:
        raise ValueError(f"`{name}` has no key {sorted(unknown)[0]!r}; try {' or '.join(known)}.")


def _require_version(name: str, version: Any) -> None:
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError(f"`{name}` must be a whole number of at least 1, got {version!r}; raise it by one.")


def _texts(name: str, values: Any) -> tuple[str, ...]:
    if not isinstance(values, Sequence) or isinstance(values, str) or not all(isinstance(v, str) for v in values):
        raise ValueError(f"`{name}` must be a list of texts, got {values!r}; try quotes, as in ['loss=plain'].")
    return tuple(values)


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the most similar names, as "this or that"; all names if none is similar."""
    return " or ".join(difflib.get_close_matches(str(name), list(known), n=3, cutoff=0.4) or sorted(known))
