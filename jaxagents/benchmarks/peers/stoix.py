"""Systems of Stoix (Toledo, 2024), unchanged, from checkouts."""

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import jax
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from jaxagents.benchmarks.timing import Subject, timed

# What is imported to log and to make environments of other suites, and not called here.
_UNUSED = (
    *("neptune", "neptune.utils", "wandb", "tensorboard_logger", "marl_eval", "marl_eval.json_tools"),
    *("pandas.io.json", "pandas.io.json._normalize", "stoix.utils.logger"),
)
_BASES = {"stoix.utils.env_factory": "EnvFactory", "stoix.wrappers.jax_to_factory": "JaxEnvFactory"}


def stoix_subject(folder: str | Path, name: str, system: str, choices: Sequence[str]) -> Subject:
    """Times the compiled loop of a system, from one evaluation to the next; unit: environment steps.

    Its code runs unchanged; gymnax 1.0 tells termination from truncation, so `step` is narrowed to the five values that
    it expects, and what logs to the network is stubbed.

    Args:
        folder: that holds the packages `stoix` and `stoa` of checkouts. They need flashbax, distrax and colorama.
        name: row of the table.
        system: module and default config, as in `sac.ff_sac`.
        choices: of its command line.

    Returns:
        The subject.

    Raises:
        ValueError: the folder lacks one of the packages.
    """
    folder = Path(folder).absolute()
    missing = [package for package in ("stoix", "stoa") if not (folder / package / "__init__.py").exists()]
    if missing:
        raise ValueError(f"`reference_stoix` must hold the packages stoix and stoa, got {folder} without {missing}.")
    with _importable(folder):
        config, module = _composed(folder, system, choices)
        keys = jax.random.split(jax.random.PRNGKey(0), len(config.network) + 1)  # The loop's, and one per network.
        environment, _ = module.environments.make(config=config)
        learn, _, state = module.learner_setup(environment, tuple(keys), config)
        state = learn(state).learner_state  # Shapes and weak types are those of later calls from here on.
        states = [state]

        def run() -> float:
            states[0] = jax.block_until_ready(learn(states[0]).learner_state)
            return config.arch.num_updates_per_eval * config.system.rollout_length * config.arch.num_envs

        _, compile_seconds = timed(lambda: (run(), states[0].params)[1])
    return Subject(name=name, run=run, compile_seconds=compile_seconds)


def _composed(folder: Path, system: str, choices: Sequence[str]) -> tuple[Any, ModuleType]:
    """Composes the config of a system as its main does, and imports it."""
    configs = folder / "stoix" / "configs"
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(configs / "default" / "anakin"), version_base="1.2"):
        default = f"default_{system.rsplit('.', maxsplit=1)[-1]}"
        config = compose(default, overrides=[f"hydra.searchpath=[file://{configs}]", *choices])
    OmegaConf.set_struct(config, False)
    config.num_devices = 1
    module = importlib.import_module(f"stoix.systems.{system}")
    return importlib.import_module("stoix.utils.total_timestep_checker").check_total_timesteps(config), module


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Lets programs for other versions of their packages be imported and traced."""
    import gymnax

    original = gymnax.make

    def make(name: str, **settings: Any) -> Any:
        environment, params = original(name, **settings)
        return _FiveValues(environment), params

    stubs: dict[str, Any] = {name: mock.MagicMock() for name in _UNUSED}
    stubs |= {name: mock.MagicMock(**{base: object}) for name, base in _BASES.items()}
    with (
        mock.patch.dict(sys.modules, stubs),
        mock.patch.object(sys, "path", [str(folder), *sys.path]),
        mock.patch.object(gymnax, "make", make),
    ):
        yield


class _FiveValues:
    """An environment of gymnax 1.0 with the `step` of earlier ones."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def step(self, key: Any, state: Any, action: Any, params: Any = None) -> tuple[Any, ...]:
        observation, state, reward, terminated, truncated, _ = self._environment.step(key, state, action, params)
        return observation, state, reward, terminated | truncated, {}
