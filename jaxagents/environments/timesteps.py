"""Small functions on timesteps that environments and wrappers share."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jaxagents.types import Array, PyTree, TimeStep


def first_timestep(
    observation: PyTree,
    *,
    reward_shape: tuple[int, ...] = (),
    action_mask: Array | None = None,
    player: Array | None = None,
    info: Mapping[str, Array] | None = None,
) -> TimeStep:
    """Makes the timestep of a reset: no reward yet, and the episode runs.

    Args:
        observation: the first observation.
        reward_shape: `()`, `(N,)` with agents or players.
        action_mask: see `TimeStep`.
        player: see `TimeStep`.
        info: see `TimeStep`.

    Returns:
        The timestep.
    """
    return TimeStep(
        observation=observation,
        reward=jnp.zeros(reward_shape, jnp.float32),
        terminated=jnp.zeros((), bool),
        truncated=jnp.zeros((), bool),
        action_mask=action_mask,
        player=player,
        info={} if info is None else info,
    )


def ended(timestep: TimeStep) -> Array:
    """Returns where the step ended the episode, for either reason."""
    return timestep.terminated | timestep.truncated


def select(condition: Array, when_true: PyTree, when_false: PyTree) -> PyTree:
    """Chooses between two pytrees of one structure by one scalar bool."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), when_true, when_false)
