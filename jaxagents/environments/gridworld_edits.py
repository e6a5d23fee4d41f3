"""Small edits of mazes, for curricula that evolve known levels (ACCEL)."""

import jax
import jax.numpy as jnp

from jaxagents.environments.contextual_gridworld import is_connected
from jaxagents.types import Array, Task


def edit_layout(key: Array, task: Task, *, num_edits: int = 5) -> Task:
    """Turns cells of a maze into walls and back, except edits that cut off the goal, or hit start or goal.

    Args:
        key: PRNG key.
        task: task of `contextual_gridworld`.
        num_edits: number of cells, drawn uniformly with replacement.

    Returns:
        The task; start and goal are unchanged.

    Raises:
        ValueError: `num_edits` is not positive.

    References:
        Parker-Holder et al. (2022), Evolving curricula with regret-based environment design, section 4.

    Deviation: only walls are edited; the paper's editor also moves the goal.
    """
    if num_edits < 1:
        raise ValueError(f"`num_edits` must be at least 1, got {num_edits}; try 5.")
    size = task["walls"].shape[0]

    def edit(walls: Array, cell: Array) -> tuple[Array, None]:
        place = jnp.stack(jnp.divmod(cell, size))
        changed = walls.at[place[0], place[1]].set(~walls[place[0], place[1]])
        taken = jnp.all(place == task["start"]) | jnp.all(place == task["goal"])
        keep = ~taken & is_connected(changed, task["start"], task["goal"])
        return jnp.where(keep, changed, walls), None

    walls, _ = jax.lax.scan(edit, task["walls"], jax.random.randint(key, (num_edits,), 0, size * size))
    return {**task, "walls": walls}
