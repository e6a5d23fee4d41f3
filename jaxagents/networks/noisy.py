"""Dense layers whose weights are random: exploration that the network learns to do without."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxagents.types import Array

LayerNoise = dict[str, Array]
"""Standard normal numbers of a layer: `inputs` `[..., D]` and `outputs` `[..., F]`."""


class NoisyDense(nn.Module):
    """A dense layer with factorised Gaussian noise, `y = (W + S * g(e_out) g(e_in)^T) x + b + s * g(e_out)`.

    `g(e) = sign(e) sqrt(|e|)`; W, b, S and s are learned, and e_in, e_out are standard normal numbers. Every row of a
    batch may have weights of its own, because `(S * g(e_out) g(e_in)^T) x = g(e_out) * (S (g(e_in) * x))`.

    Attributes:
        features: size of the output F.
        noise_scale: S and s at the start, times `1 / sqrt(D)`. Paper: 0.5.

    References:
        Fortunato et al. (2018), Noisy networks for exploration, equations 9 to 11.
    """

    features: int
    noise_scale: float = 0.5

    @nn.compact
    def __call__(self, inputs: Array, noise: LayerNoise | None = None) -> Array:
        """Computes `[..., F]` of inputs `[..., D]`; without noise by W and b alone.

        Noise may lack axes of the inputs next to the last one, which then share it.
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
        leading: axes before those of the features.
        num_inputs: D.
        num_outputs: F.
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
