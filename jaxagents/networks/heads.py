"""Heads: features -> parameters of a distribution, values."""

import math

import jax.numpy as jnp
from flax import linen as nn

from jaxagents.networks.rows import as_rows
from jaxagents.types import Array


class CategoricalHead(nn.Module):
    """Logits of a categorical distribution; near uniform at the start (orthogonal with gain 0.01).

    Attributes:
        num_actions: size of the action axis A.
    """

    num_actions: int

    @nn.compact
    def __call__(self, features: Array) -> Array:
        """Computes logits `[..., A]` of features `[..., D]`."""
        rows, restore = as_rows(features)
        return restore(nn.Dense(self.num_actions, kernel_init=nn.initializers.orthogonal(0.01))(rows))


class TanhNormalHead(nn.Module):
    """Location and scale of a normal distribution before its squashing by tanh.

    `scale = softplus(x) + min_scale`, where `x` is a parameter or, with `state_dependent_scale`, a function of the
    features; at the start `scale = initial_scale` (nearly, where it depends on the features).

    Attributes:
        action_dim: size of the action axis A.
        state_dependent_scale: whether the scale is a function of the features.
        min_scale: lower bound of the scale, in units of the action before squashing.
        initial_scale: scale at the start, in the same units.
    """

    action_dim: int
    state_dependent_scale: bool = False
    min_scale: float = 1e-3
    initial_scale: float = 1.0

    def __post_init__(self):
        if not 0.0 <= self.min_scale < self.initial_scale:
            raise ValueError(
                f"`min_scale` must be at least 0 and less than `initial_scale`, got {self.min_scale} and "
                f"{self.initial_scale}; try 0.001 and 1."
            )
        super().__post_init__()

    @nn.compact
    def __call__(self, features: Array) -> tuple[Array, Array]:
        """Computes `(loc [..., A], scale [..., A])` of features `[..., D]`."""
        loc = nn.Dense(self.action_dim, kernel_init=nn.initializers.orthogonal(0.01), name="loc")(features)
        # The inverse of softplus at the initial scale.
        start = nn.initializers.constant(math.log(math.expm1(self.initial_scale - self.min_scale)))
        if self.state_dependent_scale:
            orthogonal = nn.initializers.orthogonal(0.01)
            raw_scale = nn.Dense(self.action_dim, kernel_init=orthogonal, bias_init=start, name="raw_scale")(features)
        else:
            raw_scale = jnp.broadcast_to(self.param("raw_scale", start, (self.action_dim,)), loc.shape)
        return loc, nn.softplus(raw_scale) + self.min_scale


class ValueHead(nn.Module):
    """A scalar value (orthogonal with gain 1)."""

    @nn.compact
    def __call__(self, features: Array) -> Array:
        """Computes values `[...]` of features `[..., D]`."""
        rows, restore = as_rows(features)
        return restore(nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(rows).squeeze(-1))


class DuelingHead(nn.Module):
    """Action values from a state value and centred advantages: `q(s, a) = v(s) + A(s, a) - mean_b A(s, b)`.

    Attributes:
        num_actions: size of the action axis A.

    References:
        Wang et al. (2016), Dueling network architectures for deep reinforcement learning, equation 9.
    """

    num_actions: int

    @nn.compact
    def __call__(self, features: Array) -> Array:
        """Computes action values `[..., A]` of features `[..., D]`."""
        value = nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0), name="value")(features)
        advantage = nn.Dense(self.num_actions, kernel_init=nn.initializers.orthogonal(1.0), name="advantage")(features)
        return value + advantage - advantage.mean(-1, keepdims=True)
