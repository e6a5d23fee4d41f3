"""Environments of this package as environments of gymnasium, for external learners."""

from typing import Any

import jax
import numpy as np

from jaxagents.environments.adapters.importing import import_suite
from jaxagents.types import Array, Box, Discrete, Environment, PyTree


def make_gymnasium(environment: Environment, *, level: int | None = None) -> Any:
    """Makes a `gymnasium.Env` from an environment of one agent.

    Every reset draws a new task; `reset(seed=...)` restarts the sequence of tasks and of noise. `info` has the `info`
    of the environment, and `action_mask` (int8, for `action_space.sample`) if it has one. Text worlds take and return
    word ids.

    Args:
        environment: environment of one agent and one player.
        level: difficulty of the tasks; None: as the environment draws it.

    Returns:
        The `gymnasium.Env`; its `render()` returns the text frame.

    Raises:
        ModuleNotFoundError: gymnasium is not installed.
        ValueError: the environment has several agents or players.
    """
    if environment.num_agents or environment.num_players > 1:
        raise ValueError(f"`environment` must be of one agent, got {environment.name}; try make_pettingzoo for a team.")
    gymnasium = import_suite("gymnasium", extra="gymnax")
    game = SteppedGame(environment, level)

    class Wrapped(gymnasium.Env):  # type: ignore[name-defined]
        metadata = {"render_modes": ["ansi"]}
        render_mode = "ansi"
        observation_space = convert_space(environment.observation_space)
        action_space = convert_space(environment.action_space)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[PyTree, dict]:
            super().reset(seed=seed)
            game.reset(seed)
            return game.observation, game.info

        def step(self, action: Any) -> tuple[PyTree, float, bool, bool, dict]:
            game.step(action)
            timestep = game.timestep
            ends = bool(timestep.terminated), bool(timestep.truncated)
            return game.observation, float(timestep.reward), *ends, game.info

        def render(self) -> str:
            return game.render()

    return Wrapped()


def convert_space(space: Discrete | Box) -> Any:
    """Converts a space of this package to that of gymnasium."""
    spaces = import_suite("gymnasium.spaces", extra="gymnax")
    if isinstance(space, Discrete):
        return (
            spaces.MultiDiscrete(np.full(space.shape, space.num_values))
            if space.shape
            else spaces.Discrete(space.num_values)
        )
    if isinstance(space, Box):
        return spaces.Box(_bound(space.low, space.dtype), _bound(space.high, space.dtype), space.shape, space.dtype)
    return spaces.Dict({name: convert_space(part) for name, part in space.items()})


def _bound(value: float, dtype: Any) -> float:
    if np.issubdtype(dtype, np.floating):
        return value
    if np.issubdtype(dtype, np.bool_):
        return int(value > 0)  # For Python's own bools, gymnasium makes no box.
    limits = np.iinfo(dtype)
    return int(np.clip(value, limits.min, limits.max))


class SteppedGame:
    """An instance of an environment that is stepped from outside."""

    def __init__(self, environment: Environment, level: int | None) -> None:
        self.environment, self.level = environment, level
        self.key: Array = jax.random.key(int(np.random.SeedSequence().generate_state(1)[0]))
        self.state: Any = None
        self.timestep: Any = None
        self._reset, self._step = jax.jit(environment.reset), jax.jit(environment.step)

    def reset(self, seed: int | None) -> None:
        """Starts an episode of a new task; a seed restarts the sequence of tasks and of noise."""
        key = self.key if seed is None else jax.random.key(seed)
        self.key, task_key, reset_key = jax.random.split(key, 3)
        self.state, self.timestep = self._reset(reset_key, self.environment.sample_task(task_key, self.level))

    def step(self, action: Any) -> None:
        """Takes an action; the result is in `timestep`."""
        if self.state is None:
            raise ValueError("`reset` must be called before the first step, got a step.")
        space = self.environment.action_space
        self.key, key = jax.random.split(self.key)
        self.state, self.timestep = self._step(key, self.state, np.asarray(action, space.dtype))

    @property
    def observation(self) -> PyTree:
        """Returns the observation of the environment as arrays."""
        return jax.tree.map(np.asarray, self.timestep.observation)

    @property
    def info(self) -> dict[str, Any]:
        """Returns the `info` of the environment, and the mask of allowed actions if it has one."""
        info = jax.tree.map(np.asarray, dict(self.timestep.info))
        mask = self.timestep.action_mask
        return info if mask is None else {**info, "action_mask": np.asarray(mask, np.int8)}

    def render(self) -> str:
        """Returns the text frame; empty if the environment has none."""
        return "" if self.environment.render is None else self.environment.render(self.state)
