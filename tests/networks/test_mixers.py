"""Mixers: sums, and mixtures that never fall in a value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks.mixers import MonotonicMixer, SumMixer

KEY = jax.random.key(0)


def test_sums():
    q, state = jnp.array([[1.0, -2.0, 4.0], [0.5, 0.5, 0.0]]), jnp.ones((2, 5))
    np.testing.assert_array_equal(SumMixer().apply(SumMixer().init(KEY, q, state), q, state), [3.0, 1.0])


def dense(kernel, bias):
    return {"kernel": jnp.array(kernel), "bias": jnp.array(bias)}


def test_monotonic_mixture_by_hand():
    mixer, q, state = MonotonicMixer(embedding_size=2), jnp.array([[1.0, -2.0]]), jnp.array([[2.0]])
    params = {
        "weights_1": dense([[0.5, -1.0, -0.5, 0.0]], [0.0, 0.0, 0.0, 0.5]),  # |1, -2, -1, 0.5|
        "bias_1": dense([[0.0, 0.0]], [2.0, -4.0]),
        "weights_2": dense([[-1.0, 0.5]], [0.0, 0.0]),  # |-2, 1|
        "bias_2_hidden": dense([[1.0, -1.0]], [0.0, 0.0]),  # relu(2, -2)
        "bias_2": dense([[3.0], [100.0]], [1.0]),  # 7
    }
    # Hidden: 1 * 1 - 2 * 1 + 2 = 1 and 1 * 2 - 2 * 0.5 - 4 = -3.
    expected = 2.0 * 1.0 + 1.0 * (np.exp(-3.0) - 1.0) + 7.0
    assert jax.tree.map(jnp.shape, mixer.init(KEY, q, state)["params"]) == jax.tree.map(jnp.shape, params)
    np.testing.assert_allclose(mixer.apply({"params": params}, q, state), [expected], rtol=1e-5)


@pytest.mark.exhaustive
def test_mixtures_never_fall_in_a_value_and_depend_on_the_state():
    mixer = MonotonicMixer(embedding_size=8)
    keys = jax.random.split(KEY, 3)
    q, state = 5.0 * jax.random.normal(keys[0], (64, 3)), jax.random.normal(keys[1], (64, 4))
    params = mixer.init(keys[2], q, state)
    slope = jax.vmap(jax.grad(lambda q, state: mixer.apply(params, q, state)))(q, state)
    assert float(slope.min()) >= 0.0 and float(slope.max()) > 0.0
    one = jnp.broadcast_to(q[:1], q.shape)
    assert float(jnp.std(mixer.apply(params, one, state))) > 0.01
    # Any leading axes.
    grid = mixer.apply(params, q.reshape(8, 8, 3), state.reshape(8, 8, 4))
    np.testing.assert_allclose(grid.reshape(-1), mixer.apply(params, q, state), rtol=1e-5)
