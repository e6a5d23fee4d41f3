"""The clipped surrogate and its diagnostics against hand-made numbers and rlax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagents.losses.policy_gradient import approximate_kl, clip_fraction, clipped_surrogate

# Ratios far below, below, at, above and far above one.
RATIO = jnp.array([0.5, 0.9, 1.0, 1.1, 1.5])
BEHAVIOR = jnp.array([-1.0, -2.0, -0.5, -3.0, -0.1])
LOG_PROB = BEHAVIOR + jnp.log(RATIO)


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        (2.0, [-1.0, -1.8, -2.0, -2.2, -2.4]),  # A gain counts up to a ratio of 1.2.
        (-2.0, [1.6, 1.8, 2.0, 2.2, 3.0]),  # An avoided loss counts down to a ratio of 0.8.
        (0.0, [0.0] * 5),
    ],
)
def test_clipped_surrogate_by_hand(advantage, expected):
    loss = clipped_surrogate(LOG_PROB, BEHAVIOR, jnp.full(5, advantage), clip_epsilon=0.2)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        # d(-ratio A)/d(log_prob) = -ratio A where the clip does not bind: a step down raises good actions ...
        (2.0, [-1.0, -1.8, -2.0, -2.2, 0.0]),
        # ... and lowers bad ones. A policy that moved the wrong way is always pulled back.
        (-2.0, [0.0, 1.8, 2.0, 2.2, 3.0]),
    ],
)
def test_gradient_is_zero_where_the_clip_binds_and_the_policy_gradient_elsewhere(advantage, expected):
    def loss(log_prob):
        return clipped_surrogate(log_prob, BEHAVIOR, jnp.full(5, advantage), clip_epsilon=0.2).sum()

    np.testing.assert_allclose(jax.grad(loss)(LOG_PROB), expected, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Rlax")
def test_clipped_surrogate_agrees_with_rlax():
    generator = np.random.default_rng(0)
    log_prob, behavior, advantage = generator.normal(size=(3, 64)).astype(np.float32)
    actual = clipped_surrogate(jnp.asarray(log_prob), jnp.asarray(behavior), jnp.asarray(advantage), clip_epsilon=0.3)
    expected = rlax.clipped_surrogate_pg_loss(jnp.exp(log_prob - behavior), jnp.asarray(advantage), 0.3)
    np.testing.assert_allclose(actual.mean(), expected, rtol=1e-5)


@given(st.floats(-3.0, 3.0), st.floats(-5.0, 5.0))
@settings(max_examples=25, deadline=None)
def test_clipping_only_makes_the_loss_worse(log_ratio, advantage):
    log_prob, advantage = jnp.float32(log_ratio), jnp.float32(advantage)
    clipped = clipped_surrogate(log_prob, jnp.float32(0.0), advantage, clip_epsilon=0.2)
    free = clipped_surrogate(log_prob, jnp.float32(0.0), advantage, clip_epsilon=100.0)
    assert float(clipped) >= float(free) - 1e-6
    assert float(approximate_kl(log_prob, jnp.float32(0.0))) >= -1e-6


@pytest.mark.parametrize("log_ratio", [100.0, -100.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_policies_that_parted_have_finite_losses_and_gradients(log_ratio, advantage):
    for function in (
        lambda x: clipped_surrogate(x, jnp.float32(0.0), jnp.float32(advantage), clip_epsilon=0.2),
        lambda x: approximate_kl(x, jnp.float32(0.0)),
    ):
        assert np.isfinite(jax.value_and_grad(function)(jnp.float32(log_ratio))).all()


def test_clipped_surrogate_of_its_variants_by_hand():
    good, bad = jnp.full(5, 2.0), jnp.full(5, -2.0)
    higher = clipped_surrogate(LOG_PROB, BEHAVIOR, good, clip_epsilon=0.2, clip_epsilon_high=0.28)
    np.testing.assert_allclose(higher, [-1.0, -1.8, -2.0, -2.2, -2.56], rtol=1e-5)
    dual = clipped_surrogate(LOG_PROB, BEHAVIOR, bad, clip_epsilon=0.2, dual_clip=1.25)
    np.testing.assert_allclose(dual, [1.6, 1.8, 2.0, 2.2, 2.5], rtol=1e-5)


def test_approximate_kl_by_hand():
    expected = [0.5 - 1 + np.log(2.0), 0.9 - 1 - np.log(0.9), 0.0, 1.1 - 1 - np.log(1.1), 1.5 - 1 - np.log(1.5)]
    np.testing.assert_allclose(approximate_kl(LOG_PROB, BEHAVIOR), expected, atol=1e-6)
    assert float(jax.grad(approximate_kl)(jnp.float32(-0.5), jnp.float32(-0.5))) == 0.0


def test_approximate_kl_is_unbiased():
    behavior, policy = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    estimate = approximate_kl(jnp.log(policy), jnp.log(behavior))
    divergence = np.sum(behavior * np.log(behavior / policy))
    np.testing.assert_allclose(np.sum(behavior * np.asarray(estimate)), divergence, rtol=1e-5)


def test_clip_fraction_counts_ratios_outside_the_interval():
    np.testing.assert_array_equal(clip_fraction(LOG_PROB, BEHAVIOR, clip_epsilon=0.2), [1, 0, 0, 0, 1])
    np.testing.assert_array_equal(clip_fraction(LOG_PROB, BEHAVIOR, clip_epsilon=0.05), [1, 1, 0, 1, 1])


def test_jit_and_vmap_change_nothing():
    def everything(log_prob, behavior, advantage):
        return (
            clipped_surrogate(log_prob, behavior, advantage, clip_epsilon=0.2),
            approximate_kl(log_prob, behavior),
            clip_fraction(log_prob, behavior, clip_epsilon=0.2),
        )

    arguments = LOG_PROB, BEHAVIOR, jnp.array([1.0, -1.0, 2.0, 3.0, -2.0])
    expected = everything(*arguments)
    for transformed in (jax.jit(everything), jax.vmap(everything)):
        actual = transformed(*arguments)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), expected, actual)
