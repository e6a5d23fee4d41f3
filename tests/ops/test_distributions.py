"""Distributions against numbers worked out by hand, rlax, scipy and numerical integration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from jaxagents.ops.distributions import Categorical, TanhNormal, greedy_action, smoothed_action, squash

KEY = jax.random.key(0)
LOGITS = jnp.log(jnp.array([0.5, 0.25, 0.25])) + 3.0
MASK = jnp.array([False, True, True])


def repeated(distribution, count):
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), distribution)


def test_categorical_by_hand():
    categorical = Categorical(logits=LOGITS)
    np.testing.assert_allclose(categorical.log_probs(), np.log([0.5, 0.25, 0.25]), rtol=1e-6)
    np.testing.assert_allclose(categorical.log_prob(jnp.int32(2)), np.log(0.25), rtol=1e-6)
    np.testing.assert_allclose(categorical.entropy(), 1.5 * np.log(2.0), rtol=1e-6)
    np.testing.assert_allclose(
        categorical.kl_divergence(Categorical(jnp.zeros(3))), np.log(3.0) - 1.5 * np.log(2.0), 1e-6
    )
    assert int(categorical.mode()) == 0 and categorical.mode().dtype == jnp.int32


def test_masked_categorical_by_hand():
    masked = Categorical(logits=LOGITS).mask(MASK)
    np.testing.assert_allclose(masked.log_probs()[1:], np.log([0.5, 0.5]), rtol=1e-6)
    np.testing.assert_allclose(masked.entropy(), np.log(2.0), rtol=1e-6)
    assert float(jnp.exp(masked.log_prob(jnp.int32(0)))) == 0.0
    assert int(masked.mode()) == 1
    assert float(Categorical(logits=LOGITS).mask(jnp.array([True, False, False])).entropy()) == 0.0
    np.testing.assert_allclose(masked.kl_divergence(Categorical(logits=LOGITS)), np.log(2.0), rtol=1e-6)
    assert Categorical(logits=LOGITS).mask(None).logits is LOGITS


@pytest.mark.filterwarnings("ignore:Rlax")
@given(st.lists(st.floats(-30.0, 30.0), min_size=4, max_size=4), st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_categorical_agrees_with_rlax(logits, action):
    logits, other = jnp.asarray(logits, jnp.float32), jnp.asarray(logits[::-1], jnp.float32)
    categorical, oracle = Categorical(logits=logits), rlax.softmax()
    np.testing.assert_allclose(
        categorical.log_prob(jnp.int32(action)), oracle.logprob(jnp.int32(action), logits), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(categorical.entropy(), oracle.entropy(logits), rtol=1e-5, atol=1e-6)
    divergence = categorical.kl_divergence(Categorical(logits=other))
    np.testing.assert_allclose(divergence, rlax.categorical_kl_divergence(logits, other), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(categorical.kl_divergence(Categorical(logits=logits + 5.0)), 0.0, atol=1e-5)


def test_gradient_of_log_prob_is_the_action_minus_the_probabilities():
    gradient = jax.grad(lambda logits: Categorical(logits=logits).log_prob(jnp.int32(1)))(LOGITS)
    np.testing.assert_allclose(gradient, [-0.5, 0.75, -0.25], rtol=1e-5)


@pytest.mark.parametrize("mask", [MASK, jnp.array([False, False, True]), jnp.zeros(3, bool)])
def test_masked_gradients_are_finite_and_zero_for_masked_logits(mask):
    def objective(logits):
        masked = Categorical(logits=logits).mask(mask)
        return masked.entropy() + masked.log_prob(jnp.int32(2)) + masked.kl_divergence(Categorical(logits=-logits))

    gradient = jax.jit(jax.grad(objective))(jnp.array([40.0, 1.0, 0.0]))
    assert np.all(np.isfinite(gradient))
    # Through the mask alone; the divergence to an unmasked distribution moves every logit of that one.
    entropy = lambda logits: Categorical(logits=logits).mask(mask).entropy()  # noqa: E731
    alone = jax.jit(jax.grad(entropy))(jnp.array([40.0, 1.0, 0.0]))
    np.testing.assert_array_equal(np.asarray(alone)[~np.asarray(mask)], 0.0)


@pytest.mark.parametrize("mask", [None, jnp.array([True, False, True, True])])
def test_gumbel_max_frequencies_are_the_softmax(mask):
    logits = jnp.array([0.3, 5.0, -0.7, 1.1]) if mask is not None else jnp.array([0.3, 1.0, -0.7, 1.1])
    probabilities = np.asarray(jnp.exp(Categorical(logits=logits).mask(mask).log_probs()))
    many = repeated(Categorical(logits=logits).mask(mask), 20_000)
    counts = np.bincount(many.sample(KEY), minlength=4)
    allowed = probabilities > 0.0
    assert counts[~allowed].sum() == 0
    expected = 20_000.0 * probabilities[allowed] / probabilities[allowed].sum(dtype=np.float64)
    assert stats.chisquare(counts[allowed], expected).pvalue > 1e-3


def test_samples_are_the_transform_of_noise_that_depends_on_shapes_only():
    categorical = Categorical(logits=LOGITS)
    noise = Categorical(logits=jnp.zeros(3)).noise(KEY)
    np.testing.assert_array_equal(categorical.sample(KEY), categorical.transform(noise))
    assert int(categorical.transform(jnp.array([0.0, 2.0, 0.0]))) == 1
    normal = TanhNormal(loc=jnp.array([0.3, -1.0]), scale=jnp.array([0.5, 2.0]))
    noise = TanhNormal(loc=jnp.zeros(2), scale=jnp.ones(2)).noise(KEY)
    np.testing.assert_array_equal(normal.sample(KEY), normal.transform(noise))
    np.testing.assert_array_equal(normal.transform(jnp.zeros(2)), normal.mode())
    np.testing.assert_allclose(normal.transform(jnp.array([1.0, -0.5])), [0.8, -2.0], rtol=1e-6)


LOW, HIGH = -1.0, 3.0


def tanh_normal(loc, scale):
    return TanhNormal(loc=jnp.asarray(loc, jnp.float32), scale=jnp.asarray(scale, jnp.float32), low=LOW, high=HIGH)


def test_tanh_normal_log_prob_is_the_change_of_variables():
    loc, scale, action = np.array([0.2, -0.5]), np.array([0.7, 1.3]), np.array([1.9, -0.4])
    unit = (action - 1.0) / 2.0
    expected = stats.norm.logpdf(np.arctanh(unit), loc, scale) - np.log(2.0 * (1.0 - unit**2))
    unsquashed = jnp.asarray(np.arctanh(unit), jnp.float32)
    np.testing.assert_allclose(tanh_normal(loc, scale).log_prob(unsquashed), expected.sum(), rtol=1e-5)
    np.testing.assert_allclose(squash(unsquashed, low=LOW, high=HIGH), action, rtol=1e-5)


@pytest.mark.parametrize("loc", [10.0, -10.0, 7.3, 40.0])
def test_log_probs_are_exact_where_tanh_is_one(loc):
    """At the mean of N(10, 0.1^2) in a box from -1 to 1: 1.384 of the Gaussian minus log(1 - tanh(10)^2) = -18.61."""
    distribution = TanhNormal(loc=jnp.array([loc]), scale=jnp.array([0.1]))
    expected = -0.5 * np.log(2 * np.pi) - np.log(0.1) + 2.0 * (abs(loc) - np.log(2.0))
    np.testing.assert_allclose(distribution.log_prob(distribution.mode()), expected, rtol=1e-5)
    # The gradient moves the location towards an action beyond it, on either side.
    for beyond in (-0.05, 0.05):

        def log_prob(moved, action=distribution.loc + beyond):
            return distribution.replace(loc=moved).log_prob(action)

        np.testing.assert_allclose(jax.grad(log_prob)(distribution.loc), [beyond / 0.1**2], rtol=1e-4)


@pytest.mark.parametrize(("loc", "scale"), [(0.0, 0.5), (0.8, 1.0), (-1.0, 0.3)])
def test_tanh_normal_density_integrates_to_one_and_to_its_moments(loc, scale):
    cells = 4_000
    distribution = tanh_normal(np.full((cells, 1), loc), np.full((cells, 1), scale))
    # The midpoints of equal cells of the box; the density vanishes at both ends.
    action = LOW + (HIGH - LOW) * (np.arange(cells) + 0.5) / cells
    unsquashed = np.arctanh((action - 1.0) / 2.0)
    log_prob = distribution.log_prob(jnp.asarray(unsquashed, jnp.float32)[:, None])
    mass = np.exp(np.asarray(log_prob, np.float64)) * (HIGH - LOW) / cells
    np.testing.assert_allclose(mass.sum(), 1.0, atol=1e-4)
    np.testing.assert_allclose(-(mass * np.asarray(log_prob)).sum(), distribution.entropy()[0], atol=1e-3)
    samples = np.asarray(squash(distribution.sample(KEY), low=LOW, high=HIGH))
    deviation = np.sqrt((mass * action**2).sum() - (mass * action).sum() ** 2)
    np.testing.assert_allclose(samples.mean(), (mass * action).sum(), atol=4 * deviation / np.sqrt(cells))
    assert samples.min() >= LOW and samples.max() <= HIGH


def entropy_by_quadrature(loc, scale):
    def integrand(noise):
        unsquashed = loc + scale * noise
        return stats.norm.pdf(noise) * 2.0 * (np.log(2.0) - unsquashed - np.logaddexp(0.0, -2.0 * unsquashed))

    log_slope = integrate.quad(integrand, -10.0, 10.0, limit=200, points=[-loc / scale])[0]
    return stats.norm.entropy(loc, scale) + log_slope + np.log(0.5 * (HIGH - LOW))


@pytest.mark.parametrize(
    ("loc", "scale", "tolerance"),
    [(0.0, 1e-3, 1e-5), (0.5, 0.5, 1e-5), (-6.0, 1.0, 1e-5), (0.0, 1.0, 5e-5), (2.0, 2.0, 5e-3), (0.0, 2.0, 5e-3)],
)
def test_tanh_normal_entropy_agrees_with_numerical_integration(loc, scale, tolerance):
    np.testing.assert_allclose(tanh_normal([loc], [scale]).entropy(), entropy_by_quadrature(loc, scale), atol=tolerance)


def test_tanh_normal_entropy_sums_over_dimensions_and_has_the_right_gradient():
    loc, scale = jnp.array([0.0, 0.9]), jnp.array([0.4, 0.8])
    expected = entropy_by_quadrature(0.0, 0.4) + entropy_by_quadrature(0.9, 0.8)
    np.testing.assert_allclose(tanh_normal(loc, scale).entropy(), expected, atol=1e-5)
    to_loc, to_scale = jax.jit(jax.grad(lambda loc, scale: tanh_normal(loc, scale).entropy(), (0, 1)))(loc, scale)
    step = 1e-4
    for dimension in range(2):
        point = np.array([float(loc[dimension]), float(scale[dimension])])
        for gradient, direction in ((to_loc, [step, 0.0]), (to_scale, [0.0, step])):
            up, down = entropy_by_quadrature(*(point + direction)), entropy_by_quadrature(*(point - direction))
            np.testing.assert_allclose(gradient[dimension], (up - down) / (2 * step), atol=1e-3)


def test_tanh_normal_divergence_is_that_of_the_gaussians():
    first, second = tanh_normal([0.0, 1.0], [1.0, 0.5]), tanh_normal([1.0, 1.0], [2.0, 0.5])
    np.testing.assert_allclose(first.kl_divergence(second), 0.5 * (0.25 + 0.25 - 1.0) + np.log(2.0), rtol=1e-6)
    assert float(first.kl_divergence(first)) == 0.0


def test_gradient_of_a_sample_flows_to_loc_and_scale():
    noise = jnp.array([0.5])

    def act(loc, scale):
        return squash(tanh_normal(loc, scale).transform(noise)[0], low=LOW, high=HIGH)

    to_loc, to_scale = jax.grad(act, (0, 1))(jnp.array([0.2]), jnp.array([0.6]))
    np.testing.assert_allclose(to_loc, [2.0 * (1.0 - np.tanh(0.5) ** 2)], rtol=1e-5)
    np.testing.assert_allclose(to_scale, 0.5 * to_loc, rtol=1e-6)


def test_tanh_normal_refuses_a_mask():
    assert tanh_normal([0.0], [1.0]).mask(None).high == HIGH
    with pytest.raises(ValueError, match="`action_mask` must be None for continuous actions"):
        tanh_normal([0.0], [1.0]).mask(MASK)


@pytest.mark.parametrize(
    ("distribution", "action"),
    [
        (Categorical(logits=jnp.array([[0.0, 1.0], [2.0, -1.0]])), jnp.array([1, 0])),
        (tanh_normal([[0.0, 1.0], [0.3, -1.0]], [[1.0, 0.5], [0.2, 0.7]]), jnp.array([[0.5, 1.0], [2.0, -0.5]])),
    ],
)
def test_jit_and_vmap_change_nothing(distribution, action):
    def everything(distribution, action):
        other = jax.tree.map(lambda leaf: leaf + 0.1, distribution)
        return (
            distribution.log_prob(action),
            distribution.entropy(),
            distribution.mode(),
            distribution.kl_divergence(other),
        )

    expected = everything(distribution, action)
    for transformed in (jax.jit(everything), jax.vmap(everything)):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
            expected,
            transformed(distribution, action),
        )


@pytest.mark.exhaustive
def test_smoothed_actions_are_near_the_mode_and_inside_the_bounds():
    """Within half of the mode after squashing, and nowhere beyond the ends."""
    keys = jax.random.split(jax.random.key(0), 2000)
    loc = jnp.array([0.0, 0.3, 20.0])
    distribution = TanhNormal(loc=loc, scale=jnp.ones(3))
    actions = jnp.tanh(jax.vmap(lambda key: smoothed_action(distribution, key, scale=0.4, bound=0.5))(keys))
    distance = np.asarray(actions - jnp.tanh(loc)[None])
    assert np.abs(distance).max() <= 0.5 + 1e-5 and np.abs(actions).max() <= 1.0
    # A standard normal number is beyond 1.25 of its scale in 0.1056 of the cases, on either side.
    np.testing.assert_allclose(np.mean(distance[:, 0] >= 0.5 - 1e-5), 0.1056, atol=0.03)
    np.testing.assert_allclose(np.mean(actions[:, 2] >= 1.0 - 1e-5), 0.5, atol=0.05)
    np.testing.assert_array_equal(greedy_action(distribution, keys[0]), loc)
