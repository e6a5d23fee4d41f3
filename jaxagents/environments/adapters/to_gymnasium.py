"""Our worlds as environments of gymnasium and PettingZoo, for learners that are not ours."""

import operator
from typing import Any

import jax
import numpy as np

from jaxagents.environments.adapters.importing import import_suite
from jaxagents.types import Array, Box, Discrete, Environment, PyTree


def make_gymnasium(environment: Environment, *, level: int | None = None) -> Any:
    """Makes a `gymnasium.Env` of an environment of one agent.

    Every reset draws a new task; `reset(seed=...)` starts the sequence of tasks and of noise. `info` has what the
    environment tells, and `action_mask` where it has one. Worlds of text take and give word ids.

    Args:
        environment: of one agent and one player.
        level: difficulty of the tasks; None: as the environment draws it.

    Returns:
        The `gymnasium.Env`; its `render()` returns the text frame.

    Raises:
        ModuleNotFoundError: gymnasium is not installed.
        ValueError: the environment has agents or players.
    """
    if environment.num_agents or environment.num_players > 1:
        raise ValueError(f"`environment` must be of one agent, got {environment.name}; try make_pettingzoo for a team.")
    gymnasium = import_suite("gymnasium", extra="gymnax")
    game = _Game(environment, level)

    class Wrapped(gymnasium.Env):
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


def make_pettingzoo(environment: Environment, *, level: int | None = None) -> Any:
    """Makes a `pettingzoo.ParallelEnv` of an environment of several agents, which act at once.

    Agents are called agent_0, agent_1, ...; all of them are there until the episode ends, and `info` of one that has
    died has `alive` False.

    Args:
        environment: with agents.
        level: see `make_gymnasium`.

    Returns:
        The `pettingzoo.ParallelEnv`.

    Raises:
        ModuleNotFoundError: PettingZoo is not installed.
        ValueError: the environment has no agents.
    """
    if not environment.num_agents:
        raise ValueError(f"`environment` must have agents, got {environment.name}; try make_gymnasium for one agent.")
    pettingzoo = import_suite("pettingzoo", extra="envs")
    game = _Game(environment, level)
    names = [f"agent_{index}" for index in range(environment.num_agents)]
    observations = {name: convert_space(environment.observation_space) for name in names}
    actions = {name: convert_space(environment.action_space) for name in names}

    def share(tree: PyTree) -> dict[str, PyTree]:
        arrays = jax.tree.map(np.asarray, tree)
        return {name: jax.tree.map(operator.itemgetter(i), arrays) for i, name in enumerate(names)}

    def infos() -> dict[str, dict]:
        alive = game.info.get("agent_mask", np.ones(len(names), bool))
        mask = game.timestep.action_mask
        masks = {} if mask is None else share(mask)
        return {
            name: {"alive": bool(alive[i])} | ({"action_mask": masks[name]} if masks else {})
            for i, name in enumerate(names)
        }

    class Wrapped(pettingzoo.ParallelEnv):
        metadata = {"name": environment.name, "render_modes": ["ansi"]}
        render_mode = "ansi"
        possible_agents = list(names)
        agents: list[str] = []

        def observation_space(self, agent: str) -> Any:
            return observations[agent]

        def action_space(self, agent: str) -> Any:
            return actions[agent]

        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
            game.reset(seed)
            self.agents = list(names)
            return share(game.observation), infos()

        def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
            game.step(np.stack([np.asarray(actions[name]) for name in names]))
            timestep = game.timestep
            ends = [dict.fromkeys(names, bool(end)) for end in (timestep.terminated, timestep.truncated)]
            if any(ends[0].values()) or any(ends[1].values()):
                self.agents = []
            rewards = {name: float(timestep.reward[i]) for i, name in enumerate(names)}
            return share(game.observation), rewards, *ends, infos()

        def render(self) -> str:
            return game.render()

    return Wrapped()


def convert_space(space: Discrete | Box) -> Any:
    """Turns a space of ours into that of gymnasium."""
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
        return bool(value > 0)
    limits = np.iinfo(dtype)
    return int(np.clip(value, limits.min, limits.max))


class _Game:
    """An instance of an environment that is stepped from outside."""

    def __init__(self, environment: Environment, level: int | None) -> None:
        self.environment, self.level = environment, level
        self.key: Array = jax.random.key(np.random.SeedSequence().entropy % 2**32)
        self.state, self.timestep = None, None
        self._reset, self._step = jax.jit(environment.reset), jax.jit(environment.step)

    def reset(self, seed: int | None) -> None:
        key = self.key if seed is None else jax.random.key(seed)
        self.key, task_key, reset_key = jax.random.split(key, 3)
        self.state, self.timestep = self._reset(reset_key, self.environment.sample_task(task_key, self.level))

    def step(self, action: Any) -> None:
        if self.state is None:
            raise ValueError("`reset` must be called before the first step, got a step.")
        space = self.environment.action_space
        self.key, key = jax.random.split(self.key)
        self.state, self.timestep = self._step(key, self.state, np.asarray(action, space.dtype))

    @property
    def observation(self) -> PyTree:
        return jax.tree.map(np.asarray, self.timestep.observation)

    @property
    def info(self) -> dict[str, Any]:
        told = jax.tree.map(np.asarray, dict(self.timestep.info))
        mask = self.timestep.action_mask
        return told if mask is None else {**told, "action_mask": np.asarray(mask)}

    def render(self) -> str:
        return "" if self.environment.render is None else self.environment.render(self.state)
