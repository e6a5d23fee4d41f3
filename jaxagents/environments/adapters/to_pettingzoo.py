"""Teams and games of this package as environments of PettingZoo, for external learners."""

import operator
from typing import Any

import jax
import numpy as np

from jaxagents.environments.adapters.importing import import_suite
from jaxagents.environments.adapters.to_gymnasium import SteppedGame, convert_space
from jaxagents.types import Environment, PyTree


def make_pettingzoo(environment: Environment, *, level: int | None = None) -> Any:
    """Makes an environment of PettingZoo: a `ParallelEnv` for a team, an `AECEnv` for a game in turns.

    Agents are called agent_0, agent_1, ... In a team, all act at once and exist until the episode ends, and the `info`
    of a dead agent has `alive` False. In a game, the player whose turn it is sees the board, the others what they saw
    last; `info` has `action_mask` if not all actions are allowed.

    Args:
        environment: environment with agents, or with several players.
        level: see `make_gymnasium`.

    Returns:
        The `pettingzoo.ParallelEnv` or `pettingzoo.AECEnv`.

    Raises:
        ModuleNotFoundError: PettingZoo is not installed.
        ValueError: the environment has only one agent.
    """
    if not environment.num_agents and environment.num_players < 2:
        raise ValueError(f"`environment` must have agents, got {environment.name}; try make_gymnasium for one agent.")
    pettingzoo = import_suite("pettingzoo", extra="envs")
    return (_make_parallel if environment.num_agents else _make_in_turns)(pettingzoo, environment, level)


def _make_parallel(pettingzoo: Any, environment: Environment, level: int | None) -> Any:
    game = SteppedGame(environment, level)
    names = [f"agent_{index}" for index in range(environment.num_agents)]
    observations = {name: convert_space(environment.observation_space) for name in names}
    actions = {name: convert_space(environment.action_space) for name in names}

    def share(tree: PyTree) -> dict[str, PyTree]:
        arrays = jax.tree.map(np.asarray, tree)
        return {name: jax.tree.map(operator.itemgetter(i), arrays) for i, name in enumerate(names)}

    def infos() -> dict[str, dict]:
        alive = game.info.get("agent_mask", np.ones(len(names), bool))
        mask = game.timestep.action_mask
        masks = {} if mask is None else share(np.asarray(mask, np.int8))
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

        def step(self, actions: dict[str, Any]) -> tuple[dict, ...]:
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


def _make_in_turns(pettingzoo: Any, environment: Environment, level: int | None) -> Any:
    game = SteppedGame(environment, level)
    names = [f"agent_{index}" for index in range(environment.num_players)]
    observation_space, action_space = (
        convert_space(environment.observation_space),
        convert_space(environment.action_space),
    )

    class Wrapped(pettingzoo.AECEnv):
        metadata = {"name": environment.name, "render_modes": ["ansi"], "is_parallelizable": False}
        render_mode = "ansi"
        possible_agents = list(names)

        def observation_space(self, agent: str) -> Any:
            return observation_space

        def action_space(self, agent: str) -> Any:
            return action_space

        def observe(self, agent: str) -> PyTree:
            return self.seen[agent]

        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
            game.reset(seed)
            self.agents = list(names)
            self.rewards = dict.fromkeys(names, 0.0)
            self._cumulative_rewards = dict.fromkeys(names, 0.0)
            self.seen = dict.fromkeys(names, jax.tree.map(np.zeros_like, game.observation))
            self._look()

        def step(self, action: Any) -> None:
            if self.terminations[self.agent_selection] or self.truncations[self.agent_selection]:
                self._was_dead_step(action)
                return
            self._cumulative_rewards[self.agent_selection] = 0.0
            game.step(action)
            self.rewards = {name: float(game.timestep.reward[i]) for i, name in enumerate(names)}
            self._look()
            self._accumulate_rewards()

        def _look(self) -> None:
            """Updates whose turn it is, what they see, and whether the game is over."""
            timestep = game.timestep
            self.agent_selection = names[int(timestep.player)]
            self.seen[self.agent_selection] = game.observation
            self.terminations = dict.fromkeys(names, bool(timestep.terminated))
            self.truncations = dict.fromkeys(names, bool(timestep.truncated))
            self.infos: dict[str, Any] = {name: {} for name in names} | {self.agent_selection: game.info}

        def render(self) -> str:
            return game.render()

        def close(self) -> None:
            """Does nothing, as no window is open."""

    return Wrapped()
