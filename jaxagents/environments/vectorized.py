"""Many copies of an environment, stepped and reset together."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from jaxagents.environments.timesteps import restart, with_successor
from jaxagents.ops.rows import where_rows
from jaxagents.types import Array, Environment, PyTree, State, TimeStep


class VectorEnvironment(NamedTuple):
    """A batch of environments with automatic resets; all random streams are folded in by global index.

    Attributes:
        reset: `(key, index [B]) -> (state, timestep)`, leaves `[B, ...]`.
        draw: `(key, index [B], num_steps) -> (draws, shared)`: all random numbers of the next `num_steps` steps, drawn
            in one batched call, because random bits are slow inside a loop. Leaves of `draws` are `[T, B, ...]`.
        step: `(state, action [B, ...], draws_t, shared) -> (state, timestep)`. If an episode ends, observation, action
            mask and player come from a new reset; reward and flags are those of the ended step, and
            `info["next_observation"]` (with masks, also `info["next_action_mask"]`) holds the true successor.
    """

    reset: Callable[[Array, Array], tuple[State, TimeStep]]
    draw: Callable[[Array, Array, int], tuple[PyTree, PyTree]]
    step: Callable[[State, Array, PyTree, PyTree], tuple[State, TimeStep]]


def vectorize(
    environment: Environment, *, reset_pool: int | None = None, level: int | None = None
) -> VectorEnvironment:
    """Batches an environment with automatic resets.

    Args:
        environment: environment without its own automatic resets.
        reset_pool: None: a new reset is computed for every step of every environment, in one batched call, which is
            exact, and cheap for array worlds. A number: so many resets per call of `draw`, from which resets are
            picked, for worlds whose resets are expensive or whose states are large.
        level: difficulty that is passed to `sample_task`.

    Returns:
        The batch as a record of functions.

    Raises:
        ValueError: `reset_pool` is not positive.
    """
    if reset_pool is not None and reset_pool < 1:
        raise ValueError(f"`reset_pool` must be at least 1 or null, got {reset_pool}; try 64.")

    def reset_one(key: Array) -> tuple[State, TimeStep]:
        task_key, reset_key = jax.random.split(key)
        return environment.reset(reset_key, environment.sample_task(task_key, level))

    def reset(key: Array, index: Array) -> tuple[State, TimeStep]:
        state, timestep = jax.vmap(lambda i: reset_one(jax.random.fold_in(key, i)))(index)
        return state, with_successor(timestep, timestep)

    def draw(key: Array, index: Array, num_steps: int) -> tuple[PyTree, PyTree]:
        step_key, reset_key, pool_key = jax.random.split(key, 3)

        def stream(stream_key: Array) -> Array:
            return jax.vmap(lambda i: jax.random.split(jax.random.fold_in(stream_key, i), num_steps), out_axes=1)(index)

        if reset_pool is None:
            return (stream(step_key), jax.vmap(jax.vmap(reset_one))(stream(reset_key))), None
        indices = jax.vmap(jax.vmap(lambda k: jax.random.randint(k, (), 0, reset_pool)))(stream(reset_key))
        return (stream(step_key), indices), jax.vmap(reset_one)(jax.random.split(pool_key, reset_pool))

    def step(state: State, action: Array, draws: PyTree, shared: PyTree) -> tuple[State, TimeStep]:
        keys, fresh = draws
        if reset_pool is not None:
            fresh = jax.tree.map(lambda leaf: leaf[fresh], shared)
        fresh_state, fresh_timestep = fresh
        state, timestep = jax.vmap(environment.step)(keys, state, action)
        ended = timestep.terminated | timestep.truncated
        state, following = where_rows(ended, (fresh_state, restart(timestep, fresh_timestep)), (state, timestep))
        return state, with_successor(following, timestep)

    return VectorEnvironment(reset=reset, draw=draw, step=step)
