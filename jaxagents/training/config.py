"""The sections of a config as frozen dataclasses, validated once."""

import dataclasses
import difflib
import hashlib
import json
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from jaxagents.ops.checks import require_between, require_positive, require_seed
from jaxagents.training.setting_types import convert
from jaxagents.types import COUNTERS

_Section = TypeVar("_Section")
_NOT_HASHED = ("run_dir", "devices", "logging", "hydra")
_LENGTHS = {  # What may change when a run is resumed, by section.
    "training": (
        *("total_steps", "total_episodes", "total_turns", "total_tokens", "total_env_steps"),
        *("log_every_steps", "checkpoint_every_steps", "keep_checkpoints", "target_return"),
    ),
    "evaluation": ("every_steps",),
}


@dataclass(frozen=True)
class RunConfig:
    """Settings at the top of a config, outside its sections."""

    name: str
    seed: int
    seeds: int
    run_dir: str
    quick: bool
    stages: Sequence[Mapping[str, Any]]
    start_from: str | None = None

    def __post_init__(self) -> None:
        require_positive("seeds", self.seeds)
        require_seed("seed", self.seed, self.seeds)
        if not self.run_dir:
            raise ValueError("`run_dir` must be a path, got nothing; try run_dir=runs/mine, or leave it out.")


@dataclass(frozen=True)
class TrainingConfig:
    """Length of a run, and when it logs and saves; `steps` are counted by the collector, per seed."""

    total_steps: int
    log_every_steps: int
    checkpoint_every_steps: int
    keep_checkpoints: int = 3
    target_return: float | None = None
    total_episodes: int | None = None
    total_turns: int | None = None
    total_tokens: int | None = None
    total_env_steps: int | None = None

    def __post_init__(self) -> None:
        for name in ("total_steps", "log_every_steps", "checkpoint_every_steps", "keep_checkpoints"):
            require_positive(f"training.{name}", getattr(self, name))
        for unit, total in self.experience.items():
            require_positive(f"training.total_{unit}", total)

    @property
    def experience(self) -> dict[str, int]:
        """Returns the budgets of experience that are set, by unit."""
        totals = {unit: getattr(self, f"total_{unit}") for unit in COUNTERS}
        return {unit: total for unit, total in totals.items() if total is not None}


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation episodes on fixed tasks."""

    every_steps: int
    num_episodes: int
    seed: int = 1_000_003
    greedy: bool = True
    level: int | None = None
    final_episodes: int | None = None

    def __post_init__(self) -> None:
        optional = () if self.final_episodes is None else ("final_episodes",)
        for name in ("every_steps", "num_episodes", *optional):
            require_positive(f"evaluation.{name}", getattr(self, name))
        require_seed("evaluation.seed", self.seed)


@dataclass(frozen=True)
class DevicesConfig:
    """Where the program runs."""

    mode: str = "jit"
    num_devices: int | None = None
    distributed: bool = False
    coordinator_address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    timeout_seconds: int = 300
    cpu_threads: int | None = None
    compilation_cache: str | None = None
    mesh: Mapping[str, int | None] | None = None
    rules: Mapping[str, Any] | None = None
    actors: int | None = None
    lag: int = 1

    def __post_init__(self) -> None:
        require_positive("devices.timeout_seconds", self.timeout_seconds)
        require_between("devices.lag", self.lag, 0)
        if self.actors is not None:
            require_positive("devices.actors", self.actors)
            if self.mode != "sharded" or self.mesh is not None:
                raise ValueError(
                    f"`devices.mode` must be sharded, and `devices.mesh` null, for `devices.actors`, got {self.mode} "
                    f"and {self.mesh}; try devices=asynchronous."
                )
        if self.mesh is not None and self.mode != "sharded":
            raise ValueError(
                f"`devices.mode` must be sharded for `devices.mesh`, got {self.mode}; try devices=sharded."
            )
        if self.rules and self.mesh is None:
            raise ValueError("`devices.mesh` must be given with `devices.rules`, got null; try {fsdp: 2}.")


@dataclass(frozen=True)
class LoggingConfig:
    """What a run shows and stores."""

    progress: bool = True
    tensorboard: bool = True
    wandb: bool = False
    curves: bool = True
    transcripts: bool = True
    report: bool = True


def make_section(section: type[_Section], name: str, values: Mapping[str, Any]) -> _Section:
    """Makes a dataclass of a config section; whole floats, as in `total_steps=1e6`, become integers for integer fields.

    Raises:
        ValueError: a key is unknown (the nearest known keys are suggested) or missing, or a value has another type.
    """
    fields = {field.name: field for field in dataclasses.fields(section)}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            nearest = difflib.get_close_matches(str(key), fields, n=2, cutoff=0.4) or sorted(fields)
            raise ValueError(f"`{name}` has no key {key!r}; try {' or '.join(nearest)}.")
    required = [n for n, f in fields.items() if dataclasses.MISSING is f.default is f.default_factory]
    missing = [name for name in required if name not in values]
    if missing:
        raise ValueError(f"`{name}` must have the keys {', '.join(missing)}, which are missing.")
    kinds = typing.get_type_hints(section)
    prefix = f"{name}." if name else ""
    return section(**{key: convert(f"{prefix}{key}", value, kinds[key]) for key, value in values.items()})


def require_run(config: Mapping[str, Any]) -> RunConfig:
    """Checks the settings at the top of a config, outside its sections, see `make_section`."""
    names = [field.name for field in dataclasses.fields(RunConfig) if field.name in config]
    return make_section(RunConfig, "", {name: config[name] for name in names})


def config_hash(resolved: Mapping[str, Any]) -> str:
    """Returns 16 hexadecimal digits of the SHA-256 of everything in a resolved config that changes results.

    `run_dir`, `devices` and `logging` do not count: a run may be resumed elsewhere and on other devices.
    """
    counted = {key: value for key, value in resolved.items() if key not in _NOT_HASHED}
    return hashlib.sha256(_serialise(counted).encode()).hexdigest()[:16]


def run_hash(resolved: Mapping[str, Any]) -> str:
    """Returns the `config_hash` without the lengths and periods of all stages, as a run may be extended."""
    return config_hash(_without_lengths(resolved))


def _without_lengths(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_lengths(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    kept = {}
    for key, value in node.items():
        if isinstance(value, Mapping):
            value = {name: item for name, item in value.items() if name not in _LENGTHS.get(key, ())}
        kept[key] = _without_lengths(value)
    return kept


def changed_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Lists the dotted keys that differ between two resolved configs of one run, though they must not."""
    return _changed_keys(_without_lengths(before), _without_lengths(after), "")


def _changed_keys(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str) -> list[str]:
    keys = []
    for key in sorted({*before, *after}):
        if not prefix and key in _NOT_HASHED:
            continue
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            keys += _changed_keys(old, new, f"{prefix}{key}.")
        elif (key in before) != (key in after) or _serialise(old) != _serialise(new):
            keys.append(f"{prefix}{key}")
    return keys


def _serialise(config: Any) -> str:
    return json.dumps(config, sort_keys=True, default=str)
