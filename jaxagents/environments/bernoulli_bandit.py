"""A bandit whose arms pay 1 or nothing; an episode is one pull."""

import jax
import jax.numpy as jnp

from jaxagents.environments.timesteps import first_timestep
from jaxagents.environments.wrappers import absorbing
from jaxagents.types import Array, Box, Discrete, Environment, Task, TimeStep


def make_environment(num_arms: int = 5) -> Environment:
    """Makes a bandit whose arms pay 1 with probabilities drawn uniformly from [0, 1].

    The task is `{"probability": float32 [A]}`; the observation, a zero, carries no information. `environments.trials`
    combines several pulls of one bandit into an episode.

    Args:
        num_arms: A, number of arms.

    Returns:
        The environment.

    Raises:
        ValueError: there are fewer than two arms.
    """
    if num_arms < 2:
        raise ValueError(f"`num_arms` must be at least 2, got {num_arms}; try 5.")

    def sample_task(key: Array, level: Array | None = None) -> Task:
        del level
        return {"probability": jax.random.uniform(key, (num_arms,))}

    def reset(key: Array, task: Task) -> tuple[Task, TimeStep]:
        del key
        return task, first_timestep(jnp.zeros(1))

    def step(key: Array, state: Task, action: Array) -> tuple[Task, TimeStep]:
        paid = jax.random.bernoulli(key, state["probability"][action])
        return state, first_timestep(jnp.zeros(1)).replace(
            reward=paid.astype(jnp.float32), terminated=jnp.ones((), bool)
        )

    return absorbing(
        Environment(
            name="bernoulli-bandit",
            sample_task=sample_task,
            reset=reset,
            step=step,
            observation_space=Box((1,), 0.0, 1.0),
            action_space=Discrete(num_arms),
            max_steps=1,
        )
    )
