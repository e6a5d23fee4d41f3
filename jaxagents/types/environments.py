"""Worlds: spaces, time steps, environments and their text interfaces."""

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
    """A place of a pattern at which one of some patterns stands."""

    patterns: "tuple[Pattern, ...]"


class Several(NamedTuple):
    """A place of a pattern at which at most `most` of some phrases stand, each once and in their order.

    Attributes:
        phrases: int32 `[A, n]`.
        most: of them.
    """

    phrases: np.ndarray
    most: int


Pattern = tuple[np.ndarray | Choice | Several, ...]
"""Places in a row. An array is int32 `[A, n]`: one of A phrases of at most n word ids (-1: none) stands there."""


@dataclass(frozen=True)
class Discrete:
    """A space of the integers `0 .. num_values - 1`."""

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
    """What an environment says after a reset or a step.

    Attributes:
        observation: array or pytree of arrays; with agents, every leaf has a leading agent axis `[N, ...]`.
        reward: float32 `[]`; `[N]` with agents or players. Zero after a reset.
        terminated: bool `[]`, the episode ended in a terminal state: bootstrap with zero.
        truncated: bool `[]`, the episode was cut: bootstrap with the value of the true successor.
        action_mask: bool `[A]` (`[N, A]` with agents), True = allowed; None when every action always is.
        player: int32 `[]`, who acts next in a turn-based game; None elsewhere.
        info: dict of arrays. Keys in use: `next_observation`, `next_action_mask` and `next_agent_mask` (of the true
            successor, put there by automatic resets), `episode_return`, `episode_length` (running totals of the episode
            the step belongs to), `agent_mask` (bool `[N]`, True = the agent exists and is alive), `world_state`
            (float32 `[S]`, a team's world as a whole), `perspective` (+1 the same player acts next, -1 the opponent
            does, in zero-sum games), `success` (bool), `metrics` (dict of float32 `[]`, of the episode so far; rollouts
            and evaluations report their means over ended episodes under the same names).
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
    """An environment as pure functions over one instance; callers vmap.

    Attributes:
        name: for logs and messages.
        sample_task: `(key, level=None) -> task`; a task is an explicit pytree that fixes one instance.
        reset: `(key, task) -> (state, timestep)`.
        step: `(key, state, action) -> (state, timestep)`; a step after the end is a no-op with zero reward that
            repeats the end flags.
        observation_space: of one agent.
        action_space: of one agent.
        max_steps: upper bound of the length of an episode.
        num_agents: size of the agent axis; 0 when there is none.
        num_players: seats of a turn-based game; 1 elsewhere. With more, `reward` is `[num_players]`.
        render: `(state) -> str`, a text frame, on the host; None when there is none.
        text: what makes it a text world; None elsewhere.
        teams: numbers of the agents of each team by its name, where teams are opposed; empty elsewhere.
        num_levels: difficulties that `sample_task` takes; 0 where it takes none. Text worlds have theirs in `text`.
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
    """What a text world can say, for the tokens that it needs: `Pattern`s, one of which every text follows.

    Attributes:
        observation: of the observations.
        prompt: of the prompts; none where there is nothing to say.
        thought: of the thoughts of the expert; none where it does not think.
        action: of the well-formed actions; none where they are all listed in `TextInterface.actions`.
    """

    observation: tuple[Pattern, ...]
    prompt: tuple[Pattern, ...] = ()
    thought: tuple[Pattern, ...] = ()
    action: tuple[Pattern, ...] = ()


@dataclass(frozen=True, eq=False)
class TextInterface:
    """The words of a text world, and who can speak them.

    Observations are int32 `[K]` and actions int32 `[M]` of word ids, -1 pads at the end. An unknown or ill-formed
    action changes nothing, is answered by the world's "Nothing happens." and sets `info["valid"]` to False.
    `TimeStep.action_mask`, where a world gives one, says which rows of `actions` are admissible.

    Attributes:
        words: every phrase of observations and actions; a word id is an index into them.
        actions: int32 numpy `[A, M]`, every well-formed action; None where they are too many to be listed.
        expert: `(key, state) -> (action int32 [M], thought int32 [H] | None)`, solves every task; in games it plays all
            seats, as well as it can. The thought is what it thinks before this action; None where it does not think.
        fingerprint: `(state) -> uint32 []`, equal for states that are the same situation of the same task.
        sample_held_out_task: as `Environment.sample_task`, of tasks that it never gives.
        num_levels: difficulties; `level` is in `0 .. num_levels - 1`.
        prompt: `(task) -> int32 [P]`, given once before the first observation; None when there is nothing to say.
        patterns: of the texts; None where that is any word in any place.
        examples: int32 numpy `[X, M]`, actions in which every word stands that may stand somewhere; None for `actions`.
        draw: `(key, state) -> action int32 [M]`, an admissible action drawn at random; None for a row of `actions`.
        distance: `(state) -> float32 []`, the fewest actions to a success, `inf` where there is none left; None where
            it is not known.
        rules: `environments.text.world.World` that it was built of; None where it was not.
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
