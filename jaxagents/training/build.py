"""Builds the functions that a composed config names."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from jaxagents.environments.checks import require_level
from jaxagents.language.host_rewards import paid_alike
from jaxagents.language.tokenizers import restore
from jaxagents.training.asynchronous import place_apart, split_devices
from jaxagents.training.config import (
    DevicesConfig,
    EvaluationConfig,
    LoggingConfig,
    TrainingConfig,
    config_hash,
    make_section,
    require_run,
    run_hash,
)
from jaxagents.training.devices import Runner, axis_name_of, place, place_on_mesh, select_devices
from jaxagents.training.fitting import (
    explain_misfit,
    read_variables,
    require_fit,
    require_tasks,
    require_value,
    to_plain,
)
from jaxagents.training.mesh import axis_name_on, make_mesh
from jaxagents.training.program import AXIS_NAME, Program, counted_units, make_program, over_seeds
from jaxagents.training.setting_types import check_settings, convert
from jaxagents.training.stages import setting_names, stage_configs
from jaxagents.types import Array, Environment, LanguagePolicy, Params, Policy


class Stage(NamedTuple):
    """One stage of a run: a program, and how to evaluate its policy.

    Attributes:
        name: name for logs and folders.
        start: name of the earlier stage from whose final state it starts; None: from random parameters.
        runner: placed program.
        evaluate: compiled `(params) -> dict` of `[episodes]`, or `[seeds, episodes]`.
        evaluate_last: the same with `evaluation.final_episodes` episodes, for the end of the stage.
        evaluator: function that makes such evaluations: `(environment, policy, *, num_episodes, greedy, level) ->
            ((params, key) -> dict of [episodes])`.
        policy: policy that acts.
        environment: environment of the evaluation.
        num_updates: number of updates of the program.
        steps_per_update: steps per update of one seed, in the unit of the collector.
        training: `training` section of the config.
        evaluation: `evaluation` section of the config.
    """

    name: str
    start: str | None
    runner: Runner
    evaluate: Callable[[Params], dict[str, Array]]
    evaluate_last: Callable[[Params], dict[str, Array]]
    evaluator: Callable[..., Callable[[Params, Array], dict[str, Array]]]
    policy: Policy | LanguagePolicy
    environment: Environment
    num_updates: int
    steps_per_update: int
    training: TrainingConfig
    evaluation: EvaluationConfig


@dataclass(frozen=True)
class Experiment:
    """A run that is ready to start.

    Attributes:
        name: name of the experiment.
        seed: seed of all randomness of training.
        num_seeds: number of copies trained in parallel, which are the runs of `seed`, `seed + 1` and so on; 0 for a
            single run without a seed axis.
        stages: stages, run one after the other.
        devices: `devices` section of the config.
        logging: `logging` section of the config.
        config: the resolved config as plain data.
        digest: `config_hash` of the config.
        run_digest: `run_hash` of the config, by which checkpoints are matched to their run.
    """

    name: str
    seed: int
    num_seeds: int
    stages: tuple[Stage, ...]
    devices: DevicesConfig
    logging: LoggingConfig
    config: dict[str, Any]
    digest: str
    run_digest: str


def resolve(config: DictConfig) -> dict[str, Any]:
    """Resolves a composed config to plain data.

    With `quick=true`, the `when_quick` section is merged over it.

    Raises:
        ValueError: something refers to an option that is not chosen, or see `require_run`.
    """
    config = config.copy()
    OmegaConf.set_struct(config, False)
    if convert("quick", config.quick, bool):
        config = OmegaConf.merge(config, config.when_quick)  # type: ignore[assignment]
    fits = config.pop("fits", None)
    for name in ("when_quick", "hydra", "trust"):
        config.pop(name, None)
    if config.get("start_from") is None:  # Hashes cover only what a run has.
        config.pop("start_from", None)
    resolved = to_plain(config, fits)
    require_run(resolved)
    return resolved


def build(config: Mapping[str, Any], *, tokenizer: bytes | None = None) -> Experiment:
    """Builds everything that a resolved config names.

    Args:
        config: see `resolve`.
        tokenizer: `Tokenizer.data` of the tokenizer that language policies use instead of their config's, as saved with
            their parameters.

    Returns:
        The experiment.

    Raises:
        ValueError: a setting is out of range or does not fit another setting.
    """
    require_run(config)
    devices = make_section(DevicesConfig, "devices", config["devices"])
    logging = make_section(LoggingConfig, "logging", config["logging"])
    stages: list[Stage] = []
    built: dict[str, Stage] = {}
    for name, stage in checked_stages(read_variables(config)).items():
        same = config_hash(stage | {"from": None})  # The rounds of a stage share its compiled program.
        if same not in built:
            built[same] = build_stage(name, stage, devices, tokenizer=tokenizer)
        stages.append(built[same]._replace(name=name, start=stage["from"]))
    return Experiment(
        name=config["name"],
        seed=config["seed"],
        num_seeds=config["seeds"] if config["seeds"] > 1 else 0,
        stages=tuple(stages),
        devices=devices,
        logging=logging,
        config=dict(config),
        digest=config_hash(config),
        run_digest=run_hash(config),
    )


_MOST_UPDATES = 2**31 - 1  # Updates are counted in int32.
_CALLED = ("learner", "collector", "evaluation")  # Sections whose functions are called.


def checked_stages(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the config of every stage, see `stage_configs`, after a check of names and types; builds nothing.

    Raises:
        ValueError: see `check_settings`.
    """
    make_section(DevicesConfig, "devices", config["devices"])
    make_section(LoggingConfig, "logging", config["logging"])
    stages = stage_configs(config)
    for name, stage in stages.items():
        names = setting_names(config, name, stage)
        stage["environment"] = check_settings(stage.get("environment"), names, ("environment",))
        try:
            require_value(stage)
            stage |= {group: check_settings(stage.get(group), names, (group,)) for group in _CALLED}
        except ValueError:
            explain_misfit(stage)
            raise
        for group, kind in (("training", TrainingConfig), ("evaluation", EvaluationConfig)):
            own = {key: value for key, value in stage[group].items() if key not in ("environment", "evaluator")}
            make_section(kind, group, own)
    return stages


def _count_updates(training: TrainingConfig, steps_per_update: int, quick: bool) -> int:
    """Returns the number of whole updates that fit into a run; at least two in quick runs."""
    num_updates = training.total_steps // steps_per_update
    if num_updates < 1 and not quick:
        raise ValueError(
            f"`training.total_steps` must be at least the {steps_per_update} steps of one update, "
            f"got {training.total_steps}."
        )
    if num_updates > _MOST_UPDATES:
        raise ValueError(
            f"`training.total_steps` must be at most {_MOST_UPDATES} updates of {steps_per_update} steps, got "
            f"{training.total_steps}."
        )
    return max(num_updates, 2) if quick else num_updates


def build_stage(
    name: str, config: Mapping[str, Any], devices: DevicesConfig, *, tokenizer: bytes | None = None
) -> Stage:
    """Builds one stage.

    Args:
        name: name of the stage.
        config: config of the stage, see `stage_configs`.
        devices: where the stage runs: the same on each device (see `devices.place`), on a mesh that splits parameters
            (see `devices.place_on_mesh`), or with `devices.actors` devices that sample while the others learn (see
            `place_apart`).
        tokenizer: see `build`.

    Returns:
        The stage.

    Raises:
        ValueError: a setting is out of range or does not fit another setting.
    """
    axis_name, place_parts = _placement(devices, config["seeds"])
    training = make_section(TrainingConfig, "training", config["training"])
    evaluation_config = dict(config["evaluation"])
    evaluation_environment = evaluation_config.pop("environment", None)
    evaluator = instantiate(OmegaConf.create(evaluation_config.pop("evaluator")))
    evaluation = make_section(EvaluationConfig, "evaluation", evaluation_config)
    environment = _instantiate("environment", config)
    require_fit(config, environment)
    require_tasks(config["environment"], environment)
    make_agent = _instantiate("learner", config)
    if tokenizer is not None:
        policy = partial(make_agent.keywords["policy"], tokenizer=lambda words: restore(tokenizer))
        make_agent = partial(make_agent, policy=policy)
    agent = make_agent(environment, axis_name=axis_name)
    make_collector = _instantiate("collector", config)
    counts = "axis_name" in inspect.signature(make_collector).parameters
    collector = make_collector(environment, agent.policy, **({"axis_name": axis_name} if counts else {}))
    evaluator = paid_alike(evaluator, make_collector)
    num_updates = _count_updates(training, collector.steps_per_collect, config["quick"])
    learner = agent.make_learner(collector, num_updates)
    program = make_program(collector, learner)
    if config["seeds"] > 1:
        program = over_seeds(program, config["seeds"])
    is_pretrained = isinstance(agent.policy, LanguagePolicy) and agent.policy.model.pretrained
    runner = place_parts(program, collector, learner, read_params=agent.policy.init if is_pretrained else None)
    _require_counted(training, program, axis_name)
    judged = environment if evaluation_environment is None else instantiate(evaluation_environment)
    require_level(judged, evaluation.level)
    require_tasks(evaluation_environment, judged)

    def make_evaluation(num_episodes: int) -> Callable[[Params], dict[str, Array]]:
        play = evaluator(
            judged, agent.policy, num_episodes=num_episodes, greedy=evaluation.greedy, level=evaluation.level
        )

        def evaluate(params: Params) -> dict[str, Array]:
            key = jax.random.key(evaluation.seed)
            return jax.vmap(play, in_axes=(0, None))(params, key) if program.num_seeds else play(params, key)

        return jax.jit(evaluate, out_shardings=runner.replicated)

    evaluate, final = make_evaluation(evaluation.num_episodes), evaluation.final_episodes
    return Stage(
        name=name,
        start=config["from"],
        runner=runner,
        evaluate=evaluate,
        evaluate_last=evaluate if final is None else make_evaluation(final),
        evaluator=evaluator,
        policy=agent.policy,
        environment=judged,
        num_updates=num_updates,
        steps_per_update=collector.steps_per_collect,
        training=training,
        evaluation=evaluation,
    )


def _placement(devices: DevicesConfig, num_seeds: int) -> tuple[str | None, Callable[..., Runner]]:
    """Returns the axis that a learner must reduce over, and `(program, collector, learner, **options) -> Runner`."""
    mode: Any = devices.mode
    if devices.actors is not None:
        if num_seeds > 1:
            raise ValueError(f"`seeds` must be 1 with `devices.actors`, got {num_seeds}; try a run each.")
        actors, learners = split_devices(devices.num_devices, devices.actors)
        apart = partial(place_apart, actors=actors, learners=learners, lag=devices.lag)
        return AXIS_NAME, lambda program, *parts, **options: apart(*parts, **options)
    if devices.mesh is not None:
        mesh, rules = make_mesh(devices.mesh, devices.num_devices), devices.rules or {}
        return axis_name_on(mesh), lambda program, *_, **options: place_on_mesh(program, mesh, rules=rules, **options)
    chosen = partial(select_devices, mode, devices.num_devices)
    return axis_name_of(mode), lambda program, *_, **options: place(program, mode=mode, devices=chosen(), **options)


def _require_counted(training: TrainingConfig, program: Program, axis_name: str | None) -> None:
    """Refuses a budget in a unit that the collector does not count."""
    if not training.experience:
        return
    counted = counted_units(program, axis_name)
    for unit in training.experience:
        if unit not in counted:
            raise ValueError(
                f"`training.total_{unit}` must be in a unit that the collector counts, got one that counts "
                f"{', '.join(counted) or 'nothing'}; try training.total_steps."
            )


def _instantiate(group: str, config: Mapping[str, Any]) -> Any:
    node = config.get(group)
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise ValueError(f"`{group}` must name a `_target_`, got {node!r}; choose an option of configs/{group}.")
    return instantiate(OmegaConf.create(dict(node)))
