"""Small convolutions that are fast on every backend, including their gradients."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxagents.networks.initializers import orthogonal
from jaxagents.types import Array


class Convolution(nn.Module):
    """A convolution without padding over `[..., height, width, channels]`, with the parameters of `nn.Conv`.

    Attributes:
        num_channels: number of output channels.
        kernel_size: side of the square kernel in pixels.
        stride: step of the kernel in pixels.
        dtype: dtype of the products and the output; None: that of the image and the parameters.
    """

    num_channels: int
    kernel_size: int
    stride: int = 1
    dtype: str | None = None

    @nn.compact
    def __call__(self, image: Array) -> Array:
        """Computes `[..., (height - kernel_size) // stride + 1, ..., num_channels]` of an image."""
        shape = (self.kernel_size, self.kernel_size, image.shape[-1], self.num_channels)
        kernel = self.param("kernel", orthogonal(math.sqrt(2.0)), shape)
        bias = self.param("bias", nn.initializers.zeros, (self.num_channels,))
        if self.dtype is not None:
            image, kernel, bias = (values.astype(self.dtype) for values in (image, kernel, bias))
        leading = image.shape[:-3]
        images = image.reshape(math.prod(leading), *image.shape[-3:])
        output = jax.lax.platform_dependent(images, kernel, cpu=self._by_patches, default=self._by_convolution)
        output = output + bias.reshape(1, 1, 1, -1)
        return output.reshape(*leading, *output.shape[1:])

    def _by_patches(self, images: Array, kernel: Array) -> Array:
        # One matrix product over shifted slices: the gradient of a convolution is several times slower on XLA:CPU.
        height, width = ((side - self.kernel_size) // self.stride + 1 for side in images.shape[1:3])
        patches = [
            images[
                :, row : row + height * self.stride : self.stride, column : column + width * self.stride : self.stride
            ]
            for row in range(self.kernel_size)
            for column in range(self.kernel_size)
        ]
        return jnp.concatenate(patches, axis=-1) @ kernel.reshape(-1, self.num_channels)

    def _by_convolution(self, images: Array, kernel: Array) -> Array:
        return jax.lax.conv_general_dilated(
            images, kernel, (self.stride, self.stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
