"""Losses of fixed data against formulas in numpy, and where their gradients flow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from jaxagents.losses.offline import (
    ActorView,
    SampledView,
    TargetView,
    advantage_weighted_policy_loss,
    behavior_cloning_policy_loss,
    calibrated_gap,
    calibrated_sum,
    conservative_sum,
    expectile_loss,
    soft_policy_loss,
    state_value_target,
    twin_target,
)

Q = np.array([[1.0, -2.0], [0.5, 3.0]])
SAMPLED = np.array([[[0.0, 1.0, 2.0], [3.0, -1.0, 0.0]], [[1.0, 1.0, -2.0], [0.0, 2.0, 1.0]]])
DENSITY = np.log(np.array([[0.5, 0.25, 1.0], [0.5, 2.0, 0.1]]))


def sampled(**changes):
    return SampledView(
        **{
            "q": jnp.asarray(Q),
            "sampled_q": jnp.asarray(SAMPLED),
            "log_density": jnp.asarray(DENSITY),
            "from_policy": jnp.array([False, True, True]),
            "return_to_go": jnp.array([1.5, -5.0]),
        }
        | changes
    )


def actor(**changes):
    fields = {
        "log_prob": jnp.array([-1.0, -2.0]),
        "distance": jnp.array([0.25, 1.0]),
        "own_q": jnp.array([[2.0, -4.0], [1.0, 5.0]]),
        "own_log_prob": jnp.array([-0.5, 0.5]),
        "q": jnp.array([1.0, 90.0]),
        "value": jnp.array([0.5, 2.0]),
        "q_magnitude": jnp.float32(3.0),
    }
    return ActorView(**fields | changes)


def test_targets():
    view = TargetView(
        reward=jnp.array([1.0, 2.0]),
        discount=jnp.array([0.5, 0.0]),
        next_q=jnp.array([[4.0, 1.0], [2.0, 9.0]]),
        next_value=jnp.array([8.0, 7.0]),
    )
    np.testing.assert_allclose(twin_target(view), [2.0, 2.0])
    np.testing.assert_allclose(state_value_target(view), [5.0, 2.0])


def test_the_expectile_is_between_the_mean_and_the_largest_target():
    np.testing.assert_allclose(expectile_loss(jnp.array([1.0, 1.0]), jnp.array([3.0, 0.0]), expectile=0.8), [3.2, 0.2])
    targets = jnp.array([0.0, 0.0, 0.0, 4.0])

    def minimum(expectile):
        grid = jnp.linspace(0.0, 4.0, 401)
        losses = jax.vmap(lambda value: expectile_loss(value, targets, expectile=expectile).mean())(grid)
        return float(grid[jnp.argmin(losses)])

    # The value v at which 3 (1 - e) v = e (4 - v).
    assert minimum(0.5) == pytest.approx(1.0, abs=0.01) and minimum(0.9) == pytest.approx(3.0, abs=0.01)
    assert jax.grad(lambda target: expectile_loss(1.0, target))(3.0) == 0.0


def test_conservative_sums():
    soft = logsumexp(SAMPLED - DENSITY, axis=-1) - np.log(3)
    np.testing.assert_allclose(conservative_sum(sampled(), coefficient=2.0), 2.0 * (soft - Q).sum(0), rtol=1e-5)
    # The loss of CORL, beside a squared error that is not halved, is twice ours at half of its coefficient.
    target, corl_alpha = np.array([0.3, -0.7]), 10.0
    corl = np.square(Q - target) + corl_alpha * (logsumexp(SAMPLED - DENSITY, axis=-1) - Q)
    ours = 0.5 * np.square(Q - target).sum(0) + conservative_sum(sampled(), coefficient=corl_alpha / 2.0)
    np.testing.assert_allclose(corl.sum(0) - 2.0 * ours, 2.0 * corl_alpha * np.log(3), rtol=1e-5)
    # Of the policy's actions of the first state only, values below the return of 1.5 count as 1.5.
    floored = SAMPLED.copy()
    floored[0, 0, 1], floored[1, 0, 1], floored[1, 0, 2] = 1.5, 1.5, 1.5
    soft = logsumexp(floored - DENSITY, axis=-1) - np.log(3)
    np.testing.assert_allclose(calibrated_sum(sampled(), coefficient=2.0), 2.0 * (soft - Q).sum(0), rtol=1e-5)


def test_values_of_one_action_alone_rise_by_the_coefficient_over_the_horizon():
    """A state that leads to itself and pays 1; its only action was never sampled, so nothing holds its value down.

    The value at which no gradient is left is `(1 + coefficient) / (1 - discount)`, not `1 / (1 - discount)`."""
    coefficient, discount = 2.0, 0.9
    unseen = sampled(sampled_q=jnp.full((2, 2, 3), -50.0))

    def loss(q):
        target = 1.0 + discount * jax.lax.stop_gradient(q)
        term = conservative_sum(unseen.replace(q=q), coefficient=coefficient)
        return jnp.sum(0.5 * jnp.square(q - target).sum(0) + term)

    q = jnp.full((2, 2), (1.0 + coefficient) / (1.0 - discount))
    np.testing.assert_allclose(jax.grad(loss)(q), np.zeros((2, 2)), atol=1e-5)


def test_values_at_their_floor_are_not_held_down_further():
    gradient = jax.grad(lambda q: calibrated_sum(sampled(sampled_q=q)).sum())(jnp.asarray(SAMPLED))
    assert gradient[0, 0, 1] == 0.0 and gradient[0, 0, 2] > 0.0 and gradient[0, 0, 0] > 0.0


def test_the_calibrated_gap_is_of_the_policys_actions_and_ends_at_the_returns():
    # Critic 0: max([1, 2], 1.5), max([-1, 0], -5); critic 1: max([1, -2], 1.5), max([2, 1], -5).
    expected = 2.0 * np.array([1.75 - 1.0 + 1.5 - 0.5, -0.5 + 2.0 + 1.5 - 3.0])
    np.testing.assert_allclose(jax.jit(calibrated_gap)(sampled(), coefficient=2.0), expected, rtol=1e-6)
    gradient = jax.grad(lambda q: calibrated_gap(sampled(sampled_q=q)).sum())(jnp.asarray(SAMPLED))
    np.testing.assert_allclose(gradient, [[[0, 0, 0.5], [0, 0.5, 0.5]], [[0, 0, 0], [0, 0.5, 0.5]]])
    pulled = jax.grad(lambda q: calibrated_gap(sampled(q=q)).sum())(jnp.asarray(Q))
    np.testing.assert_allclose(pulled, -np.ones((2, 2)))


def test_losses_of_policies():
    np.testing.assert_allclose(soft_policy_loss(actor(), temperature=0.2), [-0.1 - 1.0, 0.1 + 4.0], rtol=1e-6)
    np.testing.assert_allclose(
        behavior_cloning_policy_loss(actor(), alpha=1.5), [-1.5 * 2.0 / 3.0 + 0.25, 1.5 * 4.0 / 3.0 + 1.0], rtol=1e-6
    )
    weighted = advantage_weighted_policy_loss(actor(), inverse_temperature=2.0, max_weight=10.0)
    np.testing.assert_allclose(weighted, [np.e, 20.0], rtol=1e-5)


def test_no_gradient_flows_through_weights():
    gradient = jax.grad(lambda view: advantage_weighted_policy_loss(view).sum())(actor())
    assert np.all(np.asarray(gradient.log_prob) < 0.0)
    assert not np.any(gradient.q) and not np.any(gradient.value)
