"""Several episodes of one task as one episode, for agents that learn within their lifetime."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.timesteps import ended, restart, select
from jaxagents.environments.wrappers import absorbing, flatten_observation
from jaxagents.types import Array, Box, Environment, State, Task, TimeStep


@struct.dataclass
class TrialState:
    """State of a trial.

    Attributes:
        inner: state of the wrapped environment.
        task: task of all episodes of the trial.
        episode: int32, number of finished episodes.
    """

    inner: State
    task: Task
    episode: Array


def make_trials(environment: Environment, *, num_episodes: int) -> Environment:
    """Makes a world whose episode is a trial: `num_episodes` consecutive episodes of the same task.

    The observation is that of the wrapped world as one vector, and a last number that is 1 if an episode has just
    ended, in which case the observation is the first one of the next episode. A trial terminates with its last episode.

    Args:
        environment: single-agent environment.
        num_episodes: number of episodes of a trial.

    Returns:
        The environment, with `TrialState`.

    Raises:
        ValueError: there are several agents or players, or `num_episodes` is below 1.

    References:
        Duan et al. (2016), RL^2: fast reinforcement learning via slow reinforcement learning, section 2.2.
    """
    if num_episodes < 1:
        raise ValueError(f"`num_episodes` must be at least 1, got {num_episodes}; try 10.")
    if environment.num_agents or environment.num_players > 1:
        raise ValueError(f"`environment` must have one agent for trials, got {environment.name!r}.")
    world = flatten_observation(environment)

    def with_end(timestep: TimeStep, over: Array) -> TimeStep:
        seen = jnp.concatenate([timestep.observation, over.astype(jnp.float32)[None]])
        return timestep.replace(observation=seen)

    def reset(key: Array, task: Task) -> tuple[TrialState, TimeStep]:
        inner, timestep = world.reset(key, task)
        return TrialState(inner, task, jnp.zeros((), jnp.int32)), with_end(timestep, jnp.zeros((), bool))

    def step(key: Array, state: TrialState, action: Array) -> tuple[TrialState, TimeStep]:
        step_key, reset_key = jax.random.split(key)
        inner, timestep = world.step(step_key, state.inner, action)
        over, episode = ended(timestep), state.episode + ended(timestep)
        fresh, opened = world.reset(reset_key, state.task)
        inner, after = select(over & (episode < num_episodes), (fresh, restart(timestep, opened)), (inner, timestep))
        after = after.replace(terminated=episode >= num_episodes, truncated=jnp.zeros((), bool))
        return TrialState(inner, state.task, episode), with_end(after, over)

    return absorbing(
        replace(
            world,
            name=f"{environment.name}-trials",
            reset=reset,
            step=step,
            observation_space=Box((world.observation_space.shape[0] + 1,)),
            max_steps=num_episodes * environment.max_steps,
            render=None if world.render is None else lambda state: world.render(state.inner),
        )
    )
