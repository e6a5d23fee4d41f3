"""From a composed config to a finished run directory."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from omegaconf import DictConfig

from jaxagents.reporting.loggers import to_json
from jaxagents.reporting.reports import write_report, write_result
from jaxagents.training.build import build, load_config, resolve, save_config
from jaxagents.training.config import DevicesConfig, changed_keys, config_hash, make_section
from jaxagents.training.devices import initialize_distributed
from jaxagents.training.loop import train

CONFIG_FILE = "config.yaml"
_MOST_KEYS = 5  # Named by an error.


def run(config: DictConfig, run_dir: str | Path, *, started: float | None = None) -> dict[str, Any]:
    """Trains, or goes on with, the run of a composed config and writes everything that the run directory keeps.

    Args:
        config: composed by Hydra.
        run_dir: of the run.
        started: see `train`.

    Returns:
        `{"run_dir": path, **final metrics}`.

    Raises:
        ValueError: a setting does not hold, or `run_dir` belongs to another config.
    """
    run_dir = Path(run_dir).resolve()
    resolved = resolve(config)
    prepare_backend(make_section(DevicesConfig, "devices", resolved["devices"]))
    if jax.process_index() == 0:
        _claim(run_dir, resolved)
    experiment = build(resolved)
    result = train(experiment, run_dir, started=started)
    if jax.process_index() == 0:
        write_result(run_dir, result)
        if experiment.logging.report:
            write_report(run_dir)
    return {"run_dir": str(run_dir), **to_json(result)}


def prepare_backend(devices: DevicesConfig) -> None:
    """Switches on the compilation cache and joins other processes, before the backend starts."""
    # Collectives of virtual CPU devices wait for each other unless there is a thread for each of them.
    threads = devices.cpu_threads or (32 if devices.mode != "jit" else None)
    if threads:
        os.environ.setdefault("PJRT_NPROC", str(threads))
    if devices.compilation_cache:
        jax.config.update("jax_compilation_cache_dir", str(Path(devices.compilation_cache).expanduser()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    if devices.distributed:
        initialize_distributed(devices.coordinator_address, devices.num_processes, devices.process_id)


def _claim(run_dir: Path, resolved: Mapping[str, Any]) -> None:
    """Writes the resolved config, and refuses a directory of another one."""
    path = run_dir / CONFIG_FILE
    if path.exists():
        before = load_config(path)
        if config_hash(before) != config_hash(resolved):
            changed = changed_keys(before, resolved)
            more = f" and {len(changed) - _MOST_KEYS} more" if len(changed) > _MOST_KEYS else ""
            raise ValueError(
                f"`run_dir` must be new or of the same config, got {run_dir}, which differs in "
                f"{', '.join(changed[:_MOST_KEYS])}{more}; try another `run_dir`, or set these back."
            )
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    save_config(path, resolved)
