"""Composes runs outside of their script, and names them."""

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from jaxagents.training.arguments import parse_overrides
from jaxagents.training.methods import chosen_methods, missing_groups, require_methods
from jaxagents.training.trust import require_trusted, require_trusted_folder, trusting
from jaxagents.training.yaml_files import require_yaml

ARGUMENTS_FILE = "arguments.yaml"
_FOLDER = "--config-dir"


def run_name() -> str:
    """Returns the name of a run by its chosen options: `ppo_tmaze`, or the experiment's name if there is one.

    Returns:
        The experiment, or else `<algorithm>_<world>`, with the learner and the environment in place of those not
        chosen; and the methods that are switched on, as in `grpo_shop_gigpo`.
    """
    choices: Any = HydraConfig.get().runtime.choices
    pair = f"{choices.algorithm or choices.learner}_{choices.world or choices.environment}"
    return "_".join([choices.experiment or pair, *chosen_methods(HydraConfig.get().overrides.task)])


def register_resolvers() -> None:
    """Registers `${run_name:}` of `configs/train.yaml`; to be called before Hydra composes."""
    OmegaConf.register_new_resolver("run_name", run_name, replace=True)
    # Hydra copies its single store for every group that `--help` lists, which takes three quarters of its time.
    ConfigStore.__deepcopy__ = lambda store, memo: store  # type: ignore[attr-defined]


def compose(config_folder: str | Path, *overrides: str) -> DictConfig:
    """Composes `configs/train.yaml`, as `experiments/train.py` would with the same arguments.

    Args:
        config_folder: folder that holds `train.yaml`.
        *overrides: overrides such as "world=frozenlake", "algorithm=dapo".

    Returns:
        The config.

    Raises:
        ValueError: see `methods.require_methods`, or a method does not fit the algorithm.
    """
    require_methods(overrides, config_folder)
    register_resolvers()
    GlobalHydra.instance().clear()
    here = hydra.initialize_config_dir(str(Path(config_folder).resolve()), version_base="1.3")
    with here, misfits_explained("train", overrides, config_folder):
        config = hydra.compose("train", list(overrides), return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    OmegaConf.set_struct(config, False)
    config.name = config.name  # Named by the current choices.
    config.pop("hydra")
    OmegaConf.set_struct(config, True)
    return config


@contextmanager
def misfits_explained(config_name: str, overrides: Sequence[str], *folders: str | Path) -> Iterator[None]:
    """Says which method needs a group that nothing provides, if that is why a composition fails.

    Args:
        config_name: name of the composed config.
        overrides: overrides of the composition.
        *folders: folders of configs, those of a user first; the last one holds the config.
    """
    try:
        yield
    except ConfigCompositionException as error:
        others = [text for text in overrides if not text.startswith(("+method=", "-"))]
        if not chosen_methods(overrides):
            raise
        GlobalHydra.instance().clear()
        with hydra.initialize_config_dir(str(Path(folders[-1]).resolve()), version_base="1.3"):
            choices: Any = hydra.compose(config_name, others, return_hydra_config=True).hydra.runtime.choices
        reason = missing_groups(overrides, choices, *folders)
        if reason is None:
            raise
        raise ValueError(reason) from error


def merge_overrides(*lists: list[str]) -> list[str]:
    """Joins lists of overrides; a later override replaces an earlier one of the same key.

    Hydra itself refuses two choices for one group.
    """
    texts = [text for overrides in lists for text in overrides]
    merged: dict[str, str] = {}
    for override in parse_overrides(texts):
        key = override.get_key_element().lstrip("+~")
        merged.pop(key, None)
        merged[key] = str(override.input_line)
    return list(merged.values())


def given_arguments() -> list[str]:
    """Returns the arguments of the current config as they were written, with `${...}` unresolved."""
    arguments: Any = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    return arguments


def own_folders() -> list[Path]:
    """Returns the folders of `--config-dir` of the current config."""
    sources = HydraConfig.get().runtime.config_sources
    return [Path(source.path).absolute() for source in sources if source.provider == "command-line"]


def folders_of(arguments: Sequence[str]) -> list[str]:
    """Returns the folders that `--config-dir`, or `-cd`, names in the arguments of a command."""
    named = [argument for argument in join_options(arguments) if argument.startswith(f"{_FOLDER}=")]
    return [argument.partition("=")[2] for argument in named]


def join_options(arguments: Sequence[str]) -> list[str]:
    """Rewrites `--config-dir mine` and `-cd mine` as `--config-dir=mine`."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] == _FOLDER:
            joined[-1] = f"{_FOLDER}={argument}"
        else:
            name, is_given, value = argument.partition("=")
            joined.append(f"{_FOLDER}{is_given}{value}" if name in (_FOLDER, "-cd") else argument)
    return joined


@contextmanager
def joined_configs(folder: Path, own: Sequence[Path]) -> Iterator[Path]:
    """Provides one folder for the configs of several; the first with a name counts, as in Hydra's search path.

    Args:
        folder: folder of the experiments' configs.
        own: folders of the user.

    Yields:
        `folder` itself, or a folder of links that exists within the context.

    Raises:
        ValueError: a folder of the user does not exist.
    """
    if missing := [one for one in own if not Path(one).is_dir()]:
        raise ValueError(f"`--config-dir` must be a folder, got {missing[0]}, which is not there.")
    if not own:
        yield folder
        return
    with tempfile.TemporaryDirectory() as name:
        for path in [(source, path) for source in (folder, *own) for path in sorted(source.rglob("*.yaml"))]:
            link = Path(name) / path[1].relative_to(path[0])
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(path[1].resolve())
        yield Path(name)


def save_arguments(run_dir: Path) -> None:
    """Writes the arguments of the current config into a run directory, for `resume_arguments`."""
    if HydraConfig.initialized():
        arguments = [f"{_FOLDER}={folder}" for folder in own_folders()]
        OmegaConf.save(OmegaConf.create(arguments + given_arguments()), run_dir / ARGUMENTS_FILE)


def resume_arguments(arguments: Sequence[str]) -> list[str]:
    """Replaces `resume=<run directory>` by the arguments that the run was started with; new arguments override these.

    The folder of configs that the run was started with is kept, unless another one is named.

    Args:
        arguments: arguments of `experiments/train.py`.

    Returns:
        The arguments, those of the run with `run_dir` as it was given; unchanged if nothing is resumed.

    Raises:
        ValueError: the folder holds no run, or one that was not composed of arguments, or whose arguments name
            functions of others, see `require_trusted`.
    """
    named = [argument for argument in arguments if argument.startswith("resume=")]
    if not named:
        return list(arguments)
    run_dir = Path(named[-1].partition("=")[2])
    written = run_dir / ARGUMENTS_FILE
    if not written.is_file():
        raise ValueError(
            f"`resume` must be the directory of a run of experiments/train.py, got {run_dir}, which has no "
            f"{ARGUMENTS_FILE}; try the command that began it, with the same run_dir."
        )
    arguments = join_options(arguments)
    options = [argument for argument in arguments if argument.startswith("-")]
    further = [argument for argument in arguments if argument not in (*options, *named)]
    begun = _read_arguments(written)
    named_folders = [argument for argument in begun if argument.startswith(f"{_FOLDER}=")]
    folders = [] if folders_of(options) else named_folders
    options = folders + options
    quoted = str(run_dir).replace("\\", "\\\\").replace("'", "\\'")
    stored = _require_own([argument for argument in begun if argument not in named_folders], folders, further, written)
    return options + merge_overrides(stored, further, [f"run_dir='{quoted}'"])


def _read_arguments(path: Path) -> list[str]:
    try:
        require_yaml(path)
        arguments: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        found = f"a {type(arguments).__name__}"
    except (ValueError, OmegaConfBaseException) as error:
        arguments, found = None, " ".join(str(error).split())
    if not isinstance(arguments, list) or not all(isinstance(argument, str) for argument in arguments):
        raise ValueError(
            f"`{path}` must list the arguments of a run, got {found}; try the command that began it, with the same "
            "run_dir."
        )
    return arguments


def _require_own(stored: Sequence[str], folders: Sequence[str], further: Sequence[str], path: Path) -> list[str]:
    """Returns the arguments of a run, if none calls functions of others or reads files of its own choice."""
    given = parse_overrides(further)
    trust: Any = [override.value() for override in given if override.key_or_group == "trust"]
    with trusting(trust[-1] if trust else None):
        for override in parse_overrides(stored):
            key, value = override.key_or_group, override.value()
            is_choice = "." not in key and key not in ("run_dir", "start_from") or override.package is not None
            is_foreign = re.match(r"hydra\b", key) or override.is_sweep_override()
            if is_foreign or is_choice and ".." in str(value).split("/"):
                raise ValueError(
                    f"`resume` must be a run with arguments of its own alone, got {override.input_line} in {path}; try "
                    "the command that began the run."
                )
            require_trusted({key: value}, str(path))
        for folder in folders:
            require_trusted_folder(Path(folder.partition("=")[2]))
    return [text for text in stored if not text.startswith("trust=")]
