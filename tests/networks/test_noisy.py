"""Dense layers whose weights are random."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.networks.noisy import NoisyDense, draw_layer_noise

KEY = jax.random.key(0)
LAYER = NoisyDense(3, noise_scale=0.5)
INPUTS = jax.random.normal(KEY, (5, 4))
PARAMS = LAYER.init(KEY, INPUTS)


def test_equals_the_layer_with_the_noisy_weights():
    """Row by row: `(W + S * g(e_out) g(e_in)^T) x + b + s * g(e_out)`."""
    noise = draw_layer_noise(jax.random.key(1), (5,), 4, 3)
    params = jax.tree.map(lambda leaf: jax.random.normal(KEY, leaf.shape), PARAMS)
    actual = LAYER.apply(params, INPUTS, noise)
    p = {name: np.asarray(leaf) for name, leaf in params["params"].items()}
    for row, x in enumerate(np.asarray(INPUTS)):
        into, out = (np.asarray(noise[name][row]) for name in ("inputs", "outputs"))
        into, out = (np.sign(e) * np.sqrt(np.abs(e)) for e in (into, out))
        kernel = p["kernel"] + p["kernel_scale"] * np.outer(into, out)
        np.testing.assert_allclose(actual[row], x @ kernel + p["bias"] + p["bias_scale"] * out, rtol=1e-4)


def test_starts_as_in_the_paper():
    p = PARAMS["params"]
    np.testing.assert_allclose(p["kernel_scale"], 0.25)  # 0.5 / sqrt(4)
    np.testing.assert_allclose(p["bias_scale"], 0.25)
    assert np.abs(p["kernel"]).max() <= 0.5 and np.abs(p["bias"]).max() <= 0.5


def test_without_noise_it_is_a_dense_layer():
    p = PARAMS["params"]
    np.testing.assert_allclose(LAYER.apply(PARAMS, INPUTS), INPUTS @ p["kernel"] + p["bias"][None], rtol=1e-5)


def test_noise_is_shared_along_axes_that_it_lacks():
    noise = draw_layer_noise(KEY, (5,), 4, 3)
    twice = LAYER.apply(PARAMS, jnp.stack([INPUTS, 2.0 * INPUTS], axis=1), noise)
    np.testing.assert_allclose(twice[:, 0], LAYER.apply(PARAMS, INPUTS, noise), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(twice[:, 1], LAYER.apply(PARAMS, 2.0 * INPUTS, noise), rtol=1e-5, atol=1e-6)
