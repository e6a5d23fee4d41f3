"""What each suite of the benchmark measures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

from jaxagents.training.benchmarks import (
    environment_subject,
    matmul_peak,
    measure,
    purejaxrl_subject,
    startup_seconds,
    training_subject,
)
from jaxagents.training.config import DevicesConfig
from jaxagents.training.launch import prepare_backend

Rows = dict[str, dict[str, float]]


def run_suite(config: DictConfig, config_folder: Path) -> tuple[Rows, dict[str, float]]:
    """Runs one suite.

    Args:
        config: `suite`, `repeats`, `reference`, `quick`.
        config_folder: of the experiments.

    Returns:
        `(rows of the table, flat values)`.

    Raises:
        ValueError: unknown suite.
    """
    suites: dict[str, Callable[..., tuple[Rows, dict[str, float]]]] = {"rl": _rl}
    if config.suite not in suites:
        raise ValueError(f"`suite` must be one of {', '.join(suites)}, got {config.suite!r}.")
    return suites[config.suite](config, config_folder)


def compose(config_folder: Path, *overrides: str) -> DictConfig:
    """Composes an experiment outside of its script."""
    hydra.core.global_hydra.GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(config_folder.resolve()), version_base="1.3"):
        return hydra.compose("train", list(overrides))


def _rl(config: DictConfig, config_folder: Path) -> tuple[Rows, dict[str, float]]:
    quick = [f"quick={str(config.quick).lower()}"]
    cartpole = compose(config_folder, "experiment=ppo_cartpole", *quick)
    prepare_backend(DevicesConfig(cpu_threads=config.cpu_threads))
    total = 2048 if config.quick else cartpole.training.total_env_steps
    subjects = [training_subject(cartpole, "ppo_cartpole")]
    if config.reference is not None:
        subjects.append(purejaxrl_subject(config.reference, total))
    rows = measure(subjects, config.repeats)
    values: dict[str, Any] = {f"{name}/env_steps_per_second": row["per_second"] for name, row in rows.items()}
    values |= {f"{name}/compile_seconds": row["compile_seconds"] for name, row in rows.items()}
    if config.reference is not None:
        ratio = rows["ppo_cartpole"]["per_second"] / rows["purejaxrl_cartpole"]["per_second"]
        values["ppo_cartpole/ratio_to_purejaxrl"] = ratio
    for experiment in config.experiments:
        total_override = "training.total_env_steps=100000"
        subject = training_subject(
            compose(config_folder, f"experiment={experiment}", *quick, total_override), experiment
        )
        rows |= measure([subject], config.repeats)
        values[f"{experiment}/env_steps_per_second"] = rows[experiment]["per_second"]
    for name in config.environments:
        environment = hydra.utils.instantiate(compose(config_folder, f"environment={name}").environment)
        subject = environment_subject(environment, num_steps=10 if config.quick else 1000)
        rows |= measure([subject], config.repeats)
        values[f"{subject.name}/env_steps_per_second"] = rows[subject.name]["per_second"]
    values["matmul_peak_gflops"] = matmul_peak()
    if config.startup:
        for kind, seconds in startup_seconds(["experiment=ppo_cartpole"]).items():
            values[f"seconds_to_first_update/{kind}"] = seconds
    return rows, values
