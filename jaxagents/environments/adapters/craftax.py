"""Craftax and Craftax-Classic (Matthews et al., 2024)."""

from typing import Any

import jax.numpy as jnp

from jaxagents.environments.adapters.conversion import (
    convert_space,
    permissive,
    sample_key_task,
    strong_types,
    task_key,
)
from jaxagents.environments.adapters.importing import import_suite, options_of, require_name
from jaxagents.environments.timesteps import first_timestep
from jaxagents.environments.wrappers import time_limit
from jaxagents.types import Array, Environment, State, Task, TimeStep

NAMES = ("Craftax-Classic-Pixels-v1", "Craftax-Classic-Symbolic-v1", "Craftax-Pixels-v1", "Craftax-Symbolic-v1")


def make_environment(name: str, *, max_steps: int | None = None, **options: Any) -> Environment:
    """Makes a world of Craftax without the suite's auto-reset.

    The task `{"key": uint32 [2]}` determines the world. Generating a world costs as much as hundreds of steps, so
    resets should come from a pool. Death terminates (and victory in Craftax); `max_steps` truncates.

    Args:
        name: name of the suite, for example "Craftax-Classic-Symbolic-v1".
        max_steps: maximum steps of an episode; None: the suite's limit of 10,000 (Classic) or 100,000.
        **options: values to replace in the environment's default parameters.

    Returns:
        The environment.

    Raises:
        ModuleNotFoundError: craftax is not installed.
        ValueError: `name` is unknown, or `max_steps` is below 1.
    """
    suite = import_suite("craftax.craftax_env")
    world = suite.make_craftax_env_from_name(require_name(name, NAMES, "craftax"), auto_reset=False)
    with options_of(name, options):
        params = world.default_params.replace(**options)
    max_steps = params.max_timesteps if max_steps is None else max_steps
    # At its own limit, the suite ends the world as if the agent had died; with one step more, this never shows.
    params = params.replace(max_timesteps=max_steps + 1)
    reset_env, step_env = permissive(world.reset_env), permissive(world.step_env)

    def reset(key: Array, task: Task) -> tuple[State, TimeStep]:
        del key
        observation, state = strong_types(reset_env(task_key(task), params))
        return state, first_timestep(observation)

    def step(key: Array, state: State, action: Array) -> tuple[State, TimeStep]:
        observation, state, reward, terminated, _ = step_env(key, state, action, params)
        observation, state = strong_types((observation, state))
        timestep = TimeStep(
            observation=observation,
            reward=jnp.asarray(reward, jnp.float32),
            terminated=jnp.asarray(terminated, bool),
            truncated=jnp.zeros((), bool),
        )
        return state, timestep

    environment = Environment(
        name=name,
        sample_task=sample_key_task,
        reset=reset,
        step=step,
        observation_space=convert_space(world.observation_space(params)),
        action_space=convert_space(world.action_space(params)),
        max_steps=max_steps,
    )
    return time_limit(environment, max_steps)
