"""From a composed config to the functions that it names."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from jaxagents.language.tokenizers import restore
from jaxagents.ops.checks import require_positive, require_seed
from jaxagents.training.config import (
    DevicesConfig,
    EvaluationConfig,
    LoggingConfig,
    TrainingConfig,
    config_hash,
    make_section,
    refuse_keywords,
    require_keywords,
    run_hash,
)
from jaxagents.training.devices import Runner, axis_name_of, place, place_on_mesh, select_devices
from jaxagents.training.fitting import require_fit, require_tasks, to_plain
from jaxagents.training.mesh import axis_name_on, make_mesh
from jaxagents.training.program import Program, counted_units, make_program, over_seeds
from jaxagents.types import Array, Environment, LanguagePolicy, Params, Policy


class Stage(NamedTuple):
    """One part of a run: a program, and how to judge its policy.

    Attributes:
        name: for logs and folders.
        start: name of the earlier stage from whose end it starts; None: from random parameters.
        runner: the placed program.
        evaluate: compiled `(params) -> dict` of `[episodes]`, or `[seeds, episodes]`.
        evaluate_last: the same at the end of the stage, of `evaluation.final_episodes`.
        evaluator: what makes such functions: `(environment, policy, *, num_episodes, greedy, level) ->
            ((params, key) -> dict of [episodes])`.
        policy: what acts.
        environment: what it is evaluated in.
        num_updates: of the program.
        steps_per_update: of one seed, in the unit of the collector.
        training: its section of the config.
        evaluation: its section of the config.
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
    """A run, ready to go.

    Attributes:
        name: of the experiment.
        seed: all randomness of training comes from it.
        num_seeds: copies trained side by side, which are the runs of `seed`, `seed + 1` and so on; 0 for a single one
            without a seed axis.
        stages: run one after the other.
        devices: section of the config.
        logging: section of the config.
        config: the resolved config as plain data.
        digest: `config_hash` of it.
        run_digest: `run_hash` of it, by which checkpoints know their run.
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
        ValueError: something refers to an option that nothing has chosen.
    """
    config = config.copy()
    OmegaConf.set_struct(config, False)
    if config.quick:
        config = OmegaConf.merge(config, config.when_quick)  # type: ignore[assignment]
    config.pop("when_quick")
    config.pop("hydra", None)
    return to_plain(config)


def build(config: Mapping[str, Any], *, tokenizer: bytes | None = None) -> Experiment:
    """Builds everything that a resolved config names.

    Args:
        config: see `resolve`.
        tokenizer: `Tokenizer.data` of the one that language policies take in place of their config's, as saved with
            their parameters.

    Returns:
        The experiment.

    Raises:
        ValueError: a setting is out of range or does not fit another one.
    """
    require_positive("seeds", config["seeds"])
    require_seed("seed", config["seed"], config["seeds"])
    devices = make_section(DevicesConfig, "devices", config["devices"])
    logging = make_section(LoggingConfig, "logging", config["logging"])
    stages: list[Stage] = []
    built: dict[str, Stage] = {}
    for name, stage in stage_configs(config).items():
        same = config_hash(stage | {"from": None})  # The rounds of a stage share its compiled program.
        if same not in built:
            make_stage = build_stage if devices.mesh is None else build_sharded_stage
            built[same] = make_stage(name, stage, devices, tokenizer=tokenizer)
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


def stage_configs(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the config of every stage by its name, in order; without stages the whole config under its name.

    A stage is `{name, overrides ...}`. It starts from the end of the stage before, or of the earlier one that `from`
    names (null: from random parameters); `from` in the config returned is the name, or None. `{rounds: n, name, ...}`
    is n stages, `<name>_1` to `<name>_n`, and `{rounds: n, stages: [...]}` n times the whole block; there, `from` means
    the latest stage of this name.

    Args:
        config: see `resolve`.

    Raises:
        ValueError: two stages have the same name, one has none, or starts from one that is not earlier.
    """
    stages: dict[str, dict[str, Any]] = {}
    latest: dict[str, str] = {}  # The last stage of every name, with and without the number of its round.
    for name, suffix, override in _expand(config["stages"] or [{"name": config["name"]}], ""):
        if not name or name + suffix in stages:
            raise ValueError(f"`stages` must have different names, got {[*stages, name and name + suffix]}.")
        start = override.get("from", next(reversed(stages), None))
        if start is not None and start not in latest:
            raise ValueError(
                f"`from` of the stage {name + suffix!r} must name an earlier one, got {start!r}; try "
                f"{' or '.join(latest) or 'null'}."
            )
        stages[name + suffix] = _merge(config, override) | {"from": start and latest[start]}
        latest |= {name: name + suffix, name + suffix: name + suffix}
    return stages


def _expand(nodes: Sequence[Mapping[str, Any]], suffix: str) -> Iterator[tuple[str | None, str, Mapping[str, Any]]]:
    """Yields name, number of the round, and overrides of every stage."""
    for node in nodes:
        require_positive("stages.rounds", node.get("rounds", 1))
        for number in range(1, node.get("rounds", 1) + 1):
            numbered = f"{suffix}_{number}" if "rounds" in node else suffix
            if "stages" in node:
                yield from _expand(node["stages"], numbered)
            else:
                yield node.get("name"), numbered, {k: v for k, v in node.items() if k not in ("name", "rounds")}


def _merge(config: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Merges what a stage says over a config; a group with another `_target_` takes the place of the whole group."""
    base = dict(config)
    override = {group: node for group, node in override.items() if group != "from"}
    for group, node in override.items():
        before = base.get(group)
        is_group = isinstance(node, Mapping) and isinstance(before, Mapping) and "_target_" in node
        if is_group and node["_target_"] != before.get("_target_"):  # type: ignore[union-attr]
            base.pop(group)
    merged = OmegaConf.merge(OmegaConf.create(base), override)
    return OmegaConf.to_container(merged)  # type: ignore[return-value]


def _count_updates(training: TrainingConfig, steps_per_update: int, quick: bool) -> int:
    """Returns the whole updates that fit into a run; quick runs do two at least."""
    num_updates = training.total_steps // steps_per_update
    if num_updates < 1 and not quick:
        raise ValueError(
            f"`training.total_steps` must be at least the {steps_per_update} steps of one update, "
            f"got {training.total_steps}."
        )
    return max(num_updates, 2) if quick else num_updates


def build_stage(
    name: str, config: Mapping[str, Any], devices: DevicesConfig, *, tokenizer: bytes | None = None
) -> Stage:
    """Builds one stage.

    Args:
        name: of the stage.
        config: its own, see `stage_configs`.
        devices: where it runs.
        tokenizer: see `build`.

    Returns:
        The stage.

    Raises:
        ValueError: a setting is out of range or does not fit another one.
    """
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
    axis_name = axis_name_of(devices.mode)  # type: ignore[arg-type]
    agent = make_agent(environment, axis_name=axis_name)
    make_collector = _instantiate("collector", config)
    counts = "axis_name" in inspect.signature(make_collector).parameters
    collector = make_collector(environment, agent.policy, **({"axis_name": axis_name} if counts else {}))
    num_updates = _count_updates(training, collector.steps_per_collect, config["quick"])
    program = make_program(collector, agent.make_learner(collector, num_updates))
    if config["seeds"] > 1:
        program = over_seeds(program, config["seeds"])
    is_pretrained = isinstance(agent.policy, LanguagePolicy) and agent.policy.model.pretrained
    runner = place(
        program,
        mode=devices.mode,  # type: ignore[arg-type]
        devices=select_devices(devices.mode, devices.num_devices),  # type: ignore[arg-type]
        read_params=agent.policy.init if is_pretrained else None,
    )
    _require_counted(training, program)
    judged = environment if evaluation_environment is None else instantiate(evaluation_environment)
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


def build_sharded_stage(
    name: str, config: Mapping[str, Any], devices: DevicesConfig, *, tokenizer: bytes | None = None
) -> Stage:
    """Builds one stage whose parameters `devices.mesh` splits, see `devices.place_on_mesh`.

    Args:
        name: see `build_stage`.
        config: see `build_stage`.
        devices: with a mesh.
        tokenizer: see `build_stage`.

    Returns:
        The stage.

    Raises:
        ValueError: see `build_stage` and `place_on_mesh`.
    """
    mesh = make_mesh(devices.mesh, devices.num_devices)  # type: ignore[arg-type]
    stage = build_stage(name, config, replace(devices, mesh=None, rules={}, num_devices=1), tokenizer=tokenizer)
    environment, make_agent = _instantiate("environment", config), _instantiate("learner", config)
    if tokenizer is not None:
        policy = partial(make_agent.keywords["policy"], tokenizer=lambda words: restore(tokenizer))
        make_agent = partial(make_agent, policy=policy)
    agent = make_agent(environment, axis_name=axis_name_on(mesh))
    make_collector = _instantiate("collector", config)
    counts = "axis_name" in inspect.signature(make_collector).parameters
    options = {"axis_name": axis_name_on(mesh)} if counts else {}
    collector = make_collector(environment, agent.policy, **options)
    program = make_program(collector, agent.make_learner(collector, stage.num_updates))
    program = over_seeds(program, config["seeds"]) if config["seeds"] > 1 else program
    is_pretrained = isinstance(agent.policy, LanguagePolicy) and agent.policy.model.pretrained
    read_params = agent.policy.init if is_pretrained else None
    runner = place_on_mesh(program, mesh, rules=devices.rules, read_params=read_params)
    evaluation = stage.evaluation

    def make_evaluation(num_episodes: int) -> Callable[[Params], dict[str, Array]]:
        chosen = {"num_episodes": num_episodes, "greedy": evaluation.greedy, "level": evaluation.level}
        play = stage.evaluator(stage.environment, agent.policy, **chosen)
        play = jax.vmap(play, in_axes=(0, None)) if program.num_seeds else play
        return jax.jit(lambda params: play(params, jax.random.key(evaluation.seed)), out_shardings=runner.replicated)

    evaluate, final = make_evaluation(evaluation.num_episodes), evaluation.final_episodes
    evaluate_last = evaluate if final is None else make_evaluation(final)
    return stage._replace(runner=runner, policy=agent.policy, evaluate=evaluate, evaluate_last=evaluate_last)


def _require_counted(training: TrainingConfig, program: Program) -> None:
    """Refuses a budget in a unit that the collector does not count."""
    if not training.experience:
        return
    counted = counted_units(program)
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
    function = get_object(node["_target_"])
    require_keywords(group, function, (key for key in node if not key.startswith("_")))
    taken, unknown = dict(node), []
    while True:
        try:
            made = instantiate(OmegaConf.create(taken))
        except InstantiationException as error:
            # A function takes any `**options`, and the one that it hands them on to does not.
            refused = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            if refused is None or refused[1] not in taken:
                raise
            unknown.append(refused[1])
            del taken[refused[1]]
            continue
        refuse_keywords(group, function, unknown)
        return made
