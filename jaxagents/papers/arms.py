"""The arms of a paper as they are now: composed, built, and found in the store."""

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
from hydra.utils import get_object

from jaxagents.papers.study import Arm, Paper, Study, Variant, nearest
from jaxagents.training.build import Stage, build_stage, resolve
from jaxagents.training.composition import compose, merge_overrides
from jaxagents.training.config import DevicesConfig, config_hash, make_section
from jaxagents.training.methods import chosen_methods, method_files, read_method, require_free
from jaxagents.training.stages import stage_configs
from jaxagents.types import LanguagePolicy

TRAINED = ("environment", "learner", "collector", "quick")  # Parts of a stage's config that change what it learns.


class Recipe(NamedTuple):
    """Stages that are trained one after the other.

    Attributes:
        config: resolved config of the experiment.
        stages: resolved config of each stage by its name, in order.
        first: index of the first of these stages within the experiment.
        seed: seed of all stages; None: the seed of the run.
        version: version of the meaning of the settings, see `Study.version`.
    """

    config: Mapping[str, Any]
    stages: Mapping[str, Mapping[str, Any]]
    first: int = 0
    seed: int | None = None
    version: int = 1


class Composed(NamedTuple):
    """An arm with everything that determines its runs.

    Attributes:
        name: name of the arm.
        address: address of its runs in the store: the hash of `asked`.
        settings: hash of `asked` without versions; this is what gets registered.
        recipe: recipe that every run trains; None for a function.
        start: recipe whose parameters the runs start from, or its function is called with; None: no shared start.
        function: config node with a `_target_`; None for an experiment.
        asked: resolved settings of what is trained, or of the function, and of the evaluations of all stages, with the
            versions of the study and the arm; without names, seeds, devices and logging.
    """

    name: str
    address: str
    settings: str
    recipe: Recipe | None
    start: Recipe | None
    function: Mapping[str, Any] | None
    asked: Mapping[str, Any]


def compose_arms(
    paper: Paper, config_folder: str | Path, *, quick: bool = False, overrides: Sequence[str] = ()
) -> dict[str, Composed]:
    """Composes every arm of a paper from the current configs.

    Args:
        paper: see `library.load_paper`.
        config_folder: folder of the experiments' configs.
        quick: whether to compose the small variants.
        overrides: further overrides of all arms, for trials.

    Returns:
        The arms by name.
    """
    return {
        arm.name: compose_arm(paper.study, arm, config_folder, quick=quick, overrides=overrides) for arm in paper.arms
    }


def compose_arm(
    study: Study, arm: Arm, config_folder: str | Path, *, quick: bool = False, overrides: Sequence[str] = ()
) -> Composed:
    """Composes an arm.

    Args:
        study: study that it belongs to.
        arm: arm to compose.
        config_folder: folder of the experiments' configs.
        quick: whether to merge the `when_quick` settings of the experiment and the study.
        overrides: further overrides, for trials.

    Returns:
        The arm.

    Raises:
        ValueError: the arm does not have the stage that the study's `start` names as the first.
    """
    variant = study.when_quick if quick else Variant()
    arm = _with_function(study, arm, config_folder)
    folder, further = Path(config_folder), (*variant.overrides, *overrides)
    recipe = start = function = None
    if arm.function is not None:
        function = {**(study.arguments or {}), **arm.function}
        function |= _taken(arm.function["_target_"], variant.arguments or {})
    if arm.overrides:
        recipe = _make_recipe(arm.overrides, folder, further, quick)
        if study.start is not None:
            start, recipe = _split_recipe(study, arm.name, recipe, called=function is not None)
    recipe = None if function is not None else recipe
    settings = {
        "train": _content(recipe, start, function),
        "evaluation": [] if recipe is None else [node["evaluation"] for node in recipe.stages.values()],
    }
    asked = {**settings, "version": [study.version, arm.version]}
    hashes = config_hash(asked), config_hash(settings)
    return Composed(arm.name, *hashes, recipe, start, function, asked)


def _with_function(study: Study, arm: Arm, config_folder: str | Path) -> Arm:
    """Returns an arm with the function of its method, if the method is one, and refuses settings that conflict."""
    named = chosen_methods(arm.overrides)
    node = dict(arm.function or {})
    called = [node.pop("method")] if "method" in node and "_target_" not in node else []
    files = method_files(config_folder)
    if unknown := [name for name in (*named, *called) if name not in files]:
        raise ValueError(
            f"`{arm.name}` must be of configs/method, got {unknown[0]!r}; try {nearest(unknown[0], files)}."
        )
    methods = [read_method(files[name]) for name in (*named, *called)]
    for method in methods:
        require_free(method, study.overrides, f"overrides of {study.id}")
    functions = [method for method in methods if method.function is not None]
    if not functions:
        if called:
            raise ValueError(f"`{arm.name}` must be a function, got the method {called[0]}; try [+method={called[0]}].")
        return arm
    overrides = tuple(text for text in arm.overrides if not chosen_methods([text])) if study.start is not None else ()
    return arm._replace(overrides=overrides, function={**(functions[0].function or {}), **node})


def methods_of(arm: Arm) -> list[str]:
    """Returns the methods that an arm switches on or calls."""
    called = (arm.function or {}).get("method")
    return [*chosen_methods(arm.overrides), *([called] if isinstance(called, str) else [])]


def settings_of(arms: Mapping[str, Composed]) -> dict[str, str]:
    """Returns the hashes of the arms' resolved settings, which are registered, by arm name."""
    return {name: arm.settings for name, arm in arms.items()}


def start_asked(start: Recipe) -> dict[str, Any]:
    """Returns what determines the parameters of a start and its final evaluation."""
    *_, last = start.stages.values()
    evaluation = {name: value for name, value in last["evaluation"].items() if name != "every_steps"}
    return {"train": _stage_contents(start), "evaluation": evaluation, "version": start.version}


def start_address(start: Recipe) -> str:
    """Returns the address under which the parameters of a start are stored."""
    return config_hash(start_asked(start))


def build_stages(recipe: Recipe, num_seeds: int) -> list[Stage]:
    """Builds the stages of a recipe for seeds that are trained in parallel."""
    devices = make_section(DevicesConfig, "devices", recipe.config["devices"])
    return [build_stage(name, {**node, "seeds": num_seeds}, devices) for name, node in recipe.stages.items()]


def steps_of(stages: Sequence[Stage]) -> int:
    """Returns the number of training steps per seed; a run ends earlier when a budget of experience is used up."""
    return sum(stage.num_updates * stage.steps_per_update for stage in stages)


def budget_of(stages: Sequence[Stage], unit: str = "none") -> list[Any]:
    """Returns how long an arm trains.

    Args:
        stages: stages of the arm.
        unit: unit of the study.

    Returns:
        `[unit, length]` for one seed: in the study's unit if every stage has a budget in it (`training.total_turns`),
        else in steps, which are episodes for language policies and environment steps otherwise.
    """
    of_steps = "episodes" if isinstance(stages[-1].policy, LanguagePolicy) else "env_steps"
    totals = [stage.training.experience.get(unit) for stage in stages]
    return [of_steps, steps_of(stages)] if unit == of_steps or None in totals else [unit, sum(totals)]


def logged_names(stages: Sequence[Stage]) -> list[str]:
    """Returns the names of everything that the stages log, without computing anything."""
    names: set[str] = set()
    for stage in stages:
        abstract = stage.runner.abstract
        evaluated = jax.eval_shape(lambda learner, stage=stage: stage.evaluate(learner.params), abstract.learner)
        names |= {f"eval/{name}" for name in evaluated}
        names |= set(jax.eval_shape(lambda state, stage=stage: stage.runner.run(state, 1)[1], abstract))
    return sorted(names)


def _taken(target: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those arguments that a function accepts: a study's variant serves functions of several kinds."""
    parameters = inspect.signature(get_object(target)).parameters
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return {name: value for name, value in arguments.items() if takes_all or name in parameters}


def _make_recipe(overrides: Sequence[str], folder: Path, further: Sequence[str], quick: bool) -> Recipe:
    config = _resolved(folder, tuple(merge_overrides([*overrides, f"quick={str(quick).lower()}"], list(further))))
    return Recipe(config=config, stages=stage_configs(config))


@cache
def _resolved(folder: Path, overrides: tuple[str, ...]) -> dict[str, Any]:
    return resolve(compose(folder, *overrides))


def _split_recipe(study: Study, arm: str, recipe: Recipe, *, called: bool) -> tuple[Recipe | None, Recipe]:
    """Returns the shared first stage, and what every run trains after it.

    An arm that begins differently, or trains nothing after the first stage, has no start: it is a separate run.
    """
    first, *others = recipe.stages
    if study.start not in recipe.stages or (called and first != study.start):
        raise ValueError(
            f"`start` must be {'the first' if called else 'a'} stage of the arm {arm}, got {study.start!r}; its stages "
            f"are {', '.join(recipe.stages)}."
        )
    if first != study.start or not (others or called):
        return None, recipe
    start = recipe._replace(stages={first: recipe.stages[first]}, seed=study.start_seed, version=study.version)
    return start, recipe._replace(stages={name: recipe.stages[name] for name in others}, first=1)


def _content(recipe: Recipe | None, start: Recipe | None, function: Mapping[str, Any] | None) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if recipe is not None:
        content["stages"] = _stage_contents(recipe, None if start is None else next(iter(start.stages)))
    if start is not None:
        content["start"] = [*_stage_contents(start), start.seed]
    if function is not None:
        content["function"] = dict(function)
    return content


def _stage_contents(recipe: Recipe, start: str | None = None) -> list[dict[str, Any]]:
    """Returns what determines what the stages learn; `from` is an index, because names have no effect."""
    numbers = {name: recipe.first + i for i, name in enumerate(recipe.stages)} | ({} if start is None else {start: 0})
    return [
        {
            **{name: node[name] for name in TRAINED},
            **{name: total for name, total in node["training"].items() if name.startswith("total_") and total},
            "from": None if node["from"] is None else numbers[node["from"]],
        }
        for node in recipe.stages.values()
    ]
