"""What policies are told of steps that were taken, and of those to come."""

import jax
import jax.numpy as jnp

from jaxagents.ops.rows import where_rows
from jaxagents.types import Array, PolicyInput, PyTree, Transition


def input_of(transition: Transition) -> PolicyInput:
    """Returns what a policy was told at each step, leaves `[T, B, ...]`."""
    return PolicyInput(
        observation=transition.observation,
        first=transition.first,
        action_mask=transition.action_mask,
        previous_action=transition.previous_action,
        previous_reward=transition.previous_reward,
        noise=transition.noise,
    )


def input_of_successor(transition: Transition) -> PolicyInput:
    """Returns what a policy would be told at the true successor of each step, leaves `[T, B, ...]`."""
    return PolicyInput(
        observation=transition.next_observation,
        first=jnp.zeros_like(transition.first),
        action_mask=transition.extras.get("next_action_mask"),
        previous_action=None if transition.previous_action is None else transition.action,
        previous_reward=None if transition.previous_reward is None else transition.reward,
        noise=transition.noise,
    )


def clear_first(first: Array, previous: PyTree) -> PyTree:
    """Sets to zero what belongs to an earlier episode: bool `[...]` and leaves `[..., ...]`."""
    return where_rows(first, jax.tree.map(jnp.zeros_like, previous), previous)
