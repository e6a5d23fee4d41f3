"""Mixtures of squashed Gaussians against scipy, numerical integration, and gradients in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import logsumexp

from jaxagents.losses.imitation import search_cross_entropy
from jaxagents.ops.distributions import TanhNormal
from jaxagents.ops.mixture import TanhNormalMixture

KEY = jax.random.key(0)
LOGITS = np.log([0.5, 0.3, 0.2]).astype(np.float32)
LOC = np.array([[0.5, -1.0], [-0.4, 0.2], [1.0, 0.0]], np.float32)
SCALE = np.array([[0.3, 0.5], [0.6, 0.2], [0.4, 0.7]], np.float32)
MIXTURE = TanhNormalMixture(jnp.asarray(LOGITS) + 2.0, jnp.asarray(LOC), jnp.asarray(SCALE), low=-2.0, high=2.0)


def line(weights, loc, scale):
    """Returns a mixture of one-dimensional actions in [-1, 1]."""
    column = [jnp.asarray(x, jnp.float32)[:, None] for x in (loc, scale)]
    return TanhNormalMixture(jnp.log(jnp.asarray(weights, jnp.float32)), *column)


def log_density(x):
    """Computes the log-density before the squashing, by scipy."""
    return logsumexp(LOGITS + stats.norm.logpdf(x[..., None, :], LOC, SCALE).sum(-1), axis=-1)


def test_log_probabilities_are_those_of_scipy_for_any_leading_axes():
    actions = np.random.default_rng(1).normal(size=(4, 3, 2)).astype(np.float32)
    expected = log_density(actions) - np.log(2.0 * (1.0 - np.tanh(actions) ** 2)).sum(-1)
    np.testing.assert_allclose(MIXTURE.log_prob(jnp.asarray(actions)[0, 0]), expected[0, 0], rtol=1e-5)
    wide = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (4, 3, *leaf.shape)), MIXTURE)
    np.testing.assert_allclose(wide.log_prob(jnp.asarray(actions)), expected, rtol=1e-4)
    np.testing.assert_allclose(wide.entropy(), jnp.full((4, 3), MIXTURE.entropy()), rtol=1e-5)
    np.testing.assert_allclose(wide.mode(), jnp.broadcast_to(MIXTURE.mode(), (4, 3, 2)))
    weights = jnp.asarray([[0.2, 0.3, 0.5]] * 4)
    rows = jax.tree.map(lambda leaf: leaf[:, 0], wide)
    of_search = search_cross_entropy(rows, weights, jnp.asarray(actions))
    np.testing.assert_allclose(of_search, -(np.asarray(weights) * expected).sum(-1), rtol=1e-4)


def test_one_component_is_a_squashed_gaussian():
    one, gaussian = line([1.0], [0.4], [0.7]), TanhNormal(jnp.array([0.4]), jnp.array([0.7]))
    np.testing.assert_allclose(one.log_prob(jnp.array([1.1])), gaussian.log_prob(jnp.array([1.1])), rtol=1e-5)
    np.testing.assert_allclose(one.entropy(), gaussian.entropy(), rtol=1e-5)
    np.testing.assert_allclose(one.sample(KEY), one.transform(one.noise(KEY)))
    np.testing.assert_allclose(one.mode(), [0.4])


def test_samples_have_the_weights_means_and_spreads_of_the_components():
    noise = jax.vmap(MIXTURE.noise)(jax.random.split(KEY, 20000))
    actions = np.asarray(jax.vmap(MIXTURE.transform)(noise))
    mean = np.exp(LOGITS) @ LOC
    np.testing.assert_allclose(actions.mean(0), mean, atol=0.02)
    second = np.exp(LOGITS) @ (LOC**2 + SCALE**2)
    np.testing.assert_allclose((actions**2).mean(0), second, rtol=0.03)


@pytest.mark.parametrize(
    "weights, loc, scale",
    [([0.5, 0.5], [-1, 1], [0.2, 0.2]), ([0.7, 0.3], [0, 0.5], [0.5, 1]), ([0.9, 0.1], [0, 0], [1, 1])],
)
def test_entropies_of_one_dimension_are_integrals(weights, loc, scale):
    mixture = line(weights, loc, scale)

    def integrand(x):
        density = np.sum(np.asarray(weights) * stats.norm.pdf(x, loc, scale))
        return -density * (np.log(density) - np.log(1.0 - np.tanh(x) ** 2)) if density > 1e-30 else 0.0

    expected = integrate.quad(integrand, -7, 7, points=[-1, 0, 1], limit=200)[0]
    np.testing.assert_allclose(mixture.entropy(), expected, atol=0.02)


def test_entropies_of_two_dimensions_are_near_those_of_many_samples():
    noise = jax.vmap(MIXTURE.noise)(jax.random.split(KEY, 50000))
    estimate = -jnp.mean(jax.vmap(MIXTURE.log_prob)(jax.vmap(MIXTURE.transform)(noise)))
    np.testing.assert_allclose(MIXTURE.entropy(), estimate, atol=0.05)
    # Coinciding components are one Gaussian.
    same = MIXTURE.replace(loc=0.0 * MIXTURE.loc, scale=0.0 * MIXTURE.scale + 0.05, low=-1.0, high=1.0)
    np.testing.assert_allclose(same.entropy(), TanhNormal(jnp.zeros(2), jnp.full(2, 0.05)).entropy(), atol=1e-3)


def test_the_mode_is_where_most_samples_come_from_whatever_the_density():
    np.testing.assert_allclose(line([0.6, 0.4], [-1.0, 1.0], [1.0, 0.1]).mode(), [-1.0])
    np.testing.assert_allclose(line([0.4, 0.6], [-1.0, 1.0], [0.3, 0.3]).mode(), [1.0])


def test_gradients_of_samples_are_those_of_expectations_in_all_parameters():
    """`E[x_0 x_1] = sum_m w_m loc_m0 loc_m1`, `E[x_0^2] = sum_m w_m (loc_m0^2 + scale_m0^2)`, before the squashing."""

    def expected(mixture):
        weights = jax.nn.softmax(mixture.logits)
        mixed = weights @ (mixture.loc[:, 0] * mixture.loc[:, 1])
        return mixed + weights @ (mixture.loc[:, 0] ** 2 + mixture.scale[:, 0] ** 2)

    def sampled(mixture):
        actions = jax.vmap(mixture.sample)(jax.random.split(KEY, 40000))
        return jnp.mean(actions[:, 0] * actions[:, 1] + actions[:, 0] ** 2)

    found, exact = jax.jit(jax.grad(sampled))(MIXTURE), jax.grad(expected)(MIXTURE)
    for name in ("logits", "loc", "scale"):
        np.testing.assert_allclose(getattr(found, name), getattr(exact, name), atol=0.04, err_msg=name)
    assert float(jnp.abs(exact.logits).max()) > 0.1
    plain = jax.grad(lambda mixture: jnp.sum(mixture.transform(mixture.noise(KEY))))(MIXTURE)
    np.testing.assert_array_equal(plain.logits, np.zeros(3))


def test_what_has_no_closed_form_and_masks_are_refused():
    with pytest.raises(ValueError, match="`policy` must have a divergence in closed form"):
        MIXTURE.kl_divergence(MIXTURE)
    with pytest.raises(ValueError, match="`action_mask` must be None for continuous actions"):
        MIXTURE.mask(jnp.ones(2, bool))
