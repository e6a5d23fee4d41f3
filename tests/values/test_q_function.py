"""Shapes, independence and scaling of action values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks.torsos import CNN, MLP
from jaxagents.types import Box, Discrete
from jaxagents.values.q_function import make_q_function, make_twin_q


@pytest.mark.parametrize("dueling", [False, True])
def test_values_of_all_actions_for_any_leading_axes(dueling):
    q_function = make_q_function(Box((3,)), Discrete(4), encoder=MLP((8,)), dueling=dueling)
    params = q_function.init(jax.random.key(0))
    observation = jax.random.normal(jax.random.key(1), (5, 2, 3))
    q = q_function.apply(params, observation)
    assert q.shape == (5, 2, 4) and q.dtype == jnp.float32
    np.testing.assert_allclose(q_function.apply(params, observation[3, 1]), q[3, 1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.jit(q_function.apply)(params, observation), q, rtol=1e-5, atol=1e-6)


def test_images_of_bytes_are_read():
    q_function = make_q_function(Box((6, 6, 2), 0, 255, np.uint8), Discrete(3), encoder=CNN((4,), hidden_sizes=(8,)))
    q = q_function.apply(q_function.init(jax.random.key(0)), jnp.ones((2, 6, 6, 2), jnp.uint8))
    assert q.shape == (2, 3)


def test_twins_differ_and_are_functions_of_observation_and_action():
    twin_q = make_twin_q(Box((3,)), Box((2,), -2.0, 2.0), encoder=MLP((8,)))
    params = twin_q.init(jax.random.key(0))
    observation, action = jnp.ones((4, 5, 3)), jnp.ones((4, 5, 2))
    q = twin_q.apply(params, observation, action)
    assert q.shape == (2, 4, 5)
    assert np.all(np.abs(q[0] - q[1]) > 1e-4)
    gradients = jax.grad(lambda o, a: twin_q.apply(params, o, a).sum(), (0, 1))(observation, action)
    assert all(np.all(np.any(gradient != 0.0, axis=-1)) for gradient in gradients)


def test_each_twin_learns_from_its_own_value():
    twin_q = make_twin_q(Box((3,)), Box((1,), -1.0, 1.0), encoder=MLP((4,)))
    params = twin_q.init(jax.random.key(0))
    gradient = jax.grad(lambda p: twin_q.apply(p, jnp.ones((1, 3)), jnp.ones((1, 1)))[0].sum())(params)
    assert all(np.all(leaf[1] == 0.0) for leaf in jax.tree.leaves(gradient))
    assert any(np.any(leaf[0] != 0.0) for leaf in jax.tree.leaves(gradient))


def test_actions_are_seen_squashed():
    """What the environment does not tell apart, the values do not: all actions far out are its bound."""
    observation = jnp.array([[0.3, -0.2]])
    unit = make_twin_q(Box((2,)), Box((1,), -1.0, 1.0), encoder=MLP((4,)))
    wide = make_twin_q(Box((2,)), Box((1,), 10.0, 30.0), encoder=MLP((4,)))
    params = unit.init(jax.random.key(0))
    far, further = (unit.apply(params, observation, jnp.array([[action]])) for action in (20.0, 1000.0))
    np.testing.assert_array_equal(far, further)
    np.testing.assert_array_equal(wide.apply(params, observation, jnp.array([[20.0]])), far)
    assert np.all(np.abs(far - unit.apply(params, observation, jnp.array([[-20.0]]))) > 1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_q_function(Box((3,)), Box((1,), -1.0, 1.0), encoder=MLP()), "`action_space` must be Discrete"),
        (lambda: make_twin_q(Box((3,)), Discrete(2), encoder=MLP()), "`action_space` must be a Box of rank 1"),
        (lambda: make_twin_q(Box((3, 3)), Box((1,), -1.0, 1.0), encoder=MLP()), "`observation_space` must be a Box"),
        (lambda: make_twin_q(Box((3,)), Box((1,)), encoder=MLP()), "`action_space` must be bounded"),
    ],
)
def test_refuses_other_spaces(make, message):
    with pytest.raises(ValueError, match=message):
        make()
