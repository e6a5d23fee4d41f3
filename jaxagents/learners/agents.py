"""The agent axis of batches: `[T, B, N, ...]` with agents, `[T, B, ...]` without."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jaxagents.types import Array, PyTree, Transition


def per_agent(values: Array, like: Array) -> Array:
    """Repeats values that all agents share for each agent.

    Args:
        values: `[T, B]`, flags or factors of each step.
        like: `[T, B]` or `[T, B, N]`.

    Returns:
        `values` in the shape of `like`.
    """
    return jnp.broadcast_to(values.reshape(values.shape + (1,) * (like.ndim - values.ndim)), like.shape)


def agent_weights(agent_mask: Array, *, axis_name: str | None = None) -> Array:
    """Computes weights that turn a mean over all agents into the mean over the living.

    They are divided by the share of living agents on all devices, so that a mean over devices is exact, too.

    Args:
        agent_mask: bool, any shape, True = alive.
        axis_name: mapped axis over which the agents are spread.

    Returns:
        float32 of the same shape: zero for the dead; zero for all if none lives.
    """
    share = jnp.mean(agent_mask, dtype=jnp.float32)
    if axis_name is not None:
        share = jax.lax.pmean(share, axis_name)
    return agent_mask / jnp.maximum(share, 1e-8)


def mean_over_agents(values: Array, agent_mask: Array | None) -> Array:
    """Computes the mean over the last axis, over living agents; zero if none lives.

    Args:
        values: `[..., N]`.
        agent_mask: bool `[..., N]`; None if all live.
    """
    if agent_mask is None:
        return jnp.mean(values, axis=-1)
    return jnp.sum(values * agent_mask, axis=-1) / jnp.maximum(jnp.sum(agent_mask, axis=-1), 1)


def team_state(observation: PyTree, *, num_leading: int = 1) -> Array:
    """Returns the state of the team, float32 `[..., S]`.

    Args:
        observation: leaves `[..., N, *shape]`. The state is its entry `team` (see `environments.teams.team_view`) if
            there is one, which is the same for all agents; else everything that the agents see, in one vector.
        num_leading: number of axes before the agent axis.
    """
    if isinstance(observation, Mapping) and "team" in observation:
        return observation["team"][..., 0, :]
    leaves = jax.tree.leaves(observation)
    leaves = [leaf.reshape(*leaf.shape[:num_leading], -1).astype(jnp.float32) for leaf in leaves]
    return jnp.concatenate(leaves, axis=-1)


def require_agents(transition: Transition) -> None:
    """Refuses experience whose rewards and masks imply different agent axes.

    Args:
        transition: leaves `[T, B, ...]` or `[T, B, N, ...]`.

    Raises:
        ValueError: the shapes differ; the message gives both.
    """
    shape, steps = transition.reward.shape, transition.terminated.shape
    if shape[: len(steps)] != steps or len(shape) > len(steps) + 1:
        raise ValueError(
            f"`reward` must be [T, B] or [T, B, N] with [T, B] = {steps}, got {shape}; try one number per agent."
        )
    agent_mask, action_mask = transition.extras.get("agent_mask"), transition.action_mask
    if agent_mask is not None and agent_mask.shape != shape:
        raise ValueError(
            f"`agent_mask` must be [T, B, N] as `reward` is, got {agent_mask.shape} and {shape}; "
            "try one flag per agent, False for those that only pad."
        )
    if action_mask is not None and action_mask.shape[:-1] != shape:
        raise ValueError(
            f"`action_mask` must be {shape} as `reward`, with a last axis of actions, got {action_mask.shape}; "
            "try one row per agent, with what an agent lacks masked out."
        )
