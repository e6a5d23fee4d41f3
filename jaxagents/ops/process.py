"""What single steps of an episode were worth, by the distance to the goal: labels of process reward models."""

import jax
import jax.numpy as jnp

from jaxagents.types import Array


def ternary_labels(before: Array, after: Array, allowed: Array, repeated: Array) -> Array:
    """Labels every step by whether it advanced (1), did nothing that matters (0), or was wrong (-1).

    Args:
        before: float `[..., T]`, distance to the goal before each step; inf where there is no way.
        after: float `[..., T]`, after it.
        allowed: bool `[..., T]`, the world knew the action.
        repeated: bool `[..., T]`, the action was taken from the same situation before.

    Returns:
        int32 `[..., T]`: 1 where the distance fell; -1 where it rose, or nothing came of an action that is unknown or
        had been tried; 0 otherwise.

    References:
        Fan et al. (2026), "AgentProcessBench: Diagnosing Step-Level Process Quality in Tool-Using Agents", section 3.
    """
    wrong = (after > before) | ~allowed | repeated
    return jnp.where(after < before, 1, jnp.where(wrong, -1, 0)).astype(jnp.int32)


def propagate_errors(label: Array, before: Array, after: Array) -> Array:
    """Marks what is built on an error: steps after it are -1 until one makes up for it.

    Args:
        label: int32 `[..., T]`, see `ternary_labels`.
        before: float `[..., T]`, distance to the goal before each step.
        after: float `[..., T]`, after it.

    Returns:
        int32 `[..., T]`. The step that is at most as far from the goal as where the error was made keeps its label.

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
    """Finds the first step that was wrong.

    Args:
        label: int `[..., T]`, -1 for wrong steps.
        valid: bool `[..., T]`, steps that took place.

    Returns:
        int32 `[...]`, -1 where no step was wrong.
    """
    wrong = valid & (label < 0)
    return jnp.where(jnp.any(wrong, axis=-1), jnp.argmax(wrong, axis=-1), -1).astype(jnp.int32)
