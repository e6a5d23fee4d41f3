"""Heads: from features to parameters of a distribution, or to values."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxagents.networks.initializers import orthogonal
from jaxagents.networks.noisy import LayerNoise, NoisyDense, draw_layer_noise
from jaxagents.networks.torsos import as_rows
from jaxagents.types import Array


class CategoricalHead(nn.Module):
    """Logits of a categorical distribution, near uniform at the start (orthogonal with gain 0.01).

    Attributes:
        num_actions: A, number of actions.
    """

    num_actions: int

    @nn.compact
    def __call__(self, features: Array) -> Array:
        """Computes logits `[..., A]` of features `[..., D]`."""
        rows, restore = as_rows(features)
        return restore(nn.Dense(self.num_actions, kernel_init=orthogonal(0.01))(rows))


class TanhNormalHead(nn.Module):
    """Location and scale of a normal distribution before squashing by tanh.

    `scale = softplus(x) + min_scale`, where `x` is a parameter or, with `state_dependent_scale`, a function of the
    features; at the start `scale = initial_scale` (approximately, if it depends on the features).

    Attributes:
        action_dim: A, number of dimensions of an action.
        state_dependent_scale: whether the scale is a function of the features.
        min_scale: lower bound of the scale, in units of the action before squashing.
        initial_scale: scale at the start, in the units of `min_scale`.
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
        loc = nn.Dense(self.action_dim, kernel_init=orthogonal(0.01), name="loc")(features)
        # The inverse of softplus at the initial scale.
        start = nn.initializers.constant(math.log(math.expm1(self.initial_scale - self.min_scale)))
        if self.state_dependent_scale:
            kernel_init = orthogonal(0.01)
            raw_scale = nn.Dense(self.action_dim, kernel_init=kernel_init, bias_init=start, name="raw_scale")(features)
        else:
            raw_scale = jnp.broadcast_to(self.param("raw_scale", start, (self.action_dim,)), loc.shape)
        return loc, nn.softplus(raw_scale) + self.min_scale


class ValueHead(nn.Module):
    """A scalar value (orthogonal initialisation with gain 1)."""

    @nn.compact
    def __call__(self, features: Array) -> Array:
        """Computes values `[...]` of features `[..., D]`."""
        rows, restore = as_rows(features)
        return restore(nn.Dense(1, kernel_init=orthogonal(1.0))(rows).squeeze(-1))


class ActionValueHead(nn.Module):
    """K numbers for every action: its value, or a description of the distribution of its returns.

    `x(s, a) = A(s, a)`, or with `dueling` `x(s, a) = v(s) + A(s, a) - mean_b A(s, b)`, for each number.

    Attributes:
        num_actions: A, number of actions.
        num_outputs: K, numbers per action.
        dueling: whether to add a state value and centre the advantages.
        noise_scale: initial scale of the weights' noise, see `NoisyDense`; None: weights without noise.

    References:
        Wang et al. (2016), Dueling network architectures for deep reinforcement learning, equation 9.
    """

    num_actions: int
    num_outputs: int = 1
    dueling: bool = False
    noise_scale: float | None = None

    @nn.compact
    def __call__(self, features: Array, noise: dict[str, LayerNoise] | None = None) -> Array:
        """Computes `[..., A, K]` of features `[..., D]` and, optionally, the noise of `draw_noise`."""
        rows, restore = as_rows(features) if noise is None else (features, lambda results: results)

        def layer(name: str, size: int) -> Array:
            if self.noise_scale is None:
                return nn.Dense(size, kernel_init=orthogonal(1.0), name=name)(rows)
            return NoisyDense(size, self.noise_scale, name=name)(rows, None if noise is None else noise[name])

        outputs = layer("advantage", self.num_actions * self.num_outputs)
        outputs = outputs.reshape(*rows.shape[:-1], self.num_actions, self.num_outputs)
        if self.dueling:
            outputs = layer("value", self.num_outputs)[..., None, :] + outputs - outputs.mean(-2, keepdims=True)
        return restore(outputs)

    def draw_noise(self, key: Array, leading: tuple[int, ...], num_features: int) -> dict[str, LayerNoise]:
        """Draws the noise of weights, one sample for each entry of the leading axes.

        Args:
            key: PRNG key.
            leading: sizes of the axes before the feature axis.
            num_features: D.

        Returns:
            The noise by name of the layer.
        """
        sizes = {"advantage": self.num_actions * self.num_outputs}
        sizes |= {"value": self.num_outputs} if self.dueling else {}
        keys = jax.random.split(key, len(sizes))
        pairs = zip(keys, sizes.items(), strict=True)
        return {name: draw_layer_noise(key, leading, num_features, size) for key, (name, size) in pairs}


class CosineEmbedding(nn.Module):
    """Features of a state at quantile fractions of its return: `f_d relu(sum_i w_di cos(pi i tau) + b_d)`.

    Attributes:
        num_cosines: number of terms of the sum, from i = 0.

    References:
        Dabney et al. (2018), Implicit quantile networks for distributional reinforcement learning, equation 4.
    """

    num_cosines: int = 64

    @nn.compact
    def __call__(self, features: Array, fractions: Array) -> Array:
        """Computes `[..., K, D]` of features `[..., D]` and fractions `[..., K]`."""
        rows, restore = as_rows(features)
        fractions, _ = as_rows(fractions)
        orders = jnp.arange(self.num_cosines).reshape((1,) * fractions.ndim + (-1,))
        cosines = jnp.cos(jnp.pi * orders * fractions[..., None])
        return restore(rows[..., None, :] * nn.relu(nn.Dense(features.shape[-1])(cosines)))
