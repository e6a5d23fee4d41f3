"""Combinatorial problems, puzzles and teams of jumanji (Bonnet et al., 2024)."""

import math
from collections.abc import Callable, Sequence
from typing import Any

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
from jaxagents.environments.adapters.importing import import_suite, options_of, require_name
from jaxagents.environments.adapters.rendering import render_channels
from jaxagents.environments.timesteps import first_timestep
from jaxagents.environments.wrappers import time_limit
from jaxagents.types import Array, Discrete, Environment, PyTree, State, Task, TimeStep

_TEAMS = {
    "Cleaner-v0": ("agents_locations",),
    "LevelBasedForaging-v0": ("agents_view",),
    "RobotWarehouse-v0": ("agents_view",),
}
"""Environments with an agent axis, and the fields of their observations that have it."""

_LEFT_OUT = ("Connector-v3", "JobShop-v0", "MMST-v0", "MultiCVRP-v0", "SearchAndRescue-v0")
"""Agents of Connector have no view of their own; the others' actions are neither one per agent nor one joint choice."""


def make_environment(
    name: str, *, fields: str | Sequence[str] | None = None, max_steps: int | None = None, **options: Any
) -> Environment:
    """Makes an environment of jumanji.

    The observation is a dict of the suite's fields without the action mask. Actions with several discrete parts become
    one index, in the order of `jnp.unravel_index`. With agents, fields that the suite gives once are repeated for every
    agent, and a team reward goes to each of them. The task `{"key": uint32 [2]}` determines the instance.

    Args:
        name: name registered in jumanji, for example "Snake-v1" or "LevelBasedForaging-v0".
        fields: fields of the observation to keep; a single string: only that array; None: all.
        max_steps: maximum steps after which episodes are truncated; None: the suite's limit, or 1000 if it has none.
        **options: arguments of the environment's constructor. Sokoban receives the generator that needs no download.

    Returns:
        The environment.

    Raises:
        ModuleNotFoundError: jumanji is not installed.
        ValueError: `name` or `fields` is unknown, or `max_steps` is below 1.
    """
    with options_of(name, options):
        world, max_steps = _build(name, max_steps, options)
    num_agents, leading = (world.num_agents, 1) if name in _TEAMS else (0, 0)
    world_reset, world_step = permissive(world.reset), permissive(world.step)
    observe = _observer(name, fields, num_agents)
    num_values = np.asarray(world.action_spec.num_values)
    joint = num_values.ndim > 0 and not num_agents

    def view(timestep: Any) -> tuple[PyTree, Array | None]:
        mask = getattr(timestep.observation, "action_mask", None)
        return observe(timestep.observation), mask.reshape(-1) if joint and mask is not None else mask

    def reset(key: Array, task: Task) -> tuple[State, TimeStep]:
        del key
        state, timestep = strong_types(world_reset(task_key(task)))
        observation, action_mask = view(timestep)
        shape = (num_agents,) if num_agents else ()
        return state, first_timestep(observation, reward_shape=shape, action_mask=action_mask)

    def step(key: Array, state: State, action: Array) -> tuple[State, TimeStep]:
        action = jnp.stack(jnp.unravel_index(action, tuple(num_values))) if joint else action
        # The suite's state has its own key, which is replaced, so that the noise of a step comes from the caller's key.
        state, timestep = strong_types(world_step(state.replace(key=key), action.astype(jnp.int32)))
        observation, action_mask = view(timestep)
        final = timestep.last()
        terminated = final & jnp.all(timestep.discount == 0)
        reward = timestep.reward.astype(jnp.float32)
        following = TimeStep(
            observation=observation,
            reward=jnp.broadcast_to(reward, (num_agents,)) if num_agents else reward,
            terminated=terminated,
            truncated=final & ~terminated,
            action_mask=action_mask,
        )
        return state, following

    sample = jax.eval_shape(lambda: reset(jax.random.key(0), sample_key_task(jax.random.key(0))))[1].observation
    environment = Environment(
        name=name,
        sample_task=sample_key_task,
        reset=reset,
        step=step,
        observation_space=jax.tree.map(lambda leaf: unbounded_space(leaf.shape[leading:], leaf.dtype), sample),
        action_space=Discrete(math.prod(num_values.tolist()) if joint else int(num_values.max())),
        max_steps=max_steps,
        num_agents=num_agents,
        render=_renderer(name, world),
    )
    return time_limit(environment, max_steps)


def _build(name: str, max_steps: int | None, options: dict[str, Any]) -> tuple[Any, int]:
    suite = import_suite("jumanji")
    known = [registered for registered in suite.registered_environments() if registered not in _LEFT_OUT]
    require_name(name, known, "jumanji")
    if name == "Sokoban-v0" and "generator" not in options:
        options = {
            **options,
            "generator": import_suite("jumanji.environments.routing.sokoban.generator").SimpleSolveGenerator(),
        }
    limit = getattr(suite.make(name, **options), "time_limit", None)
    if max_steps is None:
        max_steps = 1000 if limit is None else limit
    if limit is not None:
        # Most worlds say "terminated" at their own limit; with one step more, that limit never shows.
        options = {**options, "time_limit": max_steps + 1}
    return suite.make(name, **options), max_steps


def _observer(name: str, fields: str | Sequence[str] | None, num_agents: int) -> Callable[[Any], PyTree]:
    def repeat(field: str, leaf: PyTree) -> PyTree:
        if not num_agents or field in _TEAMS[name]:
            return leaf
        return jax.tree.map(lambda array: jnp.broadcast_to(array, (num_agents, *array.shape)), leaf)

    def observe(observation: Any) -> PyTree:
        every = {field: leaf for field, leaf in observation._asdict().items() if field != "action_mask"}
        wanted = list(every) if fields is None else [fields] if isinstance(fields, str) else list(fields)
        missing = [field for field in wanted if field not in every]
        if missing:
            raise ValueError(f"`fields` must be fields of the observation of {name}, got {missing}; try {list(every)}.")
        kept = {field: repeat(field, every[field]) for field in wanted}
        return kept[fields] if isinstance(fields, str) else kept

    return observe


def _renderer(name: str, world: Any) -> Callable[[State], str] | None:
    if name != "Snake-v1":
        return None
    # Channels are body, head, tail, fruit and the order of the body: head and fruit are drawn over the body.
    return lambda state: render_channels(np.asarray(world._state_to_observation(state).grid)[..., [1, 3, 2, 0]], "@F-o")
