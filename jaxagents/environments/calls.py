"""Teams that choose in every step whether a central learner selects their actions."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.wrappers import absorbing
from jaxagents.types import Array, Box, Discrete, Environment, PyTree, State, Task, TimeStep


@struct.dataclass
class CallsState:
    """State of `with_calls`.

    Attributes:
        inner: state of the wrapped environment.
        num_calls: int32, number of calls in the episode so far.
        num_steps: int32, number of steps in the episode so far.
    """

    inner: State
    num_calls: Array
    num_steps: Array


def with_calls(
    environment: Environment, *, max_calls: int | None = None, call_probability: float | None = None
) -> Environment:
    """Doubles every agent's actions: `a` is chosen by the agent, `A + a` is chosen for it by a central learner.

    The world receives the action modulo `A`. A step in which an agent's action is `A` or more is a call of the central
    learner; `info["metrics"]` has `calls`, their number in the episode so far, and `call_rate`, their share of its
    steps. Apply it outside of `agent_ids` and `team_view`.

    Args:
        environment: environment with an agent axis and discrete actions.
        max_calls: budget of calls per episode, after which calls are masked out. The remaining share of the budget is
            appended to what the team sees: to the entry `team` of `team_view`, or to every agent's observation.
        call_probability: probability with which a step is a call, in place of the agents' choice: the other actions are
            masked out. The first draw is part of the task.

    Returns:
        The environment with `Discrete(2 A)` actions; action masks are those of the world, repeated twice.

    Raises:
        ValueError: there is no agent axis, actions are not discrete, a number is out of its range, or there is a budget
            for observations that are neither vectors nor those of `team_view`.

    References:
        Mguni et al. (2023), "MANSA: Learning Fast and Slow in Multi-Agent Systems".
    """
    _check(environment, max_calls, call_probability)
    num_agents, num_actions = environment.num_agents, environment.action_space.num_values  # type: ignore[union-attr]

    def view(state: CallsState, timestep: TimeStep, drawn: Array | None) -> tuple[CallsState, TimeStep]:
        mask = timestep.action_mask
        if max_calls is not None or drawn is not None:
            left = jnp.ones((), bool) if max_calls is None else state.num_calls < max_calls
            call = left if drawn is None else left & drawn
            alone = jnp.ones((), bool) if drawn is None else ~call
            mask = jnp.ones((num_agents, num_actions), bool) if mask is None else mask
            mask = jnp.concatenate([mask & alone, mask & call], axis=-1)
        elif mask is not None:
            mask = jnp.concatenate([mask, mask], axis=-1)
        observation = timestep.observation
        if max_calls is not None:
            observation = _append(observation, jnp.maximum(1.0 - state.num_calls / max_calls, 0.0))
        calls = state.num_calls.astype(jnp.float32)
        metrics = {"calls": calls, "call_rate": calls / jnp.maximum(state.num_steps, 1)}
        info = {**timestep.info, "metrics": {**timestep.info.get("metrics", {}), **metrics}}  # type: ignore[dict-item]
        return state, timestep.replace(observation=observation, action_mask=mask, info=info)

    def sample_task(key: Array, level: Array | None = None) -> Task:
        if call_probability is None:
            return environment.sample_task(key, level)
        world_key, call_key = jax.random.split(key)
        drawn = jax.random.bernoulli(call_key, call_probability)
        return {"world": environment.sample_task(world_key, level), "call": drawn}

    def reset(key: Array, task: Task) -> tuple[CallsState, TimeStep]:
        world, drawn = (task, None) if call_probability is None else (task["world"], task["call"])
        inner, timestep = environment.reset(key, world)
        none_yet = jnp.zeros((), jnp.int32)
        return view(CallsState(inner=inner, num_calls=none_yet, num_steps=none_yet), timestep, drawn)

    def step(key: Array, state: CallsState, action: Array) -> tuple[CallsState, TimeStep]:
        drawn = None
        if call_probability is not None:
            key, call_key = jax.random.split(key)
            drawn = jax.random.bernoulli(call_key, call_probability)
        inner, timestep = environment.step(key, state.inner, action % num_actions)
        num_calls = state.num_calls + jnp.any(action >= num_actions).astype(jnp.int32)
        state = CallsState(inner=inner, num_calls=num_calls, num_steps=state.num_steps + 1)
        return view(state, timestep, drawn)

    render = environment.render
    doubled = replace(
        environment,
        sample_task=sample_task,
        reset=reset,
        step=step,
        action_space=Discrete(2 * num_actions),
        observation_space=environment.observation_space if max_calls is None else _grown(environment),
        render=None if render is None else lambda state: render(state.inner),
    )
    return absorbing(doubled)


def _append(observation: PyTree, share: Array) -> PyTree:
    """Appends one number to what the team sees."""

    def append(leaf: Array) -> Array:
        return jnp.concatenate([leaf.astype(jnp.float32), jnp.broadcast_to(share, (leaf.shape[0], 1))], axis=-1)

    return (
        {**observation, "team": append(observation["team"])} if isinstance(observation, dict) else append(observation)
    )


def _grown(environment: Environment) -> PyTree:
    """Returns the observation space after `_append`."""
    space = environment.observation_space
    if isinstance(space, dict) and "team" in space:
        return {**space, "team": Box((space["team"].shape[0] + 1,))}
    if not isinstance(space, Box) or len(space.shape) != 1:
        raise ValueError(
            f"`environment` of `with_calls` must have vectors as observations to show what is left of `max_calls`, got "
            f"{space} in {environment.name!r}; try `flatten_observation` or `team_view`."
        )
    return Box((space.shape[0] + 1,))


def _check(environment: Environment, max_calls: Any, call_probability: Any) -> None:
    if not environment.num_agents:
        raise ValueError(
            f"`environment` of `with_calls` must have an agent axis, got {environment.name!r} without one; a single "
            "agent has nobody to be coordinated with."
        )
    if not isinstance(environment.action_space, Discrete) or environment.action_space.shape:
        raise ValueError(
            f"`environment` of `with_calls` must have one discrete action per agent, got {environment.action_space} in "
            f"{environment.name!r}."
        )
    if max_calls is not None and max_calls < 1:
        raise ValueError(f"`max_calls` must be at least 1 or null, got {max_calls}; try `learner=dqn` for no calls.")
    if call_probability is not None and not 0.0 <= call_probability <= 1.0:
        raise ValueError(f"`call_probability` must be in [0, 1] or null, got {call_probability}.")
