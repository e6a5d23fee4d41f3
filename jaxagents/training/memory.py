"""Checks whether a run fits into memory: a lower bound from its shapes, compared with the available memory."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxagents.training.build import Stage
from jaxagents.types import Environment, PyTree

_CONTAINER = Path("/sys/fs/cgroup/memory.max")


def memory_of(devices: Sequence[jax.Device]) -> int:
    """Returns the total bytes of memory of devices; virtual devices of a CPU share the machine's memory.

    Devices of other processes cannot be queried: they count as much as those of this process.
    """
    local = [device for device in devices if device.process_index == jax.process_index()]
    limits = [int((device.memory_stats() or {}).get("bytes_limit", 0)) for device in local]
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    text = _CONTAINER.read_text().strip() if _CONTAINER.is_file() else ""
    machine = min(whole, int(text)) if text.isdigit() else whole
    there = sum(limits) if limits and all(limits) else machine
    return there * len(devices) // max(len(local), 1)


def require_memory(what: str, needed: int, devices: Sequence[jax.Device], hint: str) -> None:
    """Refuses a computation that needs more memory than there is, before it starts.

    Args:
        what: name of the computation.
        needed: bytes, a lower bound.
        devices: devices that share them.
        hint: settings that reduce them.

    Raises:
        ValueError: the memory is too small; gives both numbers.
    """
    there = memory_of(devices)
    if needed > there:
        raise ValueError(
            f"{what} must fit into memory, got at least {size(needed)} for the {size(there)} there are; try {hint}."
        )


def require_episodes_in_memory(stage: Stage, num_episodes: int) -> None:
    """Refuses parallel episodes whose observations alone do not fit, see `require_memory`."""
    seen = observation_bytes(stage.environment) if stage.environment.text is None else 4
    hint = "a smaller num_episodes"
    require_memory("An evaluation", seen * num_episodes, list(stage.runner.replicated.device_set), hint)


def require_stage_in_memory(stage: Stage) -> None:
    """Refuses a stage whose state, steps or evaluation need more memory than there is; nothing is traced.

    Args:
        stage: stage of an experiment.

    Raises:
        ValueError: see `require_memory`.
    """
    devices, state = list(stage.runner.replicated.device_set), stage.runner.abstract
    seen = observation_bytes(stage.environment) if stage.environment.text is None else 4
    for what, needed, hint in (
        ("The learner", bytes_of(state.learner), "a smaller network, or a smaller buffer"),
        ("The collector", bytes_of(state.collector), "a smaller collector.num_envs, or fewer groups"),
        ("A batch", seen * stage.steps_per_update, "smaller collector.num_envs and collector.num_steps"),
    ):
        require_memory(what, needed, devices, hint)
    require_episodes_in_memory(stage, max(stage.evaluation.num_episodes, stage.evaluation.final_episodes or 0))


def size(count: int) -> str:
    """Formats a number of bytes with a unit: "23.4 GiB"."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if count < 1024 or unit == "PiB":
            break
        count /= 1024  # type: ignore[assignment]
    return f"{count:,.1f} {unit}" if unit != "bytes" else f"{count} bytes"


def bytes_of(tree: PyTree) -> int:
    """Returns the bytes of the leaves of a tree of arrays or shapes; random keys count 8 bytes each."""
    leaves = jax.tree.leaves(tree)
    return sum(int(np.prod(leaf.shape, dtype=object)) * getattr(leaf.dtype, "itemsize", 8) for leaf in leaves)


def observation_bytes(environment: Environment) -> int:
    """Returns the bytes of the observation of one instance."""
    spaces = jax.tree.leaves(environment.observation_space, is_leaf=lambda one: hasattr(one, "dtype"))
    sizes = [int(np.prod(space.shape, dtype=object)) * np.dtype(space.dtype).itemsize for space in spaces]
    return max(environment.num_agents, 1) * sum(sizes)


def stacked_bytes(traced: Any) -> int:
    """Returns the bytes of the results of the largest loop of a traced program: a rollout, a batch of minibatches."""
    loops = [equation for equation in _equations(traced) if equation.primitive.name in ("scan", "while")]
    return max((bytes_of([variable.aval for variable in loop.outvars]) for loop in loops), default=0)


def _equations(traced: Any) -> Iterator[Any]:
    for equation in getattr(traced, "jaxpr", traced).eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    yield from _equations(inner)
