"""Functions that a run directory may call: those of this package that compute, and those of trusted modules."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from jaxagents.training.setting_types import find_function, written
from jaxagents.training.yaml_files import require_yaml

_COMPUTING = (
    *("environments", "policies", "values", "learners", "losses", "ops", "networks", "language", "rollouts", "search"),
    *("data", "games"),
)
_OWN = (
    *(f"jaxagents.{folder}" for folder in _COMPUTING),
    *("optax", "mctx", "flax.linen", "evosax.algorithms", "jumanji.environments.routing.lbf.generator"),
)
_FUNCTIONS = (
    "jaxagents.training.load.load_params",
    "jaxagents.training.load.load_policy",
    "jaxagents.training.load.load_reward",
    "jaxagents.training.exploitability.make_exploitability_evaluator",
    "jaxagents.training.tt_si.make_test_time_evaluator",
)
_EFFECTS = re.compile(r"_|write_|save_|import_")  # Functions that write files, or import modules.
_REFERENCES = re.compile(r"\$\{(oc\.env:)?[\w.,@/\[\]-]*\}")  # A `_target_` could come from any other interpolation.
_MOST_FILES = 1000
_TRUSTED: ContextVar[bool | tuple[str, ...]] = ContextVar("trusted", default=())


@contextmanager
def trusting(trust: bool | str | Sequence[str] | None) -> Iterator[None]:
    """Lets run directories name functions of further modules within the context.

    Args:
        trust: names of modules, such as "my_world", including their submodules; True: all; False: none; None: as
            before.

    Raises:
        ValueError: `trust` is something else.
    """
    modules = [trust] if isinstance(trust, str) else trust or ()
    if modules is not True and not (isinstance(modules, Sequence) and all(isinstance(one, str) for one in modules)):
        raise ValueError(f"`trust` must be true or names of modules, got {written(trust)}; try trust=[my_world].")
    before = _TRUSTED.set(_TRUSTED.get() if trust is None else modules is True or (*modules,))
    try:
        yield
    finally:
        _TRUSTED.reset(before)


def require_trusted(config: Any, place: str) -> None:
    """Refuses a config from a file whose functions are neither of this package nor of a trusted module.

    Args:
        config: plain data.
        place: name of the file, for the message.

    Raises:
        ValueError: a `_target_` is of another module, writes files, or may come from an interpolation.
    """
    trusted = _TRUSTED.get()
    if isinstance(trusted, bool):
        return
    for key, value in _walk(config, ""):
        if key.rpartition(".")[2] == "_target_" and not _is_trusted(value, trusted):
            module = str(value).rpartition(".")[0] or "MODULE"
            raise ValueError(
                f"`{key}` in {place} must be of jaxagents, got {written(value)}, which would run code of others; where "
                f"you know it, try 'trust=[{module}]', see SECURITY.md."
            )
        if "trust" in key.split(".") and value not in (None, False):
            raise ValueError(f"`{key}` in {place} must not trust others itself, got {written(value)}; try trust=true.")
        if isinstance(value, str) and "${" in _REFERENCES.sub("", value):
            raise ValueError(
                f"`{key}` in {place} must refer to settings alone, got {value!r}; where you know it, try trust=true."
            )


def require_trusted_folder(folder: Path) -> None:
    """Refuses a folder of configs that a run directory names, if it calls functions of others or configures Hydra.

    Args:
        folder: folder of `--config-dir`.

    Raises:
        ValueError: the folder has such a file, or too many files to check.
    """
    if isinstance(_TRUSTED.get(), bool):
        return
    paths = list(itertools.islice(folder.rglob("*.yaml"), _MOST_FILES + 1))
    if len(paths) > _MOST_FILES:
        raise ValueError(f"`--config-dir` must have at most {_MOST_FILES} files, got {folder}; try trust=true.")
    for path in paths:
        require_yaml(path)
        if re.search(r"\bhydra\b", path.read_text()):
            raise ValueError(
                f"`{path}` must not set up Hydra where a run names its folder, got `hydra`; try trust=true."
            )
        require_trusted(OmegaConf.to_container(OmegaConf.load(path), resolve=False), str(path))


def trust_argument(config: Any) -> str:
    """Returns the argument that lets a command read a run, `" 'trust=[my_world]'"`; empty if it needs none."""
    targets = {value for key, value in _walk(config, "") if key.rpartition(".")[2] == "_target_"}
    modules = sorted({str(target).rpartition(".")[0] for target in targets if not _is_trusted(target, ())})
    return f" 'trust=[{','.join(modules)}]'" if modules else ""


def functions_of_others(config: Any) -> list[str]:
    """Returns the functions that a config names and that are neither of this package nor of its libraries."""
    targets = {str(value) for key, value in _walk(config, "") if key.rpartition(".")[2] == "_target_"}
    return sorted(target for target in targets if not _is_in(target, ("jaxagents", *_OWN)))


def _walk(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yields the values of nested data with their dotted keys."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from _walk(value, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list | tuple):
        for index, value in enumerate(node):
            yield from _walk(value, f"{key}.{index}")
    else:
        yield key, node


def _is_trusted(target: Any, modules: Sequence[str]) -> bool:
    if not isinstance(target, str):
        return True  # Not a function; reported where it would be built.
    if target in _FUNCTIONS:
        return True
    is_own = _is_in(target, _OWN) and not _EFFECTS.match(target.rpartition(".")[2])
    if not is_own and not _is_in(target, modules):
        return False
    try:
        function = find_function(target, "_target_")
    except (ValueError, ImportError):
        return True  # It does not exist; reported where it would be built.
    # A module has the modules that it imports as attributes, and thereby everything in them.
    return _is_in(str(getattr(function, "__module__", None)), (*_OWN, *modules))


def _is_in(name: str, places: Sequence[str]) -> bool:
    return any(f"{name}.".startswith(f"{place}.") for place in places)
