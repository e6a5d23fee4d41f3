"""Games that open with a few random moves, so that self-play sees more than its favourite lines."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagents.types import Array, Discrete, Environment, State, Task, TimeStep


def random_openings(environment: Environment, max_moves: int) -> Environment:
    """Plays 0 to `max_moves` random moves at every reset; a move that would end the game is not played.

    The number of moves is uniform, and so is every move among the allowed ones. These moves earn no rewards.

    Args:
        environment: environment with discrete actions, without automatic resets.
        max_moves: maximum number of moves of all players together; 0 changes nothing.

    Returns:
        The environment, with the same states.

    Raises:
        ValueError: `max_moves` is negative or the actions are not discrete.
    """
    if max_moves < 0:
        raise ValueError(f"`max_moves` must not be negative, got {max_moves}; try 0 for none.")
    if max_moves == 0:
        return environment
    if not isinstance(environment.action_space, Discrete):
        raise ValueError(f"`action_space` must be Discrete for random openings, got {environment.action_space}.")
    num_actions = environment.action_space.num_values

    def reset(key: Array, task: Task) -> tuple[State, TimeStep]:
        count_key, reset_key, key = jax.random.split(key, 3)
        num_moves = jax.random.randint(count_key, (), 0, max_moves + 1)
        start = environment.reset(reset_key, task)

        def move(index: Array, current: tuple[State, TimeStep]) -> tuple[State, TimeStep]:
            action_key, step_key = jax.random.split(jax.random.fold_in(key, index))
            mask = current[1].action_mask
            mask = jnp.ones(num_actions, bool) if mask is None else mask
            action = jax.random.categorical(action_key, jnp.where(mask, 0.0, -jnp.inf)).astype(jnp.int32)
            following = environment.step(step_key, current[0], action)
            played = (index < num_moves) & ~(following[1].terminated | following[1].truncated)
            return jax.tree.map(lambda new, old: jnp.where(played, new, old), following, current)

        state, timestep = jax.lax.fori_loop(0, max_moves, move, start)
        # Everything else from the reset is kept, such as which player the next reward belongs to.
        return state, timestep.replace(reward=start[1].reward, info=start[1].info)

    return replace(environment, reset=reset)
