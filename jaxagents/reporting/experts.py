"""Episodes that the expert of a text world plays, to be read."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxagents.data.schema import Trajectory, Turn
from jaxagents.environments.text.words import sentence
from jaxagents.reporting.transcripts import agent_names
from jaxagents.types import Array, Environment, State, TimeStep


def play_experts(environment: Environment, *, num_episodes: int) -> list[Trajectory]:
    """Lets the expert of a text world play, the levels in turn; in games it takes all seats.

    Args:
        environment: a text world.
        num_episodes: episodes.

    Returns:
        The transcript.

    Raises:
        ValueError: it is no text world.
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
        prompt = "" if interface.prompt is None else sentence(interface.words, interface.prompt(task))
        turns, last = _play(environment, reset(reset_key, task), key, words=interface.words, expert=expert, step=step)
        played.append(
            Trajectory(
                id=f"expert, level {level}" if interface.num_levels > 1 else f"expert, episode {index + 1}",
                world=environment.name,
                turns=tuple(turns),
                prompt=prompt,
                level=level,
                seed=0,
                agents=agent_names(environment),
                success=bool(last.info["success"]),
                episode_return=sum(turn.reward for turn in turns) if environment.num_players == 1 else None,
            )
        )
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
        player = 0 if timestep.player is None else int(timestep.player)
        observation = sentence(words, timestep.observation)
        state, timestep = step(step_key, state, action)
        turns.append(
            Turn(
                turn=len(turns),
                observation=observation,
                action=sentence(words, action),
                thought=None if thought is None else sentence(words, thought),
                agent=player,
                reward=float(np.atleast_1d(timestep.reward)[player if environment.num_players > 1 else 0]),
                valid=bool(timestep.info["valid"]),
                terminated=bool(timestep.terminated),
                truncated=bool(timestep.truncated),
            )
        )
    return turns, timestep
