"""Targets and losses of action values by hand and against rlax."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from jaxagents.losses.q import (
    categorical_loss,
    double_q_target,
    munchausen_target,
    q_loss,
    q_target,
    quantile_huber_loss,
    rescale,
    rescaled_q_target,
    sac_actor_loss,
    sac_critic_loss,
    sac_temperature_loss,
    soft_q_target,
    unscale,
)
from jaxagents.losses.value import huber_loss
from jaxagents.ops.value_distributions import CategoricalValues, QuantileValues, select_action
from jaxagents.types import QView

Q = jnp.array([[1.0, 2.0, 3.0], [0.0, -1.0, 4.0]])
NEXT_Q = jnp.array([[5.0, 7.0, 6.0], [1.0, 2.0, 3.0]])
SELECTOR = jnp.array([[9.0, 0.0, 1.0], [0.0, 8.0, 1.0]])
ACTION = jnp.array([1, 0])
REWARD = jnp.array([10.0, 20.0])
DISCOUNT = jnp.array([0.5, 0.0])
VIEW = QView(
    action=ACTION, reward=REWARD, discount=DISCOUNT, target_values=Q, next_values=NEXT_Q, next_selector=SELECTOR
)
DISCOUNTED = VIEW.replace(discount=jnp.array([0.5, 0.9]))


def test_targets_by_hand():
    np.testing.assert_allclose(q_target(VIEW), [10.0 + 0.5 * 7.0, 20.0])
    np.testing.assert_allclose(double_q_target(VIEW), [10.0 + 0.5 * 5.0, 20.0])


def test_targets_agree_with_rlax():
    chosen, discount = select_action(Q, ACTION), DISCOUNTED.discount
    expected = jax.vmap(rlax.q_learning)(Q, ACTION, REWARD, discount, NEXT_Q)
    np.testing.assert_allclose(q_target(DISCOUNTED) - chosen, expected)
    expected = jax.vmap(rlax.double_q_learning)(Q, ACTION, REWARD, discount, NEXT_Q, SELECTOR)
    np.testing.assert_allclose(double_q_target(DISCOUNTED) - chosen, expected)


def test_forbidden_next_actions_are_not_maximised_over():
    mask = jnp.array([[True, False, False], [True, True, True]])
    np.testing.assert_allclose(q_target(VIEW.replace(next_action_mask=mask)), [10.0 + 0.5 * 5.0, 20.0])
    mask = jnp.array([[False, True, True], [True, True, True]])
    np.testing.assert_allclose(double_q_target(VIEW.replace(next_action_mask=mask)), [10.0 + 0.5 * 6.0, 20.0])


def test_rescaling_agrees_with_rlax_and_inverts():
    values = jnp.array([-300.0, -2.0, -1e-3, 0.0, 0.5, 7.0, 5000.0])
    pair = rlax.SIGNED_HYPERBOLIC_PAIR
    np.testing.assert_allclose(rescale(values), pair.apply(values), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(unscale(values), pair.apply_inv(values), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(unscale(rescale(values)), values, rtol=1e-4, atol=1e-5)


def test_rescaled_targets_agree_with_rlax():
    """One step of `transformed_n_step_q_learning`, which takes the action of the successor."""
    oracle = partial(rlax.transformed_n_step_q_learning, n=1, tx_pair=rlax.SIGNED_HYPERBOLIC_PAIR)
    best = jnp.argmax(SELECTOR, axis=-1)
    columns = (values[:, None] for values in (Q, ACTION, NEXT_Q, best, REWARD, DISCOUNTED.discount))
    error = jax.vmap(oracle)(*columns)
    actual = rescaled_q_target(DISCOUNTED) - select_action(Q, ACTION)
    np.testing.assert_allclose(actual, error[:, 0], rtol=1e-3, atol=1e-3)


LOGITS, NEXT_LOGITS, SELECTOR_LOGITS = jax.random.normal(jax.random.key(0), (3, 2, 3, 5))
ATOMS = jnp.linspace(-10.0, 30.0, 5)


def categorical(logits):
    return CategoricalValues(logits=logits, low=-10.0, high=30.0)


def test_categorical_loss_agrees_with_rlax():
    """Up to the entropy of the target, in which the two differ."""
    view = DISCOUNTED.replace(next_values=categorical(NEXT_LOGITS), next_selector=categorical(SELECTOR_LOGITS))
    target = double_q_target(view)
    loss = categorical_loss(select_action(categorical(LOGITS), ACTION), target)
    selector = jnp.sum(jax.nn.softmax(SELECTOR_LOGITS) * ATOMS[None, None], axis=-1)
    expected = jax.vmap(rlax.categorical_double_q_learning, (None, 0, 0, 0, 0, None, 0, 0))(
        ATOMS, LOGITS, ACTION, REWARD, view.discount, ATOMS, NEXT_LOGITS, selector
    )
    entropy = -jnp.sum(jnp.where(target > 0.0, target * jnp.log(jnp.maximum(target, 1e-30)), 0.0), axis=-1)
    np.testing.assert_allclose(loss + entropy, expected, rtol=1e-5)
    np.testing.assert_allclose(target.sum(-1), 1.0, rtol=1e-6)


def test_projection_by_hand():
    """Atoms at 0, 1 and 2: half of the probability is at 1.5, between two of them, the rest beyond the last."""
    value = CategoricalValues(logits=jnp.log(jnp.array([[0.5, 0.5, 1e-30]])), low=0.0, high=2.0)
    actual = value.backup(jnp.array([1.5]), jnp.array([1.0]))
    np.testing.assert_allclose(actual, [[0.0, 0.25, 0.75]], atol=1e-6)


QUANTILES, NEXT_QUANTILES, SELECTOR_QUANTILES = 5.0 * jax.random.normal(jax.random.key(1), (3, 2, 3, 4))
FRACTIONS = jnp.array([[0.1, 0.3, 0.6, 0.8], [0.2, 0.5, 0.7, 0.9]])


def quantiles(values):
    return QuantileValues(quantiles=values, fractions=FRACTIONS)


@pytest.mark.parametrize("delta", [1.0, 0.3])
def test_quantile_loss_agrees_with_rlax(delta):
    view = DISCOUNTED.replace(next_values=quantiles(NEXT_QUANTILES), next_selector=quantiles(SELECTOR_QUANTILES))
    target = double_q_target(view)
    loss = quantile_huber_loss(select_action(quantiles(QUANTILES), ACTION), target, delta=delta)
    as_rows = [jnp.swapaxes(values, -1, -2) for values in (QUANTILES, SELECTOR_QUANTILES, NEXT_QUANTILES)]
    expected = jax.vmap(partial(rlax.quantile_q_learning, huber_param=delta))(
        as_rows[0], FRACTIONS, ACTION, REWARD, view.discount, as_rows[1], as_rows[2]
    )
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_the_loss_follows_the_kind_of_the_values():
    target = jnp.array([[0.25] * 4, [0.25] * 4])
    pairs = (
        (select_action(quantiles(QUANTILES), ACTION), partial(quantile_huber_loss, delta=0.5), target),
        (categorical(LOGITS[:, 0, :4]), categorical_loss, target),
        (select_action(Q, ACTION), partial(huber_loss, delta=0.5), REWARD),
    )
    for value, loss, target in pairs:
        np.testing.assert_array_equal(q_loss(value, target, delta=0.5), loss(value, target))
        gradient = jax.grad(lambda target, value=value: q_loss(value, target).sum())(target)
        np.testing.assert_array_equal(gradient, 0.0)


def test_munchausen_target_by_hand():
    """With a temperature of 1, values log(2) and 0 are probabilities of 2/3 and 1/3."""
    half = jnp.log(jnp.array([[2.0, 1.0]]))
    view = QView(
        action=jnp.array([1]),
        reward=jnp.array([3.0]),
        discount=jnp.array([0.5]),
        target_values=half,
        next_values=half + 4.0,
        next_selector=jnp.full((1, 2), jnp.nan),  # Is not read.
    )
    # The soft value of the successor is 4 + log(3).
    options = {"temperature": 1.0, "bonus": 0.5, "floor": -5.0}
    expected = 3.0 + 0.5 * np.log(1 / 3) + 0.5 * (4.0 + np.log(3.0))
    np.testing.assert_allclose(munchausen_target(view, **options), [expected], rtol=1e-6)
    floored = munchausen_target(view, **(options | {"floor": -0.1}))
    np.testing.assert_allclose(floored, [3.0 - 0.05 + 0.5 * (4.0 + np.log(3.0))], rtol=1e-6)
    # What is forbidden has no share: the other action alone is worth its value.
    masked = munchausen_target(view.replace(next_action_mask=jnp.array([[False, True]])), **options)
    np.testing.assert_allclose(masked, [3.0 + 0.5 * np.log(1 / 3) + 0.5 * 4.0], rtol=1e-6)
    # Of quantiles around the values, every one shifts alike.
    spread = jnp.array([-1.0, 1.0]).reshape(1, 1, 2)
    next_values = QuantileValues(quantiles=view.next_values[..., None] + spread, fractions=jnp.array([[0.25, 0.75]]))
    soft = munchausen_target(view.replace(next_values=next_values), **options)
    np.testing.assert_allclose(soft, [[expected - 0.5, expected + 0.5]], rtol=1e-6)


def test_munchausen_refuses_several_steps_and_atoms():
    with pytest.raises(ValueError, match="`num_steps` must be 1 for `munchausen_target`, got 3"):
        munchausen_target(VIEW.replace(num_steps=3))
    with pytest.raises(ValueError, match="`target` must not be `munchausen_target` for values on atoms"):
        munchausen_target(VIEW.replace(next_values=categorical(NEXT_LOGITS)))


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


@pytest.mark.exhaustive
def test_jit_and_vmap_change_nothing():
    for target in (q_target, double_q_target, rescaled_q_target, munchausen_target):
        expected = target(VIEW)
        np.testing.assert_allclose(jax.jit(target)(VIEW), expected, rtol=1e-6)
        np.testing.assert_allclose(jax.vmap(target)(VIEW), expected, rtol=1e-6)
