"""Checks that run a text world: that its tasks can be split, and that its expert solves them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text.builder import identity_hash, make_text_world
from jaxagents.environments.text.splits import SampleTask
from jaxagents.environments.text.world import World
from jaxagents.types import Array, Environment, State

_HELD_OUT_FRACTION = 0.25  # Held-out fraction for worlds that are checked by playing.
_NUM_TASKS = 8  # Per level; an expert that is imitated must solve one of them.


def require_playable(world: World, *, num_tasks: int = 64) -> Environment:
    """Checks a world by playing it, and makes its environment.

    This compiles and runs the world, which takes seconds, and is for authors of worlds.

    Args:
        world: rules of the world.
        num_tasks: number of tasks per level and side that the expert must solve; 16 times as many are drawn for the
            split.

    Returns:
        The environment of `make_text_world` with default arguments.

    Raises:
        ValueError: see `make_text_world`; a level has no tasks on one side; or the expert fails at a task, which in a
            game means that the game does not end by its rules.
    """
    require_split(world, _HELD_OUT_FRACTION, num_tasks=16 * num_tasks)
    environment = make_text_world(world, held_out_fraction=_HELD_OUT_FRACTION)
    for side, sample in (("training", environment.sample_task), ("held-out", environment.text.sample_held_out_task)):
        success = _solved(environment, sample, world.num_levels, num_tasks)
        if not success.all():
            level = int(np.argmin(success.all(axis=1)))
            raise ValueError(
                f"`expert` of {world.name!r} must solve its tasks within {world.max_steps} turns, got "
                f"{success.mean():.0%} of the {side} ones, and failures at level {level}."
            )
    return environment


def require_split(world: World, held_out_fraction: float, *, num_tasks: int = 1024) -> None:
    """Refuses a world in which a level has no tasks on one side of the split.

    A compiled program could not detect this, and would draw tasks for ever.

    Args:
        world: rules of the world.
        held_out_fraction: fraction of the tasks that are held out.
        num_tasks: maximum number of tasks that are drawn per level, until there are some on both sides.

    Raises:
        ValueError: all of these tasks are on one side.
    """
    one_sided = _one_sided_level(world, held_out_fraction, num_tasks)
    if one_sided is not None:
        raise ValueError(
            f"`held_out_fraction` must leave level {one_sided} of {world.name!r} tasks on both sides, got "
            f"{held_out_fraction} and all of {num_tasks} tasks on one; try more tasks or another `identity`."
        )


def require_expert(environment: Environment) -> None:
    """Refuses a text world whose expert solves nothing, before a policy is trained on its demonstrations.

    This compiles and plays the world, which takes a second or two. An expert that fails at only some of its tasks is
    found by `require_playable`, and by the row of the expert that `evaluate.py baselines=true` prints.

    Args:
        environment: environment of `make_text_world`; any other environment passes.

    Raises:
        ValueError: the expert solves none of the tasks of a level; in a game, it never ends one by its rules.
    """
    rules = None if environment.text is None else environment.text.rules
    if rules is None:
        return
    solved = _solved(environment, environment.sample_task, rules.num_levels, _NUM_TASKS).any(axis=1)
    if not solved.all():
        raise ValueError(
            f"`expert` of {rules.name!r} must solve its tasks within {rules.max_steps} turns, got none of {_NUM_TASKS} "
            f"at level {int(np.argmin(solved))}; try more turns, or `require_playable`, while you write the world."
        )


def _one_sided_level(world: World, held_out_fraction: float, num_tasks: int) -> int | None:
    """Returns a level whose tasks are all on one side; None if there is none."""
    of_task = identity_hash(world)
    # Rows of numpy: indexing a key array would compile a separate program.
    keys = np.asarray(jax.random.key_data(jax.random.split(jax.random.key(0), num_tasks)))

    def draw_one(key: Array, level: Array) -> Array:
        return of_task(world.sample(jax.random.wrap_key_data(key), level))

    draw = _compiled(draw_one, keys[0], jnp.int32(0))
    for level in range(world.num_levels):
        held_out = (int(draw(key, jnp.int32(level))) < held_out_fraction * 2**32 for key in keys)
        first = next(held_out)
        if all(side == first for side in held_out):
            return level
    return None


def _compiled(function: Callable[..., Any], *inputs: Array) -> Callable[..., Any]:
    """Compiles a function that runs only a few times; with optimisations, it would take up to three times as long."""
    program = jax.jit(function).lower(*inputs)
    on_cpu = jax.default_backend() == "cpu"
    return program.compile(compiler_options={"xla_backend_optimization_level": "0"} if on_cpu else None)


def _solved(environment: Environment, sample: SampleTask, num_levels: int, num_tasks: int) -> np.ndarray:
    """Returns which of the tasks of each level the expert solves, bool [levels, tasks]."""
    keys = jax.random.split(jax.random.key(0), num_levels * num_tasks)
    levels = jnp.arange(len(keys)) // num_tasks
    success = _compiled(jax.vmap(partial(_solve, environment, sample)), keys, levels)(keys, levels)
    return np.asarray(success).reshape(num_levels, num_tasks)


def _solve(environment: Environment, sample: SampleTask, key: Array, level: Array) -> Array:
    """Returns whether the expert solves a task within the limit."""

    def act(state: State, key: Array) -> tuple[State, Array]:
        expert_key, step_key = jax.random.split(key)
        state, timestep = environment.step(step_key, state, environment.text.expert(expert_key, state)[0])
        return state, timestep.info["success"]

    state, _ = environment.reset(key, sample(key, level))
    return jax.lax.scan(act, state, jax.random.split(key, environment.max_steps))[1].any()
