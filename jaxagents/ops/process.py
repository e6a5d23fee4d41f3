"""Values of single steps of an episode, by the distance to the goal: labels for process reward models."""

import jax
import jax.numpy as jnp

from jaxagents.types import Array


def ternary_labels(before: Array, after: Array, allowed: Array, repeated: Array) -> Array:
    """Labels every step as progress (1), irrelevant (0), or wrong (-1).

    Args:
        before: float `[..., T]`, distance to the goal before each step; inf if the goal is out of reach.
        after: float `[..., T]`, distance to the goal after each step.
        allowed: bool `[..., T]`, whether the world knew the action.
        repeated: bool `[..., T]`, whether the action was taken before in the same situation.

    Returns:
        int32 `[..., T]`: 1 if the distance fell; -1 if it rose, or if an unknown or repeated action had no effect; 0
        otherwise.

    References:
        Fan et al. (2026), "AgentProcessBench: Diagnosing Step-Level Process Quality in Tool-Using Agents", section 3.
    """
    wrong = (after > before) | ~allowed | repeated
    return jnp.where(after < before, 1, jnp.where(wrong, -1, 0)).astype(jnp.int32)


def propagate_errors(label: Array, before: Array, after: Array) -> Array:
    """Marks steps that build on an error: steps after it are -1 until one makes up for it.

    Args:
        label: int32 `[..., T]`, see `ternary_labels`.
        before: float `[..., T]`, distance to the goal before each step.
        after: float `[..., T]`, distance to the goal after each step.

    Returns:
        int32 `[..., T]`. A step that comes at least as close to the goal as before the error keeps its label.

    References:
        Fan et al. (2026), "AgentProcessBench: Diagnosing Step-Level Process Quality in Tool-Using Agents", section 3.
    """

    def step(bound: Array, one: tuple[Array, ...]) -> tuple[Array, Array]:
        label, before, after = one
        made_up = after <= bound
        propagated = jnp.where(made_up, label, -1)
        bound = jnp.where(made_up, jnp.where(label < 0, before, jnp.inf), bound)
        return bound, propagated

    moved = tuple(jnp.moveaxis(leaf, -1, 0) for leaf in (label, before, after))
    propagated = jax.lax.scan(step, jnp.full(label.shape[:-1], jnp.inf), moved)[1]
    return jnp.moveaxis(propagated, 0, -1).astype(jnp.int32)


def first_error(label: Array, valid: Array) -> Array:
    """Finds the first wrong step.

    Args:
        label: int `[..., T]`, -1 for wrong steps.
        valid: bool `[..., T]`, steps that took place.

    Returns:
        int32 `[...]`, -1 if no step was wrong.
    """
    wrong = valid & (label < 0)
    return jnp.where(jnp.any(wrong, axis=-1), jnp.argmax(wrong, axis=-1), -1).astype(jnp.int32)
