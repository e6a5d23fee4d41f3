"""The agent axis of batches: `[T, B, N, ...]` where there is one, `[T, B, ...]` where there is not."""

import jax.numpy as jnp

from jaxagents.types import Array, Transition


def per_agent(values: Array, like: Array) -> Array:
    """Repeats what all agents share for each of them.

    Args:
        values: `[T, B]`, flags or factors of a step.
        like: `[T, B]` or `[T, B, N]`.

    Returns:
        `values` in the shape of `like`.
    """
    return jnp.broadcast_to(values.reshape(values.shape + (1,) * (like.ndim - values.ndim)), like.shape)


def require_agents(transition: Transition) -> None:
    """Refuses experience whose rewards and masks disagree about the agents.

    Args:
        transition: leaves `[T, B, ...]` or `[T, B, N, ...]`.

    Raises:
        ValueError: with both shapes.
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
