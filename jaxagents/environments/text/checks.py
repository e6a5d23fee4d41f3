"""Checks of a text world that have to run it: that its tasks can be split, and that its expert solves them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text.builder import identity_hash, make_text_world
from jaxagents.environments.text.splits import SampleTask
from jaxagents.environments.text.world import World
from jaxagents.types import Array, Environment, State


def require_playable(world: World, *, held_out_fraction: float = 0.25, num_tasks: int = 64) -> Environment:
    """Checks a world by playing it, and makes its environment.

    This compiles and runs the world, which takes seconds, and is for whoever writes one.

    Args:
        world: the rules.
        held_out_fraction: of the tasks.
        num_tasks: per level and side that the expert has to solve; sixteen times as many are drawn to be split.

    Returns:
        The environment, of `make_text_world` with its defaults.

    Raises:
        ValueError: see `make_text_world`; a level has no tasks on one side; or the expert fails at a task, which in a
            game is to end it by other than its rules.
    """
    require_split(world, held_out_fraction, num_tasks=num_tasks)
    environment = make_text_world(world, held_out_fraction=held_out_fraction)
    keys = jax.random.split(jax.random.key(0), world.num_levels * num_tasks)
    levels = jnp.arange(len(keys)) // num_tasks
    for side, sample in (("training", environment.sample_task), ("held-out", environment.text.sample_held_out_task)):
        success = np.asarray(jax.jit(jax.vmap(partial(_solve, environment, sample)))(keys, levels))
        if not success.all():
            level = int(levels[np.argmin(success)])
            raise ValueError(
                f"`expert` of {world.name!r} must solve its tasks within {world.max_steps} turns, got "
                f"{success.mean():.0%} of the {side} ones, and failures at level {level}."
            )
    return environment


def require_split(world: World, held_out_fraction: float, *, num_tasks: int = 64) -> None:
    """Refuses a world of which a level has no tasks on one side of the split.

    It cannot be found out inside of a compiled program, which would draw tasks for ever.

    Args:
        world: the rules.
        held_out_fraction: of the tasks.
        num_tasks: that are drawn at a time, at most sixteen times per level, until there are some on both sides.

    Raises:
        ValueError: all of these tasks are on one side.
    """
    keys = jax.random.split(jax.random.key(0), (16, num_tasks))
    of_task = identity_hash(world)
    hashes = jax.jit(jax.vmap(lambda key, level: of_task(world.sample(key, level)), in_axes=(0, None)))
    for level in range(world.num_levels):
        shares = (np.mean(np.asarray(hashes(row, jnp.int32(level))) < held_out_fraction * 2**32) for row in keys)
        if all(share in (0.0, 1.0) for share in shares):
            raise ValueError(
                f"`held_out_fraction` must leave level {level} of {world.name!r} tasks on both sides, got "
                f"{held_out_fraction} and all of {keys.size} tasks on one; try more tasks or another `identity`."
            )


def _solve(environment: Environment, sample: SampleTask, key: Array, level: Array) -> Array:
    """Returns whether the expert solves a task within the limit."""

    def act(state: State, key: Array) -> tuple[State, Array]:
        expert_key, step_key = jax.random.split(key)
        state, timestep = environment.step(step_key, state, environment.text.expert(expert_key, state)[0])
        return state, timestep.info["success"]

    state, _ = environment.reset(key, sample(key, level))
    return jax.lax.scan(act, state, jax.random.split(key, environment.max_steps))[1].any()
