"""What `experiments/studies/<family>/<name>.yaml` and `experiments/papers/<family>/<id>.yaml` say."""

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
SEARCH_SEEDS = 100  # Seeds from here on are for choosing settings; no verdict counts them.
LEAST_SEEDS = 8  # Of what is registered from now on; papers that were registered with fewer keep their verdicts.
_ARM_KEYS = ("experiment", "overrides", "function", "version")
_METHOD = "method"


class Arm(NamedTuple):
    """One way of doing it that is compared with others.

    Attributes:
        name: of the arm.
        overrides: of `configs/train.yaml`, such as "world=bandit"; none for a function that needs no training.
        function: node with a `_target_`: `(seed, **keywords) -> {metric: number, or list of numbers}`, or with the
            `method` whose function it is. With `overrides`, it is called with `environment`, `policy` and `params` of
            what the study's `start` trained.
        version: see `Study.version`, of this arm alone.
    """

    name: str
    overrides: tuple[str, ...] = ()
    function: Mapping[str, Any] | None = None
    version: int = 1


@dataclass(frozen=True)
class Variant:
    """What `quick=true` changes."""

    overrides: tuple[str, ...] = ()
    arguments: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Study:
    """A question with a world, a start, a budget, seeds and baselines.

    Attributes:
        id: `<family>/<name>`, of its file.
        question: that its papers answer.
        metric: of expectations that name none, see `metrics.measure`.
        seeds: committed, of every arm; below `SEARCH_SEEDS`.
        arms: baselines that papers share; methods are compared with the first one.
        methods: arms that switch on methods of `configs/method`; see `library.load_batch` for those of papers.
        checks: what baselines must show for the question to have an answer.
        rivals: by arm, the baseline that it is compared with in place of the first one, as their world is another;
            null: with none.
        experiment: of all arms, option of `configs/experiment`; None where `overrides` name a world and an algorithm.
        overrides: of all arms.
        arguments: of all functions; an arm's own come first, and before them those of a variant that it takes.
        metrics: further ones to report.
        higher_is_better: of `metric`.
        smallest_effect: least difference of `metric` that is worth having, for the words and the confirmations of a
            batch.
        budget: unit of training in which all arms must agree, by their steps or by `training.total_<unit>`; "none"
            does not compare them.
        start: first stage that arms share where others follow it; None: each trains all of its stages for every seed.
        start_seed: of the shared stage; None: a start of its own for every seed.
        seeds_at_once: trained side by side in one program; None: all.
        deterministic: one run per arm says it all, and numbers are compared as they are.
        notes: how the setting was found.
        learned: what the batch taught across its methods.
        when_quick: changes of `quick=true`.
        version: part of what runs are found by. It is raised by hand where code changes what the settings mean: the
            stored runs of all arms count no longer, and are run again.
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
    """A paper's claim, and how it is put to the test in a study; without a headline, the batch of a study.

    Attributes:
        id: name of the file.
        family: folder of the file.
        title: of the paper.
        claim: the paper's own numbers.
        study: that it is tested in.
        arms: the paper's own, the treatment first, then those of the study that its expectations name.
        headline: one or two expectations, which decide the verdict.
        secondary: further ones, which are counted and do not decide.
        minutes: on two cores, all arms and seeds.
        metrics: further ones to report.
        seeds: committed; those of the study unless the file has its own.
        looks: numbers of seeds after which the paper is judged, such as 4, 8, 16, 32: as soon as a look decides, the
            other seeds are not run. Empty: once, with all seeds.
        mechanism: only the mechanism of the claim is tested: it is about named models, or an oracle takes the place of
            one.
        authors: what the authors set, by the dotted name of the treatment's setting here.
        notes: deviations from the paper and its code (file and line), diagnosis.
        source: what the two files say, for the registration; None of what is registered elsewhere, see `confirm`.
        files: of the paper and its study.
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
    """Reads seeds: `10-17`, from the first to the last, or a list.

    Raises:
        ValueError: it is neither, or a seed is there twice.
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
    """Refuses seeds that no verdict may rest on.

    Raises:
        ValueError: search seeds, or none of which an interval can be computed.
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
    """Makes a study of plain data, as in its YAML file.

    Raises:
        ValueError: a key is missing or unknown, or a check is about an arm that is no baseline.
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
    """Refuses rivals of arms that are not there, or that are no baselines."""
    for arm, rival in rivals.items():
        if arm not in (*baselines, *methods):
            raise ValueError(f"`rivals` must be of arms, got {arm!r}; try {nearest(arm, [*baselines, *methods])}.")
        if rival is not None and (rival not in baselines or rival == arm):
            others = ", ".join(name for name in baselines if name != arm)
            raise ValueError(f"`rivals.{arm}` must be one of the other baselines {others} or null, got {rival!r}.")


def make_paper(values: Mapping[str, Any], study: Study, source: Mapping[str, Any] | None = None) -> Paper:
    """Makes a paper of plain data, as in its YAML file.

    Args:
        values: of the file, with `id` and `family`; a `start_seed` comes before the study's.
        study: that it names.
        source: what the study's file says.

    Raises:
        ValueError: a key is missing or unknown, an arm has the name of a baseline, or an expectation is about an arm
            that neither the paper nor its study has.
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
    """Returns the arms of these names in the paper's order, all of them for None.

    Raises:
        ValueError: an unknown name; the nearest ones are offered.
    """
    known = {arm.name: arm for arm in paper.arms}
    for name in names or ():
        if name not in known:
            raise ValueError(f"`arms` must be of the paper {paper.id}, got {name!r}; try {nearest(name, known)}.")
    return [arm for arm in paper.arms if not names or arm.name in names]


def _method_nodes(entries: Any) -> dict[str, Any]:
    """Returns the arms of a list of methods: ids, and `{arm: overrides}` of variants and of what a world asks."""
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
    """Returns the names that are most alike, as "this or that"; all of them where none is."""
    return " or ".join(difflib.get_close_matches(str(name), list(known), n=3, cutoff=0.4) or sorted(known))
