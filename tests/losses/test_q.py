"""Temporal differences and losses of action values by hand and against rlax."""

import jax
import jax.numpy as jnp
import numpy as np
import rlax

from jaxagents.losses.q import (
    double_q_learning_error,
    q_learning_error,
    sac_actor_loss,
    sac_critic_loss,
    sac_temperature_loss,
    soft_q_target,
)

Q = jnp.array([[1.0, 2.0, 3.0], [0.0, -1.0, 4.0]])
NEXT_Q = jnp.array([[5.0, 7.0, 6.0], [1.0, 2.0, 3.0]])
SELECTOR = jnp.array([[9.0, 0.0, 1.0], [0.0, 8.0, 1.0]])
ACTION = jnp.array([1, 0])
REWARD = jnp.array([10.0, 20.0])
DISCOUNT = jnp.array([0.5, 0.0])


def test_q_learning_error_by_hand():
    actual = q_learning_error(Q, ACTION, REWARD, DISCOUNT, NEXT_Q)
    np.testing.assert_allclose(actual, [10.0 + 0.5 * 7.0 - 2.0, 20.0])


def test_double_q_learning_error_by_hand():
    actual = double_q_learning_error(Q, ACTION, REWARD, DISCOUNT, NEXT_Q, SELECTOR)
    np.testing.assert_allclose(actual, [10.0 + 0.5 * 5.0 - 2.0, 20.0])


def test_errors_agree_with_rlax():
    discount = jnp.array([0.5, 0.9])
    expected = jax.vmap(rlax.q_learning)(Q, ACTION, REWARD, discount, NEXT_Q)
    np.testing.assert_allclose(q_learning_error(Q, ACTION, REWARD, discount, NEXT_Q), expected)
    expected = jax.vmap(rlax.double_q_learning)(Q, ACTION, REWARD, discount, NEXT_Q, SELECTOR)
    np.testing.assert_allclose(double_q_learning_error(Q, ACTION, REWARD, discount, NEXT_Q, SELECTOR), expected)


def test_forbidden_next_actions_are_not_maximised_over():
    mask = jnp.array([[True, False, False], [True, True, True]])
    actual = q_learning_error(Q, ACTION, REWARD, DISCOUNT, NEXT_Q, next_action_mask=mask)
    np.testing.assert_allclose(actual, [10.0 + 0.5 * 5.0 - 2.0, 20.0])
    mask = jnp.array([[False, True, True], [True, True, True]])
    actual = double_q_learning_error(Q, ACTION, REWARD, DISCOUNT, NEXT_Q, SELECTOR, next_action_mask=mask)
    np.testing.assert_allclose(actual, [10.0 + 0.5 * 6.0 - 2.0, 20.0])


def test_error_has_gradient_in_the_chosen_value_only():
    def total(q, next_q, selector):
        return double_q_learning_error(q, ACTION, REWARD, jnp.array([0.5, 0.5]), next_q, selector).sum()

    to_q, to_next_q, to_selector = jax.grad(total, (0, 1, 2))(Q, NEXT_Q, SELECTOR)
    np.testing.assert_array_equal(to_q, [[0.0, -1.0, 0.0], [-1.0, 0.0, 0.0]])
    np.testing.assert_array_equal(to_next_q, 0.0)
    np.testing.assert_array_equal(to_selector, 0.0)


def test_soft_q_target_by_hand_and_without_gradient():
    arguments = (REWARD, DISCOUNT, jnp.array([[3.0, 1.0], [2.0, 9.0]]), jnp.array([-1.0, 5.0]), jnp.float32(0.2))
    np.testing.assert_allclose(soft_q_target(*arguments), [10.0 + 0.5 * (2.0 + 0.2), 20.0])
    gradients = jax.grad(lambda *a: soft_q_target(*a).sum(), (0, 1, 2, 3, 4))(*arguments)
    assert all(np.all(gradient == 0.0) for gradient in gradients)


def test_sac_critic_loss_by_hand_with_gradient_to_both_critics():
    q, target = jnp.array([[1.0], [4.0]]), jnp.array([2.0])
    np.testing.assert_allclose(sac_critic_loss(q, target), [0.5 * 1.0 + 0.5 * 4.0])
    to_q, to_target = jax.grad(lambda q, t: sac_critic_loss(q, t).sum(), (0, 1))(q, target)
    np.testing.assert_allclose(to_q, [[-1.0], [2.0]])
    np.testing.assert_array_equal(to_target, 0.0)


def test_sac_actor_loss_by_hand_with_gradient_to_the_smaller_critic():
    q, log_prob, temperature = jnp.array([[1.0], [4.0]]), jnp.array([-3.0]), jnp.float32(0.5)
    np.testing.assert_allclose(sac_actor_loss(q, log_prob, temperature), [0.5 * -3.0 - 1.0])
    gradients = jax.grad(lambda *a: sac_actor_loss(*a).sum(), (0, 1, 2))(q, log_prob, temperature)
    np.testing.assert_allclose(gradients[0], [[-1.0], [0.0]])
    np.testing.assert_allclose(gradients[1], [0.5])
    assert float(gradients[2]) == 0.0


def test_sac_temperature_rises_when_the_policy_is_too_certain():
    log_temperature = jnp.log(2.0)
    certain, uncertain = jnp.array([5.0]), jnp.array([0.5])  # Entropies -5 and -0.5 around a target of -1.
    np.testing.assert_allclose(sac_temperature_loss(log_temperature, certain, -1.0), [-8.0], rtol=1e-6)

    def slope(log_prob):
        return jax.grad(lambda a, b: sac_temperature_loss(a, b, -1.0).sum(), (0, 1))(log_temperature, log_prob)

    assert slope(certain)[0] < 0.0 < slope(uncertain)[0]
    np.testing.assert_array_equal(slope(certain)[1], 0.0)


def test_jit_and_vmap_change_nothing():
    arguments = (Q, ACTION, REWARD, DISCOUNT, NEXT_Q, SELECTOR)
    expected = double_q_learning_error(*arguments)
    np.testing.assert_allclose(jax.jit(double_q_learning_error)(*arguments), expected)
    np.testing.assert_allclose(jax.vmap(double_q_learning_error)(*arguments), expected)
