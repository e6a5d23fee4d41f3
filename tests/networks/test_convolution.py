import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxagents.networks.convolution import Convolution


@pytest.mark.parametrize(("kernel_size", "stride"), [(3, 1), (2, 2), (3, 2), (1, 1), (4, 3)])
def test_output_and_gradients_are_those_of_flax(kernel_size, stride):
    module = Convolution(5, kernel_size, stride)
    reference = nn.Conv(5, (kernel_size, kernel_size), (stride, stride), padding="VALID")
    image = jax.random.normal(jax.random.key(0), (2, 3, 10, 8, 4))
    params = module.init(jax.random.key(1), image)
    output = module.apply(params, image)
    np.testing.assert_allclose(output, reference.apply(params, image), atol=1e-5)

    def loss(apply, params, image):
        return jnp.sum(jnp.sin(apply(params, image)))

    actual = jax.grad(loss, argnums=(1, 2))(module.apply, params, image)
    wanted = jax.grad(loss, argnums=(1, 2))(reference.apply, params, image)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), actual, wanted)


def test_the_two_ways_agree():
    module = Convolution(3, 3, 2)
    images, kernel = (
        jax.random.normal(jax.random.key(0), (4, 9, 9, 2)),
        jax.random.normal(jax.random.key(1), (3, 3, 2, 3)),
    )
    np.testing.assert_allclose(module._by_patches(images, kernel), module._by_convolution(images, kernel), atol=1e-5)


def test_a_hand_computed_sum_of_neighbours():
    module = Convolution(1, 2)
    image = jnp.arange(9.0).reshape(3, 3, 1)
    params = {"params": {"kernel": jnp.ones((2, 2, 1, 1)), "bias": jnp.array([0.5])}}
    np.testing.assert_allclose(module.apply(params, image)[..., 0], [[8.5, 12.5], [20.5, 24.5]])
