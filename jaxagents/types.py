"""Data that crosses module borders, and the pairs of functions that compose.

Shape letters: T time, B batch of environments, N agents or players, A actions. Reinforcement-learning arrays are
time-first, `[T, B, ...]`. Every record of functions is static and hashable by identity; every record of arrays is a
frozen pytree.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

Array = jax.Array
PyTree = Any
Params = PyTree
Carry = PyTree
Task = PyTree
State = PyTree


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
        info: dict of arrays. Keys in use: `next_observation` and `next_action_mask` (of the true successor, put there
            by automatic resets),
            `episode_return`, `episode_length` (running totals of the episode the step belongs to), `agent_mask`
            (bool `[N]`, True = the agent exists and is alive), `perspective` (+1 the same player acts next, -1 the
            opponent does, in zero-sum games), `success` (bool).
    """

    observation: PyTree
    reward: Array
    terminated: Array
    truncated: Array
    action_mask: Array | None = None
    player: Array | None = None
    info: Mapping[str, Array] = struct.field(default_factory=dict)


@struct.dataclass
class Transition:
    """One step of experience: fields of the state acted in, then of what followed.

    Attributes:
        observation: what the policy saw.
        action: what it did.
        behavior_log_prob: float32, log-probability of `action` under the policy that acted.
        reward: float32, the reward that followed.
        terminated: bool, the step ended the episode in a terminal state.
        truncated: bool, the step ended the episode by a limit.
        next_observation: the true successor, also where the environment was reset afterwards.
        first: bool, `observation` is the first of an episode.
        action_mask: bool `[..., A]` allowed actions at `observation`, or None.
        extras: dict of further arrays with the same leading axes.
    """

    observation: PyTree
    action: Array
    behavior_log_prob: Array
    reward: Array
    terminated: Array
    truncated: Array
    next_observation: PyTree
    first: Array
    action_mask: Array | None = None
    extras: Mapping[str, PyTree] = struct.field(default_factory=dict)


@struct.dataclass
class Rollout:
    """A stretch of experience of B environments.

    Attributes:
        transition: `Transition` with leaves `[T, B, ...]`.
        carry: recurrent carry of the policy *before* each step and after the last one, leaves `[T + 1, B, ...]`;
            an empty pytree for feed-forward policies.
    """

    transition: Transition
    carry: Carry


@struct.dataclass
class Mean:
    """A mean that can be merged exactly over steps, devices and chunks: `total / count`."""

    total: Array
    count: Array

    @property
    def value(self) -> Array:
        """Returns the mean, NaN where nothing was counted."""
        return jnp.where(self.count > 0, self.total / jnp.maximum(self.count, 1e-9), jnp.nan)


Metrics = Mapping[str, Array | Mean]


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


class Policy(NamedTuple):
    """A policy over sequences; a feed-forward one has the empty carry `()`.

    Attributes:
        init: `(key) -> params`.
        initial_carry: `(batch_shape) -> carry`, leaves `[*batch_shape, ...]`.
        apply: `(params, carry, observation [T, B, ...], *, first [T, B], action_mask=None) ->
            (carry, distribution [T, B])`; the carry is reset before every step where `first`.
    """

    init: Callable[[Array], Params]
    initial_carry: Callable[[tuple[int, ...]], Carry]
    apply: Callable[..., tuple[Carry, Any]]


class ActorCritic(NamedTuple):
    """As `Policy`, and `apply` returns `(carry, distribution, value [T, B])`."""

    init: Callable[[Array], Params]
    initial_carry: Callable[[tuple[int, ...]], Carry]
    apply: Callable[..., tuple[Carry, Any, Array]]


class Collector(NamedTuple):
    """Where batches come from: rollouts, a data set, a search.

    Attributes:
        init: `(key, params) -> state`; every leaf of the state has the environment axis first: devices split it.
        collect: `(state, params, key) -> (state, batch, metrics)`.
        steps_per_collect: environment steps that one call takes.
    """

    init: Callable[[Array, Params], State]
    collect: Callable[[State, Params, Array], tuple[State, PyTree, Metrics]]
    steps_per_collect: int


class Learner(NamedTuple):
    """What turns batches into better parameters.

    Attributes:
        init: `(key, params=None) -> state`; `params` to start from, as of an earlier stage.
        update: `(state, key, batch) -> (state, metrics)`. `state.params` is what the collector's policy acts with.
        partition: `(state) -> pytree` of bool, True for leaves whose first axis is split over devices (replay
            buffers); None when every leaf is replicated.
    """

    init: Callable[..., State]
    update: Callable[[State, Array, PyTree], tuple[State, Metrics]]
    partition: Callable[[State], PyTree] | None = None


class Agent(NamedTuple):
    """A policy and the learner that trains it.

    Attributes:
        policy: what acts, in training and in evaluation.
        make_learner: `(collector) -> Learner`; replay buffers take the shapes of the batches from the collector.
    """

    policy: Policy
    make_learner: Callable[[Collector], Learner]
