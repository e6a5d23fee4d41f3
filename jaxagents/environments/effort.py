"""A limit of effort that is part of no task: a rule of behaviour, whatever the task is."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import struct

from jaxagents.environments.wrappers import absorbing
from jaxagents.ops.distributions import is_bounded
from jaxagents.types import Array, Environment, State, Task, TimeStep


@struct.dataclass
class EffortState:
    """State of the wrapped environment, and the sum of effort rewards so far, float32."""

    inner: State
    total: Array


def with_effort(environment: Environment, *, limit: float = 0.4, scale: float = 0.0) -> Environment:
    """Makes an environment in which actions should not be larger than necessary.

    The effort reward of a step is `-max(0, max_d |a_d| - limit)`; `info["metrics"]["effort_reward"]` is its sum over
    the episode, whether it is part of the reward or not.

    Args:
        environment: environment with actions in [-1, 1].
        limit: limit of an action, in (0, 1].
        scale: weight of the effort reward in the reward of the world; 0: it is not added.

    Returns:
        The environment.

    Raises:
        ValueError: the actions are not bounded, or `limit` is out of its range.

    References:
        Glazer, Navon, Shamsian and Fetaya (2024), Multi Task Inverse Reinforcement Learning for Common Sense Reward
        (small actions as a common-sense reward).
    """
    if not 0.0 < limit <= 1.0:
        raise ValueError(f"`limit` must be in (0, 1], got {limit}; try 0.4.")
    if not is_bounded(environment.action_space) or environment.num_agents:
        raise ValueError(f"`environment` must have one agent of bounded actions, got {environment.action_space}.")

    def annotate(timestep: TimeStep, total: Array, reward: Array | float = 0.0) -> TimeStep:
        info: dict[str, Any] = {**timestep.info}
        info["metrics"] = {**info.get("metrics", {}), "effort_reward": total}
        return timestep.replace(reward=timestep.reward + scale * reward, info=info)

    def reset(key: Array, task: Task) -> tuple[EffortState, TimeStep]:
        inner, timestep = environment.reset(key, task)
        total = jnp.zeros((), jnp.float32)
        return EffortState(inner=inner, total=total), annotate(timestep, total)

    def step(key: Array, state: EffortState, action: Array) -> tuple[EffortState, TimeStep]:
        inner, timestep = environment.step(key, state.inner, action)
        reward = -jnp.maximum(jnp.max(jnp.abs(action)) - limit, 0.0)
        total = state.total + reward
        return EffortState(inner=inner, total=total), annotate(timestep, total, reward)

    return absorbing(replace(environment, reset=reset, step=step, render=_render_inner(environment)))


def _render_inner(environment: Environment) -> Callable[[State], str] | None:
    if environment.render is None:
        return None
    return lambda state: environment.render(state.inner)
