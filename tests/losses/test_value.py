"""Value losses against numbers worked out by hand and against rlax."""

import jax
import jax.numpy as jnp
import numpy as np
import rlax

from jaxagents.losses.value import clipped_value_loss, huber_loss, squared_loss


def test_squared_loss_by_hand():
    np.testing.assert_allclose(squared_loss(jnp.array([1.0, -2.0]), jnp.array([4.0, -2.0])), [4.5, 0.0])


def test_huber_loss_by_hand_and_rlax():
    value, target = jnp.array([0.5, 3.0, -3.0, 0.0]), jnp.zeros(4)
    np.testing.assert_allclose(huber_loss(value, target, delta=2.0), [0.125, 4.0, 4.0, 0.0])
    np.testing.assert_allclose(huber_loss(value, target, delta=0.7), rlax.huber_loss(value, 0.7), rtol=1e-6)


def test_huber_loss_with_a_wide_delta_is_squared():
    value, target = jnp.array([0.5, -30.0]), jnp.array([1.0, 2.0])
    np.testing.assert_allclose(huber_loss(value, target, delta=1e3), squared_loss(value, target))


def test_gradients_reach_values_only_and_huber_is_clipped():
    value, target = jnp.array([3.0, -0.5]), jnp.array([0.0, 0.0])
    for loss, expected in ((squared_loss, [3.0, -0.5]), (huber_loss, [1.0, -0.5])):
        to_value, to_target = jax.grad(lambda v, t, loss=loss: loss(v, t).sum(), (0, 1))(value, target)
        np.testing.assert_allclose(to_value, expected)
        np.testing.assert_array_equal(to_target, 0.0)


def test_clipped_value_loss_by_hand():
    old_value, target = jnp.array([1.0, 1.0, 1.0, 1.0]), jnp.array([2.0, 2.0, 0.0, 1.0])
    value = jnp.array([1.05, 1.5, 1.5, 1.0])
    # Within the range; towards the target beyond it: the clipped 1.1 is worse; away from it: the free 1.5 is worse.
    expected = [0.5 * 0.95**2, 0.5 * 0.9**2, 0.5 * 1.5**2, 0.0]
    np.testing.assert_allclose(clipped_value_loss(value, old_value, target, clip_epsilon=0.1), expected, rtol=1e-6)


def test_clipped_value_loss_has_no_gradient_beyond_the_range():
    def loss(value, old_value, target):
        return clipped_value_loss(value, old_value, target, clip_epsilon=0.1).sum()

    arguments = jnp.array([1.5, 1.5]), jnp.array([1.0, 1.0]), jnp.array([2.0, 0.0])
    to_value, to_old_value, to_target = jax.grad(loss, (0, 1, 2))(*arguments)
    np.testing.assert_allclose(to_value, [0.0, 1.5])
    np.testing.assert_array_equal(to_old_value, 0.0)
    np.testing.assert_array_equal(to_target, 0.0)


def test_jit_and_vmap_change_nothing():
    value, old_value, target = jnp.array([1.05, 1.5]), jnp.array([1.0, 1.2]), jnp.array([2.0, 0.0])

    def losses(value, old_value, target):
        return (
            huber_loss(value, target, delta=0.5),
            clipped_value_loss(value, old_value, target, clip_epsilon=0.1),
        )

    expected = losses(value, old_value, target)
    for other in (jax.jit(losses), jax.vmap(losses)):
        jax.tree.map(np.testing.assert_allclose, expected, other(value, old_value, target))
