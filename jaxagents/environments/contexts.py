"""Environments with a limited number of tasks, to vary how much episodes have in common."""

from dataclasses import replace

import jax

from jaxagents.types import Array, Environment, Task


def limited(environment: Environment, num_tasks: int, *, seed: int = 0) -> Environment:
    """Makes an environment that draws from a fixed set of tasks.

    Args:
        environment: any environment; its `sample_task` runs at every draw, so nothing is stored.
        num_tasks: number of tasks per level; with 1, all episodes of a level have the same task.
        seed: seed of the tasks.

    Returns:
        The environment, with this number of tasks on every level.

    Raises:
        ValueError: `num_tasks` is not positive.

    References:
        Henaff, Jiang and Raileanu (2023), A study of global and episodic bonuses for exploration in contextual MDPs,
        section 3.
    """
    if num_tasks < 1:
        raise ValueError(f"`num_tasks` must be at least 1, got {num_tasks}; leave the wrapper out for no limit.")

    def sample_task(key: Array, level: Array | None = None) -> Task:
        index = jax.random.randint(key, (), 0, num_tasks)
        return environment.sample_task(jax.random.fold_in(jax.random.key(seed), index), level)

    return replace(environment, sample_task=sample_task)
