"""Normalisation of features."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxagents.types import Array


class RMSNorm(nn.Module):
    """Computes `x / sqrt(mean(x^2) + epsilon) * scale` over the last axis, the statistics in float32.

    Attributes:
        epsilon: added to the mean square.
        dtype: of the output.
        param_dtype: of the scale, ones at the start.

    References:
        Zhang and Sennrich (2019), "Root Mean Square Layer Normalization", equation 4.
    """

    epsilon: float = 1e-6
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Normalises `[..., D]`."""
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:], self.param_dtype)
        x = x.astype(jnp.float32)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.epsilon)
        return x.astype(self.dtype) * scale.astype(self.dtype).reshape((1,) * (x.ndim - 1) + (-1,))
