"""Classic control, MinAtar, bsuite and small worlds of gymnax (Lange, 2022)."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.adapters.conversion import (
    cast_like,
    convert_actions,
    convert_space,
    permissive,
    sample_key_task,
    task_key,
)
from jaxagents.environments.adapters.importing import drawing_later, import_suite, options_of, require_name
from jaxagents.environments.adapters.rendering import render_cartpole, render_channels
from jaxagents.environments.timesteps import first_timestep
from jaxagents.environments.wrappers import absorbing
from jaxagents.types import Array, Environment, State, Task, TimeStep


def make_environment(name: str, params: Mapping[str, Any] | None = None, **options: Any) -> Environment:
    """Makes an environment of gymnax.

    The task `{"key": uint32 [2]}` determines the initial state. Reaching the suite's own step limit truncates. If the
    bounds of actions differ between their numbers, policies act in [-1, 1], which is scaled to the bounds of every
    number.

    Args:
        name: name registered in gymnax, for example "CartPole-v1" or "Breakout-MinAtar".
        params: values to replace in the environment's default parameters, for example `max_steps_in_episode`.
        **options: arguments of the environment's constructor.

    Returns:
        The environment.

    Raises:
        ModuleNotFoundError: gymnax is not installed.
        ValueError: `name` or `params` is unknown.
    """
    with drawing_later():
        registration = import_suite("gymnax.registration", extra="gymnax")
    require_name(name, registration.registered_envs, "gymnax")
    with options_of(name, options, f"try {' '.join(f'+environment.params.{option}=...' for option in options)}"):
        suite, defaults = registration.make(name, **options)
    environment_params = _replace_params(defaults, params or {})
    step_env = permissive(suite.step_env)
    reset_env = permissive(suite.reset_env)
    is_truncated = permissive(suite.is_truncated)

    def first(task: Task) -> tuple[Array, State]:
        return reset_env(task_key(task), environment_params)

    def following(key: Array, state: State, action: Array) -> tuple[Array, State, Array, Array, Array]:
        observation, state, reward, terminated, _ = step_env(key, state, to_suite(action), environment_params)
        return observation, state, reward, terminated, is_truncated(state, environment_params)

    action_space, to_suite = convert_actions(suite.action_space(environment_params))
    observation_space = convert_space(suite.observation_space(environment_params))
    # Resets of gymnax hold Python numbers where steps hold arrays: after two steps, the types are stable.
    key = jax.random.key(0)
    action = jnp.zeros(action_space.shape, action_space.dtype)
    types = jax.eval_shape(lambda: first(sample_key_task(key)))
    for _ in range(2):
        types = jax.eval_shape(lambda state: following(key, state, action)[:2], types[1])

    def reset(key: Array, task: Task) -> tuple[State, TimeStep]:
        del key
        observation, state = cast_like(types, first(task))
        return state, first_timestep(observation)

    def step(key: Array, state: State, action: Array) -> tuple[State, TimeStep]:
        observation, state, reward, terminated, truncated = following(key, state, action)
        observation, state = cast_like(types, (observation, state))
        terminated = jnp.asarray(terminated, bool)
        timestep = TimeStep(
            observation=observation,
            reward=jnp.asarray(reward, jnp.float32),
            terminated=terminated,
            truncated=jnp.asarray(truncated, bool) & ~terminated,
        )
        return state, timestep

    return absorbing(
        Environment(
            name=name,
            sample_task=sample_key_task,
            reset=reset,
            step=step,
            observation_space=observation_space,
            action_space=action_space,
            max_steps=int(environment_params.max_steps_in_episode),
            render=_renderer(name, suite, environment_params),
        )
    )


def _replace_params(defaults: Any, params: Mapping[str, Any]) -> Any:
    fields = sorted(vars(defaults))
    unknown = sorted(set(params) - set(fields))
    if unknown:
        raise ValueError(f"`params` must name parameters of the environment, got {unknown}; try {', '.join(fields)}.")
    return defaults.replace(**params)


def _renderer(name: str, suite: Any, params: Any) -> Callable[[State], str] | None:
    if name == "CartPole-v1":
        return lambda state: render_cartpole(float(state.x), float(state.theta), float(params.x_threshold))
    if name.endswith("-MinAtar"):
        return lambda state: render_channels(np.asarray(suite.get_obs(state)))
    return None
