"""Rewards that are added to those of the world: `(transition [T, B, ...], *, ...) -> [T, B]`."""

from collections.abc import Callable

import jax.numpy as jnp

from jaxagents.types import Array, Transition


def advice_bonus(transition: Transition, *, scale: float) -> Array:
    """Computes `scale h(s, a)`, the advised value of the action that was taken.

    It changes which policy is optimal, unless it happens to be a potential difference.

    Args:
        transition: transition with `extras["heuristic_values"]`, h, float32 `[T, B, A]`.
        scale: scale, in units of the reward.

    Returns:
        `[T, B]`.
    """
    values = transition.extras["heuristic_values"]
    return scale * jnp.take_along_axis(values, transition.action[..., None], axis=-1)[..., 0]


def potential_difference(transition: Transition, *, potential: Callable[[Array], Array], discount: float) -> Array:
    """Computes `discount potential(s') - potential(s)`, with a potential of 0 where the episode terminated.

    The optimal policy is unchanged.

    Args:
        transition: transition of the steps.
        potential: `(observation [T, B, ...]) -> [T, B]`, in units of the reward.
        discount: gamma of the learner, in [0, 1].

    Returns:
        `[T, B]`.

    References:
        Ng, Harada and Russell (1999), Policy invariance under reward transformations, theorem 1.
    """
    following = jnp.where(transition.terminated, 0.0, potential(transition.next_observation))
    return discount * following - potential(transition.observation)
