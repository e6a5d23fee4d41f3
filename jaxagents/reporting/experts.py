"""Readable episodes that the expert of a text world plays."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxagents.data.schema import Trajectory, Turn
from jaxagents.environments.text.words import sentence
from jaxagents.reporting.transcripts import make_trajectory, make_turn
from jaxagents.types import Array, Environment, State, TimeStep


def play_experts(environment: Environment, *, num_episodes: int) -> list[Trajectory]:
    """Lets the expert of a text world play the levels in turn; in games it takes all seats.

    Args:
        environment: text world.
        num_episodes: number of episodes.

    Returns:
        The trajectories.

    Raises:
        ValueError: the environment is not a text world.
    """
    if environment.text is None:
        raise ValueError(f"`environment` must be a text world, got {environment.name!r}; try environment=frozenlake.")
    interface = environment.text
    reset, expert = jax.jit(environment.reset), jax.jit(interface.expert)
    step = jax.jit(environment.step)
    played = []
    for index in range(num_episodes):
        task_key, reset_key, key = jax.random.split(jax.random.fold_in(jax.random.key(0), index), 3)
        level = index % interface.num_levels
        task = environment.sample_task(task_key, level)
        turns, last = _play(environment, reset(reset_key, task), key, words=interface.words, expert=expert, step=step)
        name = f"expert, level {level}" if interface.num_levels > 1 else f"expert, episode {index + 1}"
        fields: dict[str, Any] = {"id": name, "level": level, "seed": 0, "success": bool(last.info["success"])}
        played.append(make_trajectory(environment, turns, task, **fields))
    return played


def _play(
    environment: Environment,
    start: tuple[State, TimeStep],
    key: Array,
    *,
    words: Sequence[str],
    expert: Callable[..., Any],
    step: Callable[..., Any],
) -> tuple[list[Turn], TimeStep]:
    state, timestep = start
    turns: list[Turn] = []
    while not bool(timestep.terminated | timestep.truncated):
        expert_key, step_key = jax.random.split(jax.random.fold_in(key, len(turns)))
        action, thought = expert(expert_key, state)
        before, said = timestep, None if thought is None else sentence(words, thought)
        state, timestep = step(step_key, state, action)
        turns.append(make_turn(environment, len(turns), before, action, timestep, thought=said))
    return turns, timestep
