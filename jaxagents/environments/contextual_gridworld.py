"""A grid with walls and a goal, drawn per task: one layout is one context (Hallak et al., 2015)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.timesteps import first_timestep
from jaxagents.environments.wrappers import absorbing
from jaxagents.types import Array, Box, Discrete, Environment, Task, TimeStep

MOVES = np.asarray([(-1, 0), (0, 1), (1, 0), (0, -1)], np.int32)
"""Row and column of the actions up, right, down, left."""


@struct.dataclass
class GridworldState:
    """State of the grid world.

    Attributes:
        task: the task of the episode.
        position: int32 `[2]`, row and column.
        num_steps: int32, steps taken.
    """

    task: Task
    position: Array
    num_steps: Array


def make_environment(
    size: int = 8,
    *,
    max_obstacles: int | None = None,
    observe_goal: bool = True,
    goal_reward: float = 1.0,
    step_penalty: float = 0.0,
    max_steps: int | None = None,
) -> Environment:
    """Makes a grid world whose layouts are tasks.

    The task is `{"walls": bool [S, S], "start": int32 [2], "goal": int32 [2]}`; `level` is the number of obstacles.
    Every layout can be solved. The observation float32 `[S, S, C]` has the channels agent, wall and, with
    `observe_goal`, goal. Walls and borders block a move. `info["success"]` is set in the step that reaches the goal.

    Args:
        size: S, cells per side.
        max_obstacles: the highest level; None for the maximum that always fits, a quarter of the cells. Without a
            level, the number is drawn uniformly from 0 to this.
        observe_goal: whether the observation shows the goal.
        goal_reward: reward of reaching the goal.
        step_penalty: penalty subtracted from the reward of every step.
        max_steps: steps before truncation; None: the number of cells.

    Returns:
        The environment.

    Raises:
        ValueError: the grid is smaller than 2, there are more obstacles than always fit, or `max_steps` is below 1.

    References:
        Hallak, Di Castro and Mannor (2015), Contextual Markov Decision Processes.
    """
    if size < 2:
        raise ValueError(f"`size` must be at least 2, got {size}; try 8.")
    max_obstacles, max_steps = fill_in_limits(size, max_obstacles, max_steps)

    def sample_task(key: Array, level: Array | None = None) -> Task:
        level_key, layout_key = jax.random.split(key)
        level = jax.random.randint(level_key, (), 0, max_obstacles + 1) if level is None else level
        return sample_layout(layout_key, size, jnp.clip(level, 0, max_obstacles))

    def observe(state: GridworldState) -> Array:
        layers = [mark(size, state.position), state.task["walls"]]
        if observe_goal:
            layers.append(mark(size, state.task["goal"]))
        return jnp.stack(layers, axis=-1).astype(jnp.float32)

    def reset(key: Array, task: Task) -> tuple[GridworldState, TimeStep]:
        del key
        state = GridworldState(task=task, position=task["start"], num_steps=jnp.zeros((), jnp.int32))
        return state, first_timestep(observe(state), info={"success": jnp.zeros((), bool)})

    def step(key: Array, state: GridworldState, action: Array) -> tuple[GridworldState, TimeStep]:
        del key
        target = jnp.clip(state.position + jnp.asarray(MOVES)[action], 0, size - 1)
        blocked = state.task["walls"][target[0], target[1]]
        state = state.replace(position=jnp.where(blocked, state.position, target), num_steps=state.num_steps + 1)
        success = jnp.all(state.position == state.task["goal"])
        timestep = TimeStep(
            observation=observe(state),
            reward=(jnp.where(success, goal_reward, 0.0) - step_penalty).astype(jnp.float32),
            terminated=success,
            truncated=(state.num_steps >= max_steps) & ~success,
            info={"success": success},
        )
        return state, timestep

    return absorbing(
        Environment(
            name="contextual-gridworld",
            sample_task=sample_task,
            reset=reset,
            step=step,
            observation_space=Box((size, size, 3 if observe_goal else 2), 0.0, 1.0),
            action_space=Discrete(len(MOVES)),
            max_steps=max_steps,
            render=render,
            num_levels=max_obstacles + 1,
        )
    )


def fill_in_limits(size: int, max_obstacles: int | None, max_steps: int | None) -> tuple[int, int]:
    """Returns the maximum obstacles and steps of a grid; defaults are a quarter of its cells, and all of its cells.

    Args:
        size: cells per side.
        max_obstacles: number of obstacles, or None for the maximum that always fits.
        max_steps: steps before truncation, or None.

    Raises:
        ValueError: there are more obstacles than always fit, or `max_steps` is below 1.
    """
    most = size * size // 4
    max_obstacles = most if max_obstacles is None else max_obstacles
    if not 0 <= max_obstacles <= most:
        raise ValueError(f"`max_obstacles` must be from 0 to {most} in a grid of {size}, got {max_obstacles}.")
    max_steps = size * size if max_steps is None else max_steps
    if max_steps < 1:
        raise ValueError(f"`max_steps` must be at least 1, got {max_steps}; try {size * size}.")
    return max_obstacles, max_steps


def sample_layout(key: Array, size: int, num_obstacles: Array) -> Task:
    """Draws start, goal and obstacles such that the goal can be reached.

    Obstacles are proposed in a random order of the cells; one that would cut off the goal is left out. When every
    further obstacle would, the free cells form a path without a shortcut, which never fills more than three quarters of
    a grid, so that a quarter of the cells can always be placed.

    Args:
        key: PRNG key.
        size: S, cells per side.
        num_obstacles: int32 `[]`, at most `size * size // 4`.

    Returns:
        The task.
    """
    order = jax.random.permutation(key, size * size)
    start, goal = (jnp.stack(jnp.divmod(cell, size)) for cell in (order[0], order[1]))

    def unfinished(carry: tuple[Array, Array, Array]) -> Array:
        _, placed, proposal = carry
        return (placed < num_obstacles) & (proposal < size * size)

    def propose(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        walls, placed, proposal = carry
        row, column = jnp.divmod(order[proposal], size)
        candidate = walls.at[row, column].set(True)
        keep = is_connected(candidate, start, goal)
        return jnp.where(keep, candidate, walls), placed + keep, proposal + 1

    nothing = jnp.zeros((size, size), bool)
    walls, _, _ = jax.lax.while_loop(unfinished, propose, (nothing, jnp.zeros((), jnp.int32), jnp.asarray(2)))
    return {"walls": walls, "start": start, "goal": goal}


def is_connected(walls: Array, start: Array, goal: Array) -> Array:
    """Computes whether free cells connect two cells, by flood fill from the first.

    Args:
        walls: bool `[S, S]`.
        start: int32 `[2]`.
        goal: int32 `[2]`.

    Returns:
        Bool `[]`.
    """
    size = walls.shape[0]

    def spread(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        reached, _ = carry
        padded = jnp.pad(reached, 1)
        near = padded[:-2, 1:-1] | padded[2:, 1:-1] | padded[1:-1, :-2] | padded[1:-1, 2:]
        grown = reached | (near & ~walls)
        return grown, jnp.any(grown != reached)

    def growing(carry: tuple[Array, Array]) -> Array:
        reached, grew = carry
        return grew & ~reached[goal[0], goal[1]]

    reached, _ = jax.lax.while_loop(growing, spread, (mark(size, start), jnp.ones((), bool)))
    return reached[goal[0], goal[1]]


def mark(size: int, position: Array) -> Array:
    """Returns bool `[S, S]`, True at one cell."""
    rows, columns = jnp.arange(size) == position[0], jnp.arange(size) == position[1]
    return rows[:, None] & columns[None, :]


def render(state: GridworldState) -> str:
    """Draws the grid: `@` the agent, `G` the goal, `#` walls.

    Args:
        state: state of one instance, on the host.

    Returns:
        One line per row.
    """
    rows = [["#" if wall else "." for wall in row] for row in np.asarray(state.task["walls"])]
    for glyph, (row, column) in (("G", np.asarray(state.task["goal"])), ("@", np.asarray(state.position))):
        rows[row][column] = glyph
    return "\n".join("".join(row) for row in rows)
