"""Continuous control of brax (Freeman et al., 2021)."""

from functools import partial
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
from jaxagents.environments.adapters.rendering import render_points
from jaxagents.environments.timesteps import first_timestep
from jaxagents.environments.wrappers import time_limit
from jaxagents.types import Array, Box, Environment, State, Task, TimeStep

_FLAT = ("reacher", "pusher")  # Seen from above.
BACKENDS = ("generalized", "mjx", "positional", "spring")


def make_environment(name: str, *, backend: str = "spring", max_steps: int = 1000, **options: Any) -> Environment:
    """Makes an environment of brax, without brax's own wrappers.

    The task `{"key": uint32 [2]}` fixes the initial state. Falling over terminates; `max_steps` truncates.

    Args:
        name: brax's name, for example "ant", "reacher" or "fast".
        backend: physics: "spring" is the fastest, then "positional", "generalized" and "mjx" (MuJoCo).
        max_steps: maximum control steps of an episode.
        **options: arguments of the environment's constructor, for example `ctrl_cost_weight`.

    Returns:
        The environment; actions are in [-1, 1].

    Raises:
        ModuleNotFoundError: brax is not installed.
        ValueError: `name` or `backend` is unknown, or `max_steps` is below 1.
    """
    if backend not in BACKENDS:
        raise ValueError(f"`backend` must be one of {', '.join(BACKENDS)}, got {backend!r}; try 'spring'.")
    suite = import_suite("brax.envs")
    require_name(name, suite._envs, "brax")
    with options_of(name, options):
        world = suite.get_environment(name, backend=backend, **options)
    world_reset, world_step = permissive(world.reset), permissive(world.step)

    def reset(key: Array, task: Task) -> tuple[State, TimeStep]:
        del key
        state = strong_types(world_reset(task_key(task)))
        return state, first_timestep(state.obs)

    def step(key: Array, state: State, action: Array) -> tuple[State, TimeStep]:
        del key
        state = strong_types(world_step(state, action))
        timestep = TimeStep(
            observation=state.obs,
            reward=state.reward.astype(jnp.float32),
            terminated=state.done > 0,
            truncated=jnp.zeros((), bool),
        )
        return state, timestep

    first = jax.eval_shape(world_reset, jax.random.key(0))
    environment = Environment(
        name=name,
        sample_task=sample_key_task,
        reset=reset,
        step=step,
        observation_space=jax.tree.map(lambda leaf: unbounded_space(leaf.shape, leaf.dtype), first.obs),
        action_space=Box((world.action_size,), -1.0, 1.0),
        max_steps=max_steps,
        render=None if name == "fast" else partial(_render, flat=name in _FLAT),  # "fast" has no bodies.
    )
    return time_limit(environment, max_steps)


def _render(state: State, *, flat: bool) -> str:
    """Draws the bodies by their numbers, seen from the side and centred on the first one, or from above."""
    places = np.asarray(state.pipeline_state.x.pos)
    seen = places[:, :2] if flat else places[:, [0, 2]] - [places[0, 0], 0.0]
    low, high = ((-0.3, -0.3), (0.3, 0.3)) if flat else ((-1.5, 0.0), (1.5, 1.6))
    frame = render_points([(f"{index % 10}", place) for index, place in enumerate(seen)], low, high)
    return f"{frame}\nx {places[0, 0]:+.2f} m, height {places[0, 2]:.2f} m"
