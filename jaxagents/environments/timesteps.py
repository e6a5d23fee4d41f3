"""Small functions on timesteps, shared by environments and wrappers."""

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
    """Makes the timestep of a reset: there is no reward yet, and the episode has not ended.

    Args:
        observation: the first observation.
        reward_shape: `()`; `(N,)` with agents or players.
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
    """Returns whether the step ended the episode, for either reason."""
    return timestep.terminated | timestep.truncated


def select(condition: Array, when_true: PyTree, when_false: PyTree) -> PyTree:
    """Selects between two pytrees of the same structure by a scalar bool."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), when_true, when_false)


def restart(timestep: TimeStep, fresh: TimeStep) -> TimeStep:
    """Makes the timestep of a step that ended an episode and started the next one.

    The inputs of the next action (`observation`, `action_mask`, `player`, `info["agent_mask"]`) are those of the new
    episode; reward, flags and the rest of `info` are those of the ended step.

    Args:
        timestep: timestep of the ended step.
        fresh: timestep of the reset.

    Returns:
        The timestep.
    """
    info = dict(timestep.info)
    if "agent_mask" in info:
        info["agent_mask"] = fresh.info["agent_mask"]
    return timestep.replace(
        observation=fresh.observation, action_mask=fresh.action_mask, player=fresh.player, info=info
    )


def with_successor(timestep: TimeStep, successor: TimeStep) -> TimeStep:
    """Adds the true successor to `info`, from which truncated episodes bootstrap.

    Args:
        timestep: timestep after an automatic reset.
        successor: timestep before it.

    Returns:
        `timestep` with `info["next_observation"]` and, if there are masks, `info["next_action_mask"]` and
        `info["next_agent_mask"]`.
    """
    info = {**timestep.info, "next_observation": successor.observation}
    if successor.action_mask is not None:
        info["next_action_mask"] = successor.action_mask
    if "agent_mask" in successor.info:
        info["next_agent_mask"] = successor.info["agent_mask"]
    return timestep.replace(info=info)
