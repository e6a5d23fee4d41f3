"""The T-maze: a cue seen once determines which way to turn at the end of a corridor (Bakker, 2001)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.timesteps import first_timestep
from jaxagents.environments.wrappers import absorbing
from jaxagents.types import Array, Box, Discrete, Environment, Task, TimeStep

UP, FORWARD, DOWN, BACK = range(4)
"""Actions. `UP` and `DOWN` turn at the junction and run into the wall elsewhere."""


@struct.dataclass
class TMazeState:
    """State of the maze.

    Attributes:
        task: the task of the episode.
        position: int32, number of cells from the start; the junction is at `task["corridor_length"]`.
        num_steps: int32, steps taken.
    """

    task: Task
    position: Array
    num_steps: Array


def make_environment(
    corridor_length: int | Sequence[int] = 10,
    *,
    right_reward: float = 1.0,
    wrong_reward: float = -0.1,
    step_penalty: float = 0.0,
    max_steps: int | None = None,
) -> Environment:
    """Makes a T-maze.

    The observation float32 `[4]` is (goal is up, goal is down, corridor, junction). The goal shows only in the first
    observation of an episode; afterwards exactly one of the last two is set. A policy without memory can only guess,
    and succeeds half the time. `info["success"]` is set in the step of a correct turn.

    The task is `{"goal": int32 (UP or DOWN), "corridor_length": int32}`.

    Args:
        corridor_length: cells from the start to the junction; with several, `level` is an index into them, and they are
            drawn uniformly if no level is given.
        right_reward: reward of the correct turn.
        wrong_reward: reward of the wrong turn.
        step_penalty: penalty subtracted from the reward of every step.
        max_steps: steps before truncation; None: three times the shortest solution.

    Returns:
        The environment.

    Raises:
        ValueError: a corridor is shorter than 1, or the limit is too short for the solution.

    References:
        Bakker (2001), Reinforcement Learning with Long Short-Term Memory, section 3.
    Deviation: rewards are 1 and -0.1 (4 and -0.1 in the paper), and by default standing still costs nothing.
    """
    lengths = (corridor_length,) if isinstance(corridor_length, int) else tuple(corridor_length)
    if not lengths or min(lengths) < 1:
        raise ValueError(f"`corridor_length` must be at least 1, got {corridor_length}; try 10.")
    shortest = max(lengths) + 1
    max_steps = 3 * shortest if max_steps is None else max_steps
    if max_steps < shortest:
        raise ValueError(f"`max_steps` must leave time for {shortest} steps, got {max_steps}; try {3 * shortest}.")

    def sample_task(key: Array, level: Array | None = None) -> Task:
        goal_key, level_key = jax.random.split(key)
        level = jax.random.randint(level_key, (), 0, len(lengths)) if level is None else level
        goal = jnp.where(jax.random.bernoulli(goal_key), UP, DOWN).astype(jnp.int32)
        return {"goal": goal, "corridor_length": jnp.asarray(lengths, jnp.int32)[level]}

    def observe(state: TMazeState) -> Array:
        start = state.num_steps == 0
        junction = state.position == state.task["corridor_length"]
        up = start & (state.task["goal"] == UP)
        down = start & (state.task["goal"] == DOWN)
        return jnp.stack([up, down, ~start & ~junction, ~start & junction]).astype(jnp.float32)

    def reset(key: Array, task: Task) -> tuple[TMazeState, TimeStep]:
        del key
        state = TMazeState(task=task, position=jnp.zeros((), jnp.int32), num_steps=jnp.zeros((), jnp.int32))
        return state, first_timestep(observe(state), info={"success": jnp.zeros((), bool)})

    def step(key: Array, state: TMazeState, action: Array) -> tuple[TMazeState, TimeStep]:
        del key
        length = state.task["corridor_length"]
        turned = (state.position == length) & ((action == UP) | (action == DOWN))
        success = turned & (action == state.task["goal"])
        move = (action == FORWARD).astype(jnp.int32) - (action == BACK).astype(jnp.int32)
        state = state.replace(position=jnp.clip(state.position + move, 0, length), num_steps=state.num_steps + 1)
        reward = jnp.where(success, right_reward, jnp.where(turned, wrong_reward, 0.0)) - step_penalty
        timestep = TimeStep(
            observation=observe(state),
            reward=reward.astype(jnp.float32),
            terminated=turned,
            truncated=(state.num_steps >= max_steps) & ~turned,
            info={"success": success},
        )
        return state, timestep

    return absorbing(
        Environment(
            name="t-maze",
            sample_task=sample_task,
            reset=reset,
            step=step,
            observation_space=Box((4,), 0.0, 1.0),
            action_space=Discrete(4),
            max_steps=max_steps,
            render=render,
            num_levels=len(lengths),
        )
    )


def render(state: TMazeState) -> str:
    """Draws the maze: `@` the agent, `G` the goal.

    Args:
        state: state of one instance, on the host.

    Returns:
        Three lines.
    """
    length, position = int(state.task["corridor_length"]), int(state.position)
    margin = " " * length
    corridor = "".join("@" if cell == position else "." for cell in range(length + 1))
    top, bottom = ("G", ".") if int(state.task["goal"]) == UP else (".", "G")
    return "\n".join([margin + top, corridor, margin + bottom])
