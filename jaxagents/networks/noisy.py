"""Dense layers with random weights: exploration that the network learns to reduce."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxagents.types import Array

LayerNoise = dict[str, Array]
"""Standard normal samples for a layer: `inputs` `[..., D]` and `outputs` `[..., F]`."""


class NoisyDense(nn.Module):
    """A dense layer with factorised Gaussian noise, `y = (W + S * g(e_out) g(e_in)^T) x + b + s * g(e_out)`.

    `g(e) = sign(e) sqrt(|e|)`; W, b, S and s are learned, and e_in, e_out are standard normal samples. Every row of a
    batch may have its own weights, because `(S * g(e_out) g(e_in)^T) x = g(e_out) * (S (g(e_in) * x))`.

    Attributes:
        features: F, size of the output.
        noise_scale: initial value of S and s, times `1 / sqrt(D)`. Paper: 0.5.

    References:
        Fortunato et al. (2018), Noisy networks for exploration, equations 9 to 11.
    """

    features: int
    noise_scale: float = 0.5

    @nn.compact
    def __call__(self, inputs: Array, noise: LayerNoise | None = None) -> Array:
        """Computes `[..., F]` of inputs `[..., D]`; without noise, only W and b are used.

        The noise may lack the axes of the inputs just before the last one; it is then shared along them.
        """
        size = inputs.shape[-1]
        bound, scale = 1.0 / math.sqrt(size), nn.initializers.constant(self.noise_scale / math.sqrt(size))

        def uniform(key: Array, shape: tuple[int, ...]) -> Array:
            return jax.random.uniform(key, shape, minval=-bound, maxval=bound)

        outputs = inputs @ self.param("kernel", uniform, (size, self.features))
        outputs = outputs + _add_axes(self.param("bias", uniform, (self.features,)), outputs.ndim)
        kernel_scale = self.param("kernel_scale", scale, (size, self.features))
        bias_scale = self.param("bias_scale", scale, (self.features,))
        if noise is None:
            return outputs
        into, out = (_signed_root(_add_axes(noise[name], inputs.ndim)) for name in ("inputs", "outputs"))
        return outputs + out * ((inputs * into) @ kernel_scale + _add_axes(bias_scale, outputs.ndim))


def draw_layer_noise(key: Array, leading: tuple[int, ...], num_inputs: int, num_outputs: int) -> LayerNoise:
    """Draws the noise of a layer.

    Args:
        key: PRNG key.
        leading: sizes of the axes before the feature axis.
        num_inputs: D, size of the input.
        num_outputs: F, size of the output.
    """
    inputs_key, outputs_key = jax.random.split(key)
    return {
        "inputs": jax.random.normal(inputs_key, (*leading, num_inputs)),
        "outputs": jax.random.normal(outputs_key, (*leading, num_outputs)),
    }


def _signed_root(values: Array) -> Array:
    return jnp.sign(values) * jnp.sqrt(jnp.abs(values))


def _add_axes(values: Array, ndim: int) -> Array:
    """Adds axes before the last one."""
    return values.reshape(*values.shape[:-1], *(1,) * (ndim - values.ndim), values.shape[-1])
