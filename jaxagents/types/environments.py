"""Environments: spaces, time steps, environments and their text interfaces."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import struct

Array = jax.Array
PyTree = Any
Params = PyTree
Carry = PyTree
Task = PyTree
State = PyTree


class Choice(NamedTuple):
    """A place in a pattern that is filled by one of several patterns."""

    patterns: "tuple[Pattern, ...]"


class Several(NamedTuple):
    """A place in a pattern that is filled by at most `most` of some phrases, each at most once and in their order.

    Attributes:
        phrases: int32 `[A, n]`.
        most: largest number of phrases.
    """

    phrases: np.ndarray
    most: int


Pattern = tuple[np.ndarray | Choice | Several, ...]
"""Consecutive places. An array is int32 `[A, n]`: one of A phrases of at most n word ids (-1: none) fills the place."""


@dataclass(frozen=True)
class Discrete:
    """A space of integers `0 .. num_values - 1`."""

    num_values: int
    shape: tuple[int, ...] = ()
    dtype: Any = np.int32


@dataclass(frozen=True)
class Box:
    """A space of arrays of one shape; `low` and `high` bound every element (`+-inf`: unbounded)."""

    shape: tuple[int, ...]
    low: float = -np.inf
    high: float = np.inf
    dtype: Any = np.float32


@struct.dataclass
class TimeStep:
    """The result of a reset or a step of an environment.

    Attributes:
        observation: array or pytree of arrays; with agents, every leaf has a leading agent axis `[N, ...]`.
        reward: float32 `[]`; `[N]` with agents or players. Zero after a reset.
        terminated: bool `[]`, whether the episode ended in a terminal state; bootstrap with zero.
        truncated: bool `[]`, whether the episode was cut off; bootstrap with the value of the true successor.
        action_mask: bool `[A]` (`[N, A]` with agents), True = allowed; None if every action is always allowed.
        player: int32 `[]`, the player who acts next in a turn-based game; None elsewhere.
        info: dict of arrays. Keys in use: `next_observation`, `next_action_mask` and `next_agent_mask` (of the true
            successor, added by automatic resets), `episode_return`, `episode_length` (running totals of the episode of
            the step), `agent_mask` (bool `[N]`, True = the agent exists and is alive), `world_state` (float32 `[S]`,
            the whole state of a team's world), `perspective` (in zero-sum games, +1 if the same player acts next, -1 if
            the opponent does), `success` (bool), `metrics` (dict of float32 `[]`, of the episode so far; rollouts and
            evaluations report their means over completed episodes under the same names).
    """

    observation: PyTree
    reward: Array
    terminated: Array
    truncated: Array
    action_mask: Array | None = None
    player: Array | None = None
    info: Mapping[str, Array] = struct.field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Environment:
    """An environment as pure functions of a single instance; callers use `vmap`.

    Attributes:
        name: name for logs and messages.
        sample_task: `(key, level=None) -> task`; a task is an explicit pytree that determines one instance.
        reset: `(key, task) -> (state, timestep)`.
        step: `(key, state, action) -> (state, timestep)`; a step after the end changes nothing, has zero reward, and
            repeats the end flags.
        observation_space: observation space of one agent.
        action_space: action space of one agent.
        max_steps: upper bound of the length of an episode in steps.
        num_agents: size of the agent axis; 0 without an agent axis.
        num_players: number of players of a turn-based game; 1 elsewhere. If larger, `reward` is `[num_players]`.
        render: `(state) -> str`, a text frame, on the host; None if it cannot be rendered.
        text: interface of a text world; None elsewhere.
        teams: indices of the agents of each team, by its name, if teams are opposed; empty elsewhere.
        num_levels: number of levels that `sample_task` accepts; 0 if none. Text worlds have theirs in `text`.
    """

    name: str
    sample_task: Callable[..., Task]
    reset: Callable[[Array, Task], tuple[State, TimeStep]]
    step: Callable[[Array, State, Array], tuple[State, TimeStep]]
    observation_space: PyTree
    action_space: Discrete | Box
    max_steps: int
    num_agents: int = 0
    num_players: int = 1
    render: Callable[[State], str] | None = None
    text: "TextInterface | None" = None
    teams: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    num_levels: int = 0


class Patterns(NamedTuple):
    """The texts that are possible in a text world, to find its tokens: every text follows one of these `Pattern`s.

    Attributes:
        observation: patterns of the observations.
        prompt: patterns of the prompts; none without prompts.
        thought: patterns of the expert's thoughts; none if it does not think.
        action: patterns of the well-formed actions; none if all are listed in `TextInterface.actions`.
    """

    observation: tuple[Pattern, ...]
    prompt: tuple[Pattern, ...] = ()
    thought: tuple[Pattern, ...] = ()
    action: tuple[Pattern, ...] = ()


@dataclass(frozen=True, eq=False)
class TextInterface:
    """The words of a text world, and an expert that uses them.

    Observations are int32 `[K]` and actions int32 `[M]`, word ids padded with -1 at the end. An unknown or ill-formed
    action changes nothing; the world answers "Nothing happens." and sets `info["valid"]` to False. If a world has
    `TimeStep.action_mask`, it marks the admissible rows of `actions`.

    Attributes:
        words: all phrases of observations and actions; a word id is an index into them.
        actions: int32 numpy `[A, M]`, all well-formed actions; None if there are too many to list.
        expert: `(key, state) -> (action int32 [M], thought int32 [H] | None)`, solves every task; in games it plays all
            players, as well as it can. The thought precedes this action; None if it does not think.
        fingerprint: `(state) -> uint32 []`, equal for states that are the same situation in the same task.
        sample_held_out_task: like `Environment.sample_task`, for tasks that the latter never returns.
        num_levels: number of levels; `level` is in `0 .. num_levels - 1`.
        prompt: `(task) -> int32 [P]`, shown once before the first observation; None without a prompt.
        patterns: patterns of the texts; None if any word can be at any place.
        examples: int32 numpy `[X, M]`, actions that contain every possible word of every place; None for `actions`.
        draw: `(key, state) -> action int32 [M]`, a random admissible action; None to draw a row of `actions`.
        distance: `(state) -> float32 []`, the smallest number of actions to a success, `inf` if it is out of reach;
            None if unknown.
        rules: `environments.text.world.World` from which it was built; None if there is none.
    """

    words: tuple[str, ...]
    actions: np.ndarray | None
    expert: Callable[[Array, State], tuple[Array, Array | None]]
    fingerprint: Callable[[State], Array]
    sample_held_out_task: Callable[..., Task]
    num_levels: int = 1
    prompt: Callable[[Task], Array] | None = None
    patterns: Patterns | None = None
    examples: np.ndarray | None = None
    draw: Callable[[Array, State], Array] | None = None
    distance: Callable[[State], Array] | None = None
    rules: Any = None
