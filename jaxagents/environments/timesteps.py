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


def restart(timestep: TimeStep, fresh: TimeStep) -> TimeStep:
    """Makes the timestep of a step that ended an episode and began the next one.

    What the next action is chosen from (`observation`, `action_mask`, `player`, `info["agent_mask"]`) is that of the
    new episode; reward, flags and the rest of `info` stay those of the ended step.

    Args:
        timestep: of the ended step.
        fresh: of the reset.

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
    """Puts the true successor into `info`, from which truncated episodes bootstrap.

    Args:
        timestep: after an automatic reset.
        successor: before it.

    Returns:
        `timestep` with `info["next_observation"]` and, where there are masks, `info["next_action_mask"]` and
        `info["next_agent_mask"]`.
    """
    info = {**timestep.info, "next_observation": successor.observation}
    if successor.action_mask is not None:
        info["next_action_mask"] = successor.action_mask
    if "agent_mask" in successor.info:
        info["next_agent_mask"] = successor.info["agent_mask"]
    return timestep.replace(info=info)
