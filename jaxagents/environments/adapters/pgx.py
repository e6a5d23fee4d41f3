"""Board and card games of pgx (Koyama et al., 2023)."""

from collections.abc import Callable
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.adapters.conversion import (
    permissive,
    sample_key_task,
    strong_types,
    task_key,
    unbounded_space,
)
from jaxagents.environments.adapters.importing import import_suite, require_name
from jaxagents.environments.adapters.rendering import render_grid
from jaxagents.environments.timesteps import first_timestep
from jaxagents.environments.wrappers import time_limit
from jaxagents.types import Array, Discrete, Environment, State, Task, TimeStep

_LONGEST_GAME = {
    "animal_shogi": 256,
    "chess": 512,
    "connect_four": 42,
    "gardner_chess": 256,
    "go_9x9": 162,
    "go_19x19": 722,
    "hex": 122,
    "kuhn_poker": 3,
    "leduc_holdem": 8,
    "othello": 120,
    "shogi": 512,
    "tic_tac_toe": 9,
}
"""Moves after which the rules end a game; the others have no such rule."""


def make_environment(name: str, max_steps: int | None = None) -> Environment:
    """Makes a game of pgx.

    In games, `player` says who acts next, observation and `action_mask` are those of that player, and the reward is
    `[num_players]` by player index; which player starts is part of the task. An illegal action loses the game at once.
    The task is `{"key": uint32 [2]}`.

    Args:
        name: pgx's name, for example "connect_four"; bridge is left out, since its data set must be downloaded.
        max_steps: maximum steps after which games are truncated; None: the limit in the rules, or 1000 steps if there
            is none.

    Returns:
        The environment; games for one player ("2048", MinAtar) have a scalar reward and no `player`.

    Raises:
        ModuleNotFoundError: pgx is not installed.
        ValueError: `name` is unknown, or `max_steps` is below 1.
    """
    core = import_suite("pgx.core")
    known = [game for game in get_args(core.EnvId) if game != "bridge_bidding"]
    game = core.make(require_name(name, known, "pgx"))
    init, advance = permissive(game.init), permissive(game.step)
    alone = game.num_players == 1

    def reset(key: Array, task: Task) -> tuple[State, TimeStep]:
        del key
        state = strong_types(init(task_key(task)))
        timestep = first_timestep(
            state.observation,
            reward_shape=() if alone else (game.num_players,),
            action_mask=state.legal_action_mask,
            player=None if alone else state.current_player,
        )
        return state, timestep

    def step(key: Array, state: State, action: Array) -> tuple[State, TimeStep]:
        state = advance(state, action, key)
        reward = state.rewards.astype(jnp.float32)
        timestep = TimeStep(
            observation=state.observation,
            reward=reward[0] if alone else reward,
            terminated=state.terminated,
            truncated=state.truncated,
            action_mask=state.legal_action_mask,
            player=None if alone else state.current_player,
        )
        return state, timestep

    first = jax.eval_shape(init, jax.random.key(0))
    environment = Environment(
        name=name,
        sample_task=sample_key_task,
        reset=reset,
        step=step,
        observation_space=unbounded_space(first.observation.shape, first.observation.dtype),
        action_space=Discrete(first.legal_action_mask.shape[0]),
        max_steps=_LONGEST_GAME.get(name, 1000),
        num_players=game.num_players,
        render=_renderer(name),
    )
    # Steps after the end are no-ops in pgx itself, so only our own limit needs the wrapper.
    if max_steps is None and name in _LONGEST_GAME:
        return environment
    return time_limit(environment, environment.max_steps if max_steps is None else max_steps)


def _renderer(name: str) -> Callable[[State], str] | None:
    boards = {"tic_tac_toe": (3, 3), "connect_four": (6, 7)}
    if name not in boards:
        return None

    def render(state: Any) -> str:
        board = np.asarray(state._x.board).reshape(boards[name])
        return render_grid(["".join(".XO"[int(stone) + 1] for stone in row) for row in board])

    return render
