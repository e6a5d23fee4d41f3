"""An environment whose action is a chunk: several actions, executed in sequence without observing in between."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.timesteps import ended, select
from jaxagents.environments.wrappers import absorbing
from jaxagents.types import Array, Box, Environment, State, Task, TimeStep


@struct.dataclass
class ChunkedState:
    """State of `chunked`.

    Attributes:
        inner: state of the wrapped environment.
        num_steps: int32, number of steps of the wrapped environment in the episode so far.
    """

    inner: State
    num_steps: Array


def chunked(environment: Environment, *, length: int, discount: float = 1.0) -> Environment:
    """Makes an environment whose action is a chunk of `length` actions of D numbers, float32 `[length D]`.

    The actions of a chunk are executed open loop, up to the end of the episode; later ones are not executed. Its reward
    is `sum_k discount^k r_k` over these steps. `info["metrics"]["num_steps"]` counts the steps of the wrapped
    environment. A learner must discount what follows a chunk by `discount^length`.

    Args:
        environment: single-agent environment whose actions are vectors.
        length: number of actions per chunk; 1 changes nothing but the metrics.
        discount: gamma in [0, 1], per step of the wrapped environment.

    Returns:
        The environment; its `max_steps` counts chunks.

    Raises:
        ValueError: the actions are not vectors, there are several agents, a number is out of its range, or the time
            limit would cut a chunk, so that its discount would be wrong.
    """
    space = environment.action_space
    if not isinstance(space, Box) or len(space.shape) != 1 or environment.num_agents:
        raise ValueError(
            f"`environment` must have one agent and actions in a Box of rank 1, got {space} and "
            f"{environment.num_agents} agents in {environment.name!r}; try world=tabletop."
        )
    if length < 1 or environment.max_steps % length:
        raise ValueError(
            f"`length` must be at least 1 and divide the time limit of {environment.max_steps} steps, got {length}; "
            f"try {next(size for size in (8, 5, 4, 3, 2, 1) if environment.max_steps % size == 0)}."
        )
    if not 0.0 <= discount <= 1.0:
        raise ValueError(f"`discount` must be in [0, 1], got {discount}; try 0.99.")

    def tell(timestep: TimeStep, num_steps: Array) -> TimeStep:
        metrics = {**dict(timestep.info.get("metrics", {})), "num_steps": num_steps}
        return timestep.replace(info={**timestep.info, "metrics": metrics})

    def reset(key: Array, task: Task) -> tuple[ChunkedState, TimeStep]:
        inner, timestep = environment.reset(key, task)
        state = ChunkedState(inner=inner, num_steps=jnp.zeros((), jnp.int32))
        return state, tell(timestep, state.num_steps)

    def step(key: Array, state: ChunkedState, action: Array) -> tuple[ChunkedState, TimeStep]:
        actions, keys = action.reshape(length, -1), jax.random.split(key, length)
        weights = discount ** jnp.arange(length, dtype=jnp.float32)

        def follow(carry: tuple, inputs: tuple[Array, Array, Array]) -> tuple[tuple, None]:
            inner, timestep, total, num_steps = carry
            key, action, weight = inputs
            over = ended(timestep)
            following = environment.step(key, inner, action)
            total = total + jnp.where(over, 0.0, weight * following[1].reward)
            inner, timestep = select(over, (inner, timestep), following)
            return (inner, timestep, total, num_steps + ~over), None

        inner, timestep = environment.step(keys[0], state.inner, actions[0])
        carry = (inner, timestep, timestep.reward, state.num_steps + 1)
        (inner, timestep, total, num_steps), _ = jax.lax.scan(follow, carry, (keys[1:], actions[1:], weights[1:]))
        state = ChunkedState(inner=inner, num_steps=num_steps)
        return state, tell(timestep.replace(reward=total), num_steps)

    render = environment.render
    chunks = replace(
        environment,
        reset=reset,
        step=step,
        action_space=replace(space, shape=(length * space.shape[0],)),
        max_steps=environment.max_steps // length,
        render=None if render is None else lambda state: render(state.inner),
    )
    return absorbing(chunks)
