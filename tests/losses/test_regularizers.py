"""KL estimators by enumeration of a small categorical, and the entropy bonus."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.losses import regularizers
from jaxagents.types import TokenView


def of_arrays(term):
    """Returns the term as a function of `(log_prob, reference_log_prob, entropy, mask, turn)`."""

    def compute(log_prob, reference_log_prob, entropy, mask, turn=None, **options):
        view = TokenView(
            mask=mask,
            turn=jnp.zeros(mask.shape, jnp.int32) if turn is None else turn,
            sequence=jnp.zeros(mask.shape, jnp.int32),
            behavior_log_prob=jnp.zeros(mask.shape),
            log_prob=log_prob,
            entropy=entropy,
            reference_log_prob=reference_log_prob,
        )
        return term(view, **options)

    return compute


kl_k2, kl_k3, entropy_bonus = (of_arrays(getattr(regularizers, name)) for name in ("kl_k2", "kl_k3", "entropy_bonus"))
KL = [kl_k2, kl_k3]
LOGITS = jnp.array([0.3, -1.0, 0.8, 0.0])
REFERENCE = jax.nn.log_softmax(jnp.array([-0.5, 0.2, 0.4, 1.0]))
MASK = jnp.ones((1, 4), bool)


def expectation(estimator, logits, sampler):
    """Returns the mean of an estimate over all tokens, each with its probability under the sampler."""
    estimate = estimator(jax.nn.log_softmax(logits)[None], REFERENCE[None], None, MASK, coefficient=1.0)
    return jnp.sum(jax.lax.stop_gradient(jax.nn.softmax(sampler)) * estimate[0])


def divergence(log_p, log_q):
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q))


def test_by_hand():
    # Ratios policy / reference of 2, 1/2 and 1, on a token that counts, two that do, and one that does not.
    log_prob = jnp.log(jnp.array([[0.4, 0.1, 0.3, 0.9]]))
    reference = jnp.log(jnp.array([[0.2, 0.2, 0.3, 0.1]]))
    mask = jnp.array([[True, True, True, False]])
    two = np.log(2.0)
    arguments = log_prob, reference, None, mask
    actual = kl_k2(*arguments, coefficient=0.5)
    np.testing.assert_allclose(actual, [[0.25 * two**2, 0.25 * two**2, 0.0, 0.0]], rtol=1e-5, atol=1e-7)
    actual = kl_k3(*arguments, coefficient=0.5)
    expected = [[0.5 * (0.5 - 1.0 + two), 0.5 * (2.0 - 1.0 - two), 0.0, 0.0]]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)
    entropy = jnp.array([[1.0, 2.0, 0.0, 7.0]])
    actual = entropy_bonus(log_prob, None, entropy, mask, coefficient=0.5)
    np.testing.assert_allclose(actual, [[-0.5, -1.0, 0.0, 0.0]])


def test_k3_is_unbiased():
    expected = divergence(jax.nn.log_softmax(LOGITS), REFERENCE)
    np.testing.assert_allclose(expectation(kl_k3, LOGITS, LOGITS), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("estimator", "objective"),
    [
        (kl_k2, lambda log_prob: divergence(log_prob, REFERENCE)),
        (kl_k3, lambda log_prob: divergence(REFERENCE, log_prob)),
    ],
)
def test_expected_gradients_are_of_the_reverse_and_of_the_forward_kl(estimator, objective):
    expected = jax.grad(lambda logits: objective(jax.nn.log_softmax(logits)))(LOGITS)
    actual = jax.grad(lambda logits: expectation(estimator, logits, LOGITS))(LOGITS)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("estimator", [kl_k2, kl_k3])
def test_k2_and_k3_are_never_negative_and_pull_to_the_reference(estimator):
    log_ratio = jnp.linspace(-5.0, 5.0, 41)[None]
    reference, mask = jnp.full((1, 41), -1.0), jnp.ones((1, 41), bool)
    estimate, slope = jax.vjp(
        lambda log_prob: estimator(log_prob, reference, None, mask, coefficient=1.0), reference + log_ratio
    )
    assert (estimate >= 0.0).all()
    assert estimate[0, 20] == 0.0
    np.testing.assert_array_equal(jnp.sign(slope(jnp.ones((1, 41)))[0]), jnp.sign(log_ratio))


def entropies(log_prob, reference, mask):
    return entropy_bonus(None, None, log_prob, mask, coefficient=0.1)


@pytest.mark.parametrize("term", [*(lambda p, r, m, k=k: k(p, r, None, m, coefficient=0.1) for k in KL), entropies])
def test_zero_off_the_mask_whatever_lies_there_and_no_gradient_to_the_reference(term):
    mask = jnp.array([[True, False, True], [False, False, False]])
    log_prob, reference = jnp.full((2, 3), -1.0), jnp.full((2, 3), -2.0)
    expected = term(log_prob, reference, mask)
    assert (expected != 0.0).tolist() == mask.tolist()
    for junk in (jnp.nan, -jnp.inf):
        arguments = [jnp.where(mask, array, junk) for array in (log_prob, reference)]
        np.testing.assert_array_equal(term(*arguments, mask), expected)
        slopes = jax.grad(lambda *a: jnp.sum(term(*a, mask)), (0, 1))(*arguments)
        assert ((slopes[0] != 0.0) == mask).all()
        np.testing.assert_array_equal(slopes[1], 0.0)


@pytest.mark.parametrize("estimator", KL)
def test_estimates_of_policies_that_parted_are_finite(estimator):
    arguments = jnp.array([[-200.0, 0.0]]), jnp.array([[0.0, -200.0]]), None, jnp.ones((1, 2), bool)
    assert np.isfinite(estimator(*arguments, coefficient=1.0)).all()
    slope = jax.grad(lambda x: jnp.sum(estimator(x, *arguments[1:], coefficient=1.0)))(arguments[0])
    assert np.isfinite(slope).all()


@pytest.mark.parametrize("estimator", KL)
def test_the_coefficient_may_be_traced(estimator):
    arguments = jnp.full((1, 3), -1.0), jnp.full((1, 3), -2.0), None, jnp.ones((1, 3), bool)
    compiled = jax.jit(lambda coefficient: estimator(*arguments, coefficient=coefficient))
    for coefficient in (0.1, 2.0):
        np.testing.assert_allclose(compiled(coefficient), coefficient * estimator(*arguments, coefficient=1.0))
    assert compiled._cache_size() == 1


@pytest.mark.parametrize("term", [*KL, lambda *a, **k: -entropy_bonus(a[0], None, a[0] - a[1], *a[3:], **k)])
def test_a_coefficient_may_be_one_per_turn(term):
    turn = jnp.array([[0, 0, 1, 3]])
    arguments = jnp.full((1, 4), -1.0), jnp.full((1, 4), -2.0), None, MASK
    one = term(*arguments, coefficient=1.0)
    actual = term(*arguments, turn, coefficient=jnp.array([0.1, 0.5]))
    np.testing.assert_allclose(actual, jnp.array([[0.1, 0.1, 0.5, 0.5]]) * one, rtol=1e-6)


def test_what_a_term_needs_is_required():
    some, mask = jnp.zeros((1, 2)), jnp.ones((1, 2), bool)
    for estimator in KL:
        with pytest.raises(ValueError, match="`view.reference_log_prob` must be there for a KL term, got None"):
            partial(estimator, coefficient=0.1)(some, None, None, mask)
