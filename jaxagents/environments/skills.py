"""A world whose episodes each ask for one of several skills, which is part of the observation."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.wrappers import flatten_observation
from jaxagents.types import Array, Box, Environment, State, Task, TimeStep


@struct.dataclass
class SkillState:
    """State of the wrapped environment, and the skill of the episode, int32 `[]`."""

    inner: State
    skill: Array


def make_skills(environment: Environment, *, num_skills: int) -> Environment:
    """Makes a world whose task names one of several skills, drawn uniformly.

    The observation is that of the wrapped world as one vector, followed by the one-hot skill. Skills are defined only
    by rewards, such as those of `learners.diayn`.

    Args:
        environment: single-agent environment.
        num_skills: K, number of skills.

    Returns:
        The environment, with `SkillState`; its tasks are `(task of the wrapped world, skill)`.

    Raises:
        ValueError: there are several agents or players, or fewer than two skills.

    References:
        Eysenbach et al. (2019), Diversity is all you need: learning skills without a reward function, section 3.1.
    """
    if num_skills < 2:
        raise ValueError(f"`num_skills` must be at least 2, got {num_skills}; try 4.")
    if environment.num_agents or environment.num_players > 1:
        raise ValueError(f"`environment` must have one agent for skills, got {environment.name!r}.")
    world = flatten_observation(environment)

    def with_skill(timestep: TimeStep, skill: Array) -> TimeStep:
        named = jax.nn.one_hot(skill, num_skills)
        return timestep.replace(observation=jnp.concatenate([timestep.observation, named]))

    def sample_task(key: Array, level: Array | None = None) -> Task:
        task_key, skill_key = jax.random.split(key)
        return world.sample_task(task_key, level), jax.random.randint(skill_key, (), 0, num_skills)

    def reset(key: Array, task: Task) -> tuple[SkillState, TimeStep]:
        inner, timestep = world.reset(key, task[0])
        return SkillState(inner=inner, skill=task[1]), with_skill(timestep, task[1])

    def step(key: Array, state: SkillState, action: Array) -> tuple[SkillState, TimeStep]:
        inner, timestep = world.step(key, state.inner, action)
        return state.replace(inner=inner), with_skill(timestep, state.skill)

    return replace(
        world,
        name=f"{environment.name}-skills",
        sample_task=sample_task,
        reset=reset,
        step=step,
        observation_space=Box((world.observation_space.shape[0] + num_skills,)),
        render=None if world.render is None else lambda state: world.render(state.inner),
    )
