"""Runs a composed config, up to a finished run directory."""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig

from jaxagents.environments.checks import require_shapes
from jaxagents.reporting.loggers import read_metrics, to_json
from jaxagents.reporting.reports import REPORT_FILE, write_report, write_result
from jaxagents.reporting.transcript_html import TRANSCRIPTS_FILE
from jaxagents.training.arguments import write_argument
from jaxagents.training.build import Experiment, build, resolve
from jaxagents.training.command import main_command
from jaxagents.training.composition import save_arguments
from jaxagents.training.config import DevicesConfig, changed_keys, config_hash, make_section
from jaxagents.training.fitting import require_experts
from jaxagents.training.loop import train
from jaxagents.training.memory import require_memory, require_stage_in_memory, stacked_bytes
from jaxagents.training.processes import join_processes, of_first_process, on_all_processes
from jaxagents.training.run_directory import claim, locked
from jaxagents.training.stages import stage_configs
from jaxagents.training.trust import trust_argument
from jaxagents.types import Environment, LanguagePolicy


def run(config: DictConfig, run_dir: str | Path, *, started: float | None = None) -> dict[str, Any]:
    """Trains or resumes the run of a composed config, and writes everything that the run directory holds.

    Args:
        config: config composed by Hydra.
        run_dir: directory of the run.
        started: see `train`.

    Returns:
        `{"run_dir": path, **final metrics}`.

    Raises:
        ValueError: a setting is invalid, `run_dir` belongs to another config or is in use, or the configs of processes
            differ.
    """
    buckets = [place for place in (str(run_dir), str(config.run_dir)) if "://" in place]  # A path has lost a slash.
    if buckets:
        raise ValueError(
            f"`run_dir` must be a path, got {buckets[0]}; try mounting the bucket, as with gcsfuse, and its path."
        )
    begun = started or time.monotonic()
    run_dir = Path(run_dir).resolve()
    resolved = resolve(config)
    prepare_backend(make_section(DevicesConfig, "devices", resolved["devices"]))
    run_dir, resolved = _agree(run_dir, resolved)
    with _environment_explained(resolved):
        experiment = on_all_processes(lambda: build(resolved))
        require_one_vocabulary(experiment)
        require_traceable(experiment)
        if not resolved["quick"]:
            configs = stage_configs(resolved)
            require_experts((configs[stage.name], stage.environment) for stage in experiment.stages)
    if start := resolved.get("start_from"):
        from jaxagents.training.starting import begin_from  # Other runs need not import what loads policies.

        experiment = begin_from(experiment, start)
    with ExitStack() as stack:

        def take_run_dir() -> None:
            stack.enter_context(locked(run_dir))
            claim(run_dir, resolved)
            save_arguments(run_dir)

        of_first_process(take_run_dir)
        if jax.process_index() == 0:
            print(introduction(experiment, run_dir), file=sys.stderr, flush=True)
        result = train(experiment, run_dir, started=started)
        if jax.process_index() == 0:
            write_result(run_dir, result)
            if experiment.logging.report:
                write_report(run_dir, curves=experiment.logging.curves)
            summary = farewell(
                *(run_dir, result),
                now=time.monotonic() - begun,
                given=_imitation_of(experiment, run_dir),
                trust=trust_argument(experiment.config),
            )
            print(summary, file=sys.stderr, flush=True)
    return {"run_dir": str(run_dir), **to_json(result)}


@contextmanager
def _environment_explained(resolved: Mapping[str, Any]) -> Iterator[None]:
    """Checks the environment when something else has failed on it, such as a network on arrays of another shape."""
    try:
        yield
    except Exception as error:
        mistake = None if str(error).startswith("`") else _mistake_in(resolved["environment"])
        if mistake is None:
            raise
        raise ValueError(mistake) from error


def _mistake_in(config: Mapping[str, Any]) -> str | None:
    """Returns what is wrong with the shapes of an environment; None if nothing is, or if it cannot be checked."""
    try:
        environment = instantiate(config)
        if isinstance(environment, Environment):
            require_shapes(environment)
    except Exception as error:  # A user's code can raise anything.
        return str(error) if str(error).startswith("`") else None
    return None


def require_traceable(experiment: Experiment) -> None:
    """Traces every stage as the loop will run it, so that mismatches are reported before anything is compiled.

    The loop does not trace these stages again; under `pmap` it would have to, so these stages are left out.

    Args:
        experiment: see `build`.

    Raises:
        ValueError: parts of a stage do not fit, such as minibatches that do not divide its batch.
    """
    if experiment.devices.mode == "pmap":
        return
    for stage in experiment.stages:
        require_stage_in_memory(stage)
        limits = {unit: np.zeros(stage.runner.abstract.update.shape, np.int32) for unit in stage.training.experience}
        traced = jax.make_jaxpr(partial(stage.runner.run, num_updates=1, limits=limits))(stage.runner.abstract)
        devices = list(stage.runner.replicated.device_set)
        require_memory("A batch", stacked_bytes(traced), devices, "fewer environments, steps or groups to collect")


def require_one_vocabulary(experiment: Experiment) -> None:
    """Refuses stages that start from a stage with other tokens, as a chat template adds some.

    Args:
        experiment: see `build`.

    Raises:
        ValueError: a stage has more or fewer tokens than the stage that it starts from.
    """
    policies = {stage.name: stage.policy for stage in experiment.stages}
    sizes = {name: one.tokenizer.vocab_size for name, one in policies.items() if isinstance(one, LanguagePolicy)}
    for stage in experiment.stages:
        before, after = sizes.get(stage.start or ""), sizes.get(stage.name)
        if before is not None and after is not None and before != after:
            raise ValueError(
                f"Stages must have one vocabulary, got {before} tokens in {stage.start} and {after} in {stage.name}; "
                f"try stages=[]: an instructed model needs no {stage.start}."
            )


def introduction(experiment: Experiment, run_dir: Path) -> str:
    """Describes in one line what is about to run: the world, the size of the policy, the devices and the directory."""
    stage = experiment.stages[-1]
    count = sum(leaf.size for leaf in jax.tree.leaves(stage.runner.abstract.learner.params)) // max(
        experiment.num_seeds, 1
    )
    devices = f"{len(stage.runner.replicated.device_set)} x {jax.devices()[0].device_kind}"
    seeds = f", {experiment.num_seeds} seeds" if experiment.num_seeds else ""
    return (
        f"{experiment.name}: {stage.environment.name}, {count:,} parameters{seeds}, {devices}, in {run_dir}; compiling."
    )


class Imitation(NamedTuple):
    """Facts about a language agent whose last stage learned from given episodes.

    Attributes:
        loss: final loss.
        world: world in which it is evaluated.
        from_files: whether the episodes came from files, in which case they may belong to no world.
    """

    loss: float
    world: str
    from_files: bool


def farewell(
    run_dir: Path,
    result: Mapping[str, Any],
    *,
    now: float | None = None,
    given: Imitation | None = None,
    trust: str = "",
) -> str:
    """Describes the result of a run, and where to look next.

    Args:
        run_dir: directory of the run.
        result: result of `train`.
        now: seconds of this session, as earlier sessions may have begun the run.
        given: facts about a last stage that imitates, or learns from files.
        trust: see `trust_argument`.
    """
    in_all = f" in all, {_minutes(now)} of them now" if now is not None and now < result["seconds"] - 1 else ""
    lines = [f"Done in {_minutes(result['seconds'])} minutes{in_all}, {result['steps']:,} steps."]
    lines += [f"Last loss: {given.loss:.4g}."] if given else []
    where = f" in the world {given.world}" if given and given.from_files else ""
    for name in ("episode_return", "success"):
        values = np.ravel(result["evaluation"].get(name, ()))
        if values.size:
            lines.append(f"Last evaluation{where}: {name} {np.nanmean(values):.4g}.")
    pages = [run_dir / name for name in (REPORT_FILE, TRANSCRIPTS_FILE) if (run_dir / name).exists()]
    lines += [f"Look at {page}" for page in pages]
    if given and given.from_files:
        load = "from jaxagents.training.load import load_policy"
        lines.append(f"Next, in Python: {load}; print(load_policy({str(run_dir)!r}).speak('Hello!'))")
    path = write_argument("path", run_dir)
    lines += [f"Next: {main_command(name)} {path}{trust}" for name in ("evaluate", "play")]
    return "\n".join(lines)


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def _imitation_of(experiment: Experiment, run_dir: Path) -> Imitation | None:
    """Returns the facts for `farewell` about a last stage that imitates or learns from files; None for other stages."""
    stage = experiment.stages[-1]
    own = stage_configs(experiment.config)[stage.name]
    learner = own["learner"]
    while "inner" in learner:
        learner = learner["inner"]
    from_files = str(own["collector"].get("_target_")).startswith("jaxagents.data.")
    imitates = str(learner.get("_target_")).startswith("jaxagents.learners.supervised.")
    losses = [row["train/loss"] for row in read_metrics(run_dir) if "train/loss" in row]
    if not isinstance(stage.policy, LanguagePolicy) or not losses or not (from_files or imitates):
        return None
    return Imitation(loss=float(np.nanmean(losses[-1])), world=stage.environment.name, from_files=from_files)


def prepare_backend(devices: DevicesConfig) -> None:
    """Enables the compilation cache and joins other processes, before the backend starts.

    Args:
        devices: `devices` section of the config.
    """
    # Collectives of virtual CPU devices block each other unless each has a thread.
    threads = devices.cpu_threads or (32 if devices.mode != "jit" else None)
    if threads:
        os.environ.setdefault("PJRT_NPROC", str(threads))
    if devices.compilation_cache:
        jax.config.update("jax_compilation_cache_dir", str(Path(devices.compilation_cache).expanduser()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    if devices.distributed:
        join_processes(
            devices.coordinator_address,
            devices.num_processes,
            devices.process_id,
            timeout_seconds=devices.timeout_seconds,
        )


def _agree(run_dir: Path, resolved: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Returns the directory chosen by process 0, as its name holds the start time, and the config shared by all."""
    first = of_first_process(lambda: {"run_dir": str(run_dir), "config": resolved})

    def require_same() -> None:
        if config_hash(first["config"]) != config_hash(resolved):
            raise ValueError(
                "All processes must be started with the same config, got another one than that of process 0 in "
                f"{', '.join(changed_keys(first['config'], resolved))}; set these alike."
            )

    on_all_processes(require_same)
    return Path(first["run_dir"]), resolved | {"run_dir": first["config"]["run_dir"]}
