"""The measurements of each suite of the benchmark."""

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import hydra
import jax
import numpy as np
from omegaconf import DictConfig, OmegaConf

from jaxagents.benchmarks.agents import agent_shares, agent_subjects
from jaxagents.benchmarks.algorithm_page import FULL, write_page
from jaxagents.benchmarks.algorithms import rows_of, run_rows
from jaxagents.benchmarks.compiled_loop import make_compiled_loop, make_lakes, sample_tasks
from jaxagents.benchmarks.environments import environment_subject
from jaxagents.benchmarks.games import METHODS, cfr_subject, exploitability_of
from jaxagents.benchmarks.kernels import count_kernels, kernels_per_token
from jaxagents.benchmarks.language import generation_subject, make_model, supervised_subject, training_flops
from jaxagents.benchmarks.large_language import measure_large
from jaxagents.benchmarks.peers.host_loop import Game, Loop, make_host_loop
from jaxagents.benchmarks.peers.openspiel import exploitability_of_openspiel, openspiel_subject
from jaxagents.benchmarks.peers.ppo import jaxmarl_subject, purejaxrl_subject
from jaxagents.benchmarks.peers.stoix import stoix_subject
from jaxagents.benchmarks.peers.value_based import purejaxql_subject, purejaxrl_dqn_subject
from jaxagents.benchmarks.scale import Contest, context_memory, loss_memory, scale_values, train_in_turns
from jaxagents.benchmarks.teams import compare_returns
from jaxagents.benchmarks.timing import Subject, cpu_ticks, describe_machine, matmul_subject, measure
from jaxagents.benchmarks.training import startup_seconds, train_and_evaluate, training_subject
from jaxagents.games.extensive_form import compile_game
from jaxagents.games.openspiel import from_openspiel
from jaxagents.language.tokenizers import word_level
from jaxagents.networks.decoder import Decoder
from jaxagents.policies.language_model import make_language_model
from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose
from jaxagents.training.config import DevicesConfig
from jaxagents.training.launch import prepare_backend

Rows = dict[str, dict[str, float]]


def run_suite(config: Any, config_folder: Path) -> tuple[Rows, dict[str, float]]:
    """Runs one suite.

    Args:
        config: `configs/benchmark.yaml`; with `quick=true`, its `when_quick` is merged over it.
        config_folder: folder of the experiments' configs.

    Returns:
        `(rows of the table, flat values)`, including the other load on the machine.

    Raises:
        ValueError: the suite is unknown.
    """
    suites: dict[str, Callable[..., tuple[Rows, dict[str, float]]]] = {
        "rl": _rl,
        "algorithms": _algorithms,
        "marl": _marl,
        "games": _games,
        "lm": _lm,
        "lm_vs_host": _lm_vs_host,
        "large_lm": _large_lm,
        "worlds": _worlds,
        "scale": _scale,
        "kernels": _kernels,
    }
    if config.suite not in suites:
        raise ValueError(f"`suite` must be one of {', '.join(suites)}, got {config.suite!r}.")
    if config.quick:
        config = OmegaConf.merge(config, config.when_quick)
    before = cpu_ticks()
    rows, values = suites[config.suite](config, config_folder)
    return rows, values | describe_machine(before)


def _rl(config: DictConfig, config_folder: Path) -> tuple[Rows, dict[str, float]]:
    quick = [f"quick={str(config.quick).lower()}"]
    prepare_backend(DevicesConfig(cpu_threads=config.cpu_threads))
    rows: Rows = {}
    values: dict[str, Any] = {}
    for num_envs in config.ppo_environments:
        more_rows, more_values = _ppo(config, config_folder, num_envs)
        rows, values = rows | more_rows, values | more_values
    if config.reference is not None:
        more_rows, more_values = _value_based(config, config_folder)
        rows, values = rows | more_rows, values | more_values
    if config.reference_stoix is not None:
        more_rows, more_values = _beside_stoix(config, config_folder)
        rows, values = rows | more_rows, values | more_values
    for experiment in config.experiments:
        total_override = "training.total_steps=100000"
        subject = training_subject(
            compose(config_folder, f"experiment={experiment}", *quick, total_override), experiment
        )
        rows |= measure([subject], config.repeats)
        values[f"{experiment}/steps_per_second"] = rows[experiment]["per_second"]
    for name in config.environments:
        composed = compose(config_folder, "experiment=ppo_cartpole", f"environment={name}")
        environment = hydra.utils.instantiate(composed.environment)
        subject = environment_subject(environment, num_steps=10 if config.quick else 1000)
        rows |= measure([subject], config.repeats)
        values[f"{subject.name}/steps_per_second"] = rows[subject.name]["per_second"]
    values["matmul_peak_gflops"] = measure([matmul_subject()], config.repeats)["matmul_gflops"]["per_second"]
    if config.startup:
        for kind, seconds in startup_seconds(["experiment=ppo_cartpole"]).items():
            values[f"seconds_to_first_update/{kind}"] = seconds
    return rows, values


def _ppo(config: DictConfig, config_folder: Path, num_envs: int) -> tuple[Rows, dict[str, float]]:
    """Times PPO on CartPole, in turns with PureJaxRL's PPO if it is available."""
    size = [f"quick={str(config.quick).lower()}", f"collector.num_envs={num_envs}"]
    cartpole = compose(config_folder, "experiment=ppo_cartpole", *size)
    name = "ppo_cartpole" if num_envs == config.ppo_environments[0] else f"ppo_cartpole_{num_envs}"
    steps = num_envs * cartpole.collector.num_steps
    total = 4 * steps if config.quick else max(config.contest_steps, 16 * steps)
    cartpole.training.total_steps = total
    subjects = [training_subject(cartpole, name)]
    if config.reference is not None:
        rival = name.replace("ppo", "purejaxrl")
        subjects.append(purejaxrl_subject(config.reference, total, name=rival, num_envs=num_envs))
    rows = measure(subjects, config.repeats)
    return rows, _flat(rows, "steps_per_second") if len(rows) == 1 else _ratio(rows)


def _value_based(config: DictConfig, config_folder: Path) -> tuple[Rows, dict[str, float]]:
    """Times DQN and PQN in turns with PureJaxRL's and PureJaxQL's."""
    rivals = {"dqn": partial(purejaxrl_dqn_subject, config.reference)}
    if config.reference_pqn is not None:
        rivals["pqn"] = partial(purejaxql_subject, config.reference, config.reference_pqn)
    rows: Rows = {}
    values: dict[str, float] = {}
    for name, make_rival in rivals.items():
        total = 4096 if config.quick else config.contest_steps
        ours = compose(config_folder, *config.contests[name].split(), f"training.total_steps={total}")
        both = measure([training_subject(ours, name), make_rival(ours.training.total_steps)], config.repeats)
        rows |= both
        values |= _ratio(both)
    return rows, values


def _beside_stoix(config: DictConfig, config_folder: Path) -> tuple[Rows, dict[str, float]]:
    """Times algorithms in turns with those of Stoix."""
    rows: Rows = {}
    values: dict[str, float] = {}
    for name, contest in config.contests_stoix.items():
        ours = compose(config_folder, *contest.ours.split())
        theirs = stoix_subject(config.reference_stoix, f"stoix_{name}", contest.system, contest.theirs.split())
        both = measure([training_subject(ours, f"{name}_as_stoix"), theirs], config.repeats)
        rows |= both
        values |= _ratio(both)
    return rows, values


def _ratio(both: Rows) -> dict[str, float]:
    """Names the speeds of two subjects, and the ratio of the first to the second."""
    (mine, first), (other, second) = both.items()
    ratio = first["per_second"] / second["per_second"]
    return _flat(both, "steps_per_second") | {f"{mine}/ratio_to_{other}": ratio}


def _algorithms(config: DictConfig, config_folder: Path) -> tuple[Rows, dict[str, float]]:
    settings: Any = OmegaConf.to_container(config.algorithms)
    prepare_backend(DevicesConfig(cpu_threads=settings.pop("cpu_threads")))
    names, folder = rows_of(settings["tasks"], settings["names"], full=settings["full"]), settings["folder"]
    settings["folder"] = str(Path(folder) / FULL) if settings["full"] else folder
    results = run_rows(names, config_folder, settings, arguments=sys.argv[1:])
    write_page(folder, settings["tasks"])
    rows = {
        row.name: {"per_second": row.per_second, "spread": 0.0, "compile_seconds": row.compile_seconds}
        for row in results
    }
    return rows, _flat(rows, "steps_per_second") | {
        f"{row.name}/return": float(np.mean(row.returns)) for row in results
    }


def _marl(config: DictConfig, config_folder: Path) -> tuple[Rows, dict[str, float]]:
    settings, quick = config.marl, f"quick={str(config.quick).lower()}"
    prepare_backend(DevicesConfig(cpu_threads=settings.cpu_threads))
    spread = compose(config_folder, "experiment=ippo_spread", f"training.total_steps={settings.contest_steps}")
    final = {"num_final_updates": settings.num_final_updates}
    contest = [training_subject(spread, "ippo_spread", **final)]
    if config.reference is not None:
        contest.append(jaxmarl_subject(config.reference, spread, **final))
    rows = measure(contest, config.repeats)
    returns = [[facts["final_return"] for facts in subject.facts] for subject in contest]
    values: dict[str, Any] = {"ippo_spread/final_return": float(np.mean(returns[0]))}
    if config.reference is not None:
        ours, theirs = (rows[subject.name]["per_second"] for subject in contest)
        values["ippo_spread/ratio_to_jaxmarl"] = ours / theirs
        compared = compare_returns(*returns)
        values |= {f"ippo_spread/{name}": value for name, value in compared.items()}
    for choices in settings.compositions:
        composed = compose(config_folder, *choices.split(), quick)
        facts = train_and_evaluate(composed)
        rows[composed.name] = {name: facts[name] for name in ("per_second", "spread", "compile_seconds")}
        values |= {f"{composed.name}/{name}": value for name, value in facts.items() if name not in rows[composed.name]}
    return rows, _flat(rows, "steps_per_second") | values


def _lm(config: DictConfig, config_folder: Path) -> tuple[Rows, dict[str, float]]:
    settings = config.lm
    prepare_backend(DevicesConfig(cpu_threads=settings.cpu_threads))
    rows: Rows = {}
    values: dict[str, float] = {}
    for size in settings.models:
        more_rows, more_values = _tokens(size, settings, config.repeats)
        rows, values = rows | more_rows, values | more_values
    for world in settings.worlds:
        composed = compose(config_folder, f"world={world}", "algorithm=grpo")
        environment = hydra.utils.instantiate(composed.environment)
        subject = environment_subject(environment, level=composed.collector.level, **settings.rollout)
        rows |= measure([subject], config.repeats)
    quick = [f"quick={str(config.quick).lower()}"]
    for experiment in settings.experiments:
        composed = compose(config_folder, f"experiment={experiment}", *quick)
        rows |= measure(agent_subjects(composed, num_updates=settings.num_updates), config.repeats)
        values |= agent_shares(experiment, rows)
    return rows, _flat(rows, "per_second") | values


def _worlds(config: DictConfig, config_folder: Path) -> tuple[Rows, dict[str, float]]:
    settings, rows = config.worlds, {}
    prepare_backend(DevicesConfig(cpu_threads=settings.cpu_threads))
    for name in settings.names or text_worlds(config_folder):
        environment = hydra.utils.instantiate(OmegaConf.load(config_folder / "environment" / f"{name}.yaml"))
        subject = environment_subject(environment, **settings.rollout)
        rows[name] = measure([subject], config.repeats)[subject.name]
    return rows, _flat(rows, "per_second")


def _scale(config: DictConfig, config_folder: Path) -> tuple[Rows, dict[str, float]]:
    del config_folder
    settings = config.scale
    prepare_backend(DevicesConfig())
    contests = {}
    for kind in ("strong", "weak"):
        for n in settings.devices:
            times = max(settings.devices) if kind == "strong" else n
            size = f"{settings.rows.name}={times * settings.rows.of_a_device}"
            overrides = (*settings.composition.split(), size, "devices=fsdp")
            contests[f"{kind}/{n}"] = Contest(n, overrides, settings.num_updates)
    rows = train_in_turns(contests, config.repeats)
    values = scale_values(rows, settings.devices)
    values |= {f"loss/{name}": value for name, value in loss_memory(**settings.loss).items()}
    for block in (None, settings.attention_block):
        name = "at_once" if block is None else "in_blocks"
        for tokens in settings.context_tokens:
            mib = context_memory(tokens=tokens, attention_block=block, **settings.context)
            values[f"context/{tokens}/{name}_mib"] = mib
    return rows, values


def text_worlds(config_folder: Path) -> list[str]:
    """Returns the names of the option files that make a text world for one language model or for several seats."""
    targets = {
        path.stem: OmegaConf.select(OmegaConf.load(path), "_target_") or ""
        for path in config_folder.glob("environment/*.yaml")
    }
    spoken = "jaxagents.environments.text."
    return sorted(name for name, to in targets.items() if to.startswith(spoken) and ".symbolic." not in to)


def _tokens(size: Any, settings: DictConfig, repeats: int) -> tuple[Rows, dict[str, float]]:
    """Measures generated and trained tokens for one size of model, and the share of the matmul peak in training."""
    model, name = make_model(settings.vocab_size, **size), f"d{size.features}_layers{size.num_layers}"
    subjects = [
        generation_subject(
            f"generate/{name}", model, batch_size=settings.batch_size, num_tokens=settings.generated_tokens
        )
    ]
    flops = {}
    params = jax.eval_shape(model.init, jax.random.key(0))
    for length in settings.sequence_tokens:
        label = f"train/{name}_tokens{length}"
        counts = {"batch_size": settings.batch_size, "sequence_tokens": length, "num_updates": settings.num_updates}
        subjects.append(supervised_subject(label, model, **counts))
        flops[label] = training_flops(
            params, num_layers=size.num_layers, features=size.features, sequence_tokens=length
        )
    rows = measure([matmul_subject(), *subjects], repeats)
    peak = rows.pop("matmul_gflops")["per_second"]
    values = {
        f"{label}/share_of_matmul_peak": rows[label]["per_second"] * per_token / 1e9 / peak
        for label, per_token in flops.items()
    }
    return rows, values | {f"{name}/matmul_gflops": peak}


def _large_lm(config: DictConfig, config_folder: Path) -> tuple[Rows, dict[str, float]]:
    del config_folder
    settings: Any = OmegaConf.to_container(config.large_lm)
    # PyTorch uses memory of the same device.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    peer_device = _torch_device() if settings["peer"] else None
    return measure_large(settings, repeats=config.repeats, peer_device=peer_device)


def _lm_vs_host(config: DictConfig, config_folder: Path) -> tuple[Rows, dict[str, float]]:
    del config_folder
    settings = config.lm_vs_host
    threads = settings.cpu_threads or len(os.sched_getaffinity(0))
    prepare_backend(DevicesConfig(cpu_threads=threads))
    of_host = {"num_threads": threads, "device": _torch_device(), **settings.host}
    instruction = tuple(settings.instruction.split())
    rows: Rows = {}
    values: dict[str, float] = {"cpu_threads": threads}
    for end_probability in settings.end_probabilities:
        game = Game(**settings.game, instruction=instruction, end_probability=end_probability)
        environment = make_lakes(game)
        words, tasks = environment.text.words, sample_tasks(environment, 16 * game.num_groups)
        marks = word_level(words).marks
        for size in settings.models:
            loops = {
                "host": make_host_loop(game, words=words, marks=marks, tasks=tasks, **of_host, **size),
                "compiled": make_compiled_loop(game, environment, **size, **settings.compiled),
            }
            name = f"end_probability{end_probability}/d{size.features}_layers{size.num_layers}"
            more_rows, more_values = _contest(name, loops, game.num_groups * game.group_size, config.repeats)
            rows, values = rows | more_rows, values | more_values
    return rows, _flat(rows, "episodes_per_second") | values


def _kernels(config: DictConfig, config_folder: Path) -> tuple[Rows, dict[str, float]]:
    """Compiles programs for this device and counts the kernels they launch; nothing runs."""
    settings, large = config.kernels, config.large_lm
    choices = {name: f"experiment={name}" for name in settings.experiments}
    choices |= {name: config.contests[name] for name in settings.contests}
    values: dict[str, float] = {}
    for name, of_one in choices.items():
        composed = compose(config_folder, *of_one.split(), f"quick={str(config.quick).lower()}")
        stage = build(resolve(composed)).stages[-1]
        if (lower := stage.runner.lower) is None:
            raise ValueError(f"`kernels` must name experiments of one program, got {name!r}; try devices=jit.")
        values[f"{name}/kernels_per_update"] = count_kernels(lower({}).compile().as_text() or "").total
    model = make_language_model(large.vocab_size, network=partial(Decoder, **large.network, **large.settings))
    values["large_lm/kernels_per_token"] = kernels_per_token(model, **large.generate)
    return {}, values


def _torch_device() -> str:
    """Returns PyTorch's name of the kind of device that jax uses."""
    return "cpu" if jax.default_backend() == "cpu" else "cuda"


def _contest(name: str, loops: Mapping[str, Loop], num_episodes: int, repeats: int) -> tuple[Rows, dict[str, float]]:
    """Measures loops in turns, and the episodes they played."""
    subjects = {side: _loop_subject(f"{name}/{side}", loop, num_episodes) for side, loop in loops.items()}
    rows = measure([*subjects.values()], repeats)
    host, compiled = (rows[f"{name}/{side}"]["per_second"] for side in ("host", "compiled"))
    values = {f"{name}/ratio": compiled / host}
    for side, subject in subjects.items():
        values[f"{name}/{side}/num_params"] = loops[side].num_params
        for fact in subject.facts[0]:
            values[f"{name}/{side}/{fact}"] = float(np.mean([facts[fact] for facts in subject.facts]))
    return rows, values


def _loop_subject(name: str, loop: Loop, num_episodes: int) -> Subject:
    """Times updates of a loop; unit: episodes."""
    facts: list[Mapping[str, float]] = []
    loop.update()  # The first update is slower, on the host, too.

    def run() -> float:
        facts.append(loop.update())
        return num_episodes

    return Subject(name=name, run=run, compile_seconds=loop.compile_seconds, facts=facts)


def _games(config: DictConfig, config_folder: Path) -> tuple[Rows, dict[str, float]]:
    del config_folder
    settings = config.games
    prepare_backend(DevicesConfig(cpu_threads=settings.cpu_threads))
    rows: Rows = {}
    values: dict[str, float] = {}
    few, many = {"num_iterations": settings.rival_iterations}, {"num_iterations": settings.iterations}
    for name in settings.names:
        game, first = compile_game(from_openspiel(name)), next(iter(METHODS))
        subjects = [cfr_subject(f"{name}/{first}", game, METHODS[first](), **many)]
        more = measure([*subjects, openspiel_subject(f"{name}/openspiel_{first}", name, **few)], config.repeats)
        mine, theirs = (row["per_second"] for row in more.values())
        gap = exploitability_of(game, METHODS[first](), **few) - exploitability_of_openspiel(name, **few)
        values |= {f"{name}/{first}/ratio_to_openspiel": mine / theirs, f"{name}/{first}/gap_to_openspiel": gap}
        for label, make in [*METHODS.items()][1:]:
            more |= measure([cfr_subject(f"{name}/{label}", game, make(), **many)], config.repeats)
        values |= {f"{name}/{m}/exploitability": exploitability_of(game, make(), **many) for m, make in METHODS.items()}
        rows |= more
    return rows, _flat(rows, "iterations_per_second") | values


def _flat(rows: Rows, unit: str) -> dict[str, float]:
    """Returns speeds and compile times as flat values."""
    speeds = {f"{name}/{unit}": row["per_second"] for name, row in rows.items()}
    return speeds | {f"{name}/compile_seconds": row["compile_seconds"] for name, row in rows.items()}
