"""MT-CSIRL (Glazer et al., 2024): a common reward behind demonstrations of several tasks, beside the task rewards."""

from collections.abc import Sequence

import jax.numpy as jnp
from flax import linen as nn

from jaxagents.types import Array, Box, Discrete, Params, Transition
from jaxagents.values.discriminator import Discriminator, make_discriminator


def make_common_reward(
    observation_space: Box,
    action_space: Discrete | Box,
    *,
    encoder: nn.Module,
    observed: Sequence[int] | None = None,
) -> Discriminator:
    """Makes the discriminator `f(s, a) - log pi(a | s)`, whose f does not see the task.

    Task-specific parts of the observation then cannot help f, which has to explain the demonstrations of all tasks.

    Args:
        observation_space: space of a vector.
        action_space: discrete space, or that of a bounded vector.
        encoder: encoder of f, see `make_discriminator`.
        observed: indices of the observation that do not reveal the task; None: all.

    Returns:
        The discriminator; without a log-probability it returns f alone.

    Raises:
        ValueError: see `make_discriminator`; or an index is out of range.

    References:
        Glazer, Navon, Shamsian and Fetaya (2024), Multi Task Inverse Reinforcement Learning for Common Sense Reward;
        Fu, Luo and Levine (2018), equation 1, for the form of the discriminator.
    """
    size = observation_space.shape[0] if isinstance(observation_space, Box) and observation_space.shape else 0
    seen = range(size) if observed is None else observed
    if not seen or not all(0 <= index < size for index in seen):
        raise ValueError(f"`observed` must be indices from 0 to {size - 1} of a vector, got {observed}.")
    indices = jnp.asarray(list(seen))
    inner = make_discriminator(Box((len(seen),)), action_space, encoder=encoder)

    def apply(params: Params, transition: Transition, log_prob: Array | None) -> Array:
        reward = inner.apply(params, transition.replace(observation=transition.observation[..., indices]), None)
        return reward if log_prob is None else reward - log_prob

    return Discriminator(init=inner.init, apply=apply, absorbing=inner.absorbing, asks_policy=True)


def task_and_common(discriminator: Discriminator, params: Params, transition: Transition, *, scale: float) -> Array:
    """Computes `r_task + scale f(s, a)` for all steps.

    Args:
        discriminator: discriminator from `make_common_reward`.
        params: parameters of the discriminator.
        transition: leaves `[T, B, ...]`, with the rewards of the world.
        scale: c, weight of the common reward.

    Returns:
        `[T, B]`.

    References:
        Glazer, Navon, Shamsian and Fetaya (2024).
    """
    return transition.reward + scale * discriminator.apply(params, transition, None)
