"""Losses of own and demonstrated tokens side by side, against numbers made by hand and their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.losses.demonstrated import adversarial_imitation, chord, luffy
from jaxagents.losses.token_policy_gradient import plain, ppo_clip
from jaxagents.types import TokenView

# Two own tokens of ratio 1 and 1.5, two demonstrated ones, and one that does not count.
PROBABILITY = np.array([[[0.5, 0.6, 0.1, 0.8, 0.3]]])
ADVANTAGE = np.array([[[2.0, 1.0, 2.0, -1.0, 5.0]]])
BEHAVIOR = jnp.log(jnp.array([[[0.5, 0.4, 1.0, 1.0, 1.0]]]))
DEMONSTRATED = jnp.array([[[False, False, True, True, True]]])


def view_of(log_prob):
    return TokenView(
        mask=jnp.array([[[True, True, True, True, False]]]),
        turn=jnp.zeros((1, 1, 5), jnp.int32),
        sequence=jnp.zeros((1, 1, 5), jnp.int32),
        behavior_log_prob=BEHAVIOR,
        advantage=jnp.asarray(ADVANTAGE, jnp.float32),
        demonstrated=DEMONSTRATED,
        log_prob=log_prob,
    )


LOG_PROB = jnp.log(jnp.asarray(PROBABILITY, jnp.float32))


def gradient(loss, **options):
    return np.asarray(jax.grad(lambda log_prob: jnp.sum(loss(view_of(log_prob), **options)))(LOG_PROB))[0, 0]


def test_luffy_by_hand():
    # -2 * 1, -min(1.5, 1.2); -2 * 0.1 / 0.2; 0.8 / 0.9; nothing.
    np.testing.assert_allclose(luffy(view_of(LOG_PROB))[0, 0], [-2.0, -1.2, -1.0, 8.0 / 9.0, 0.0], rtol=1e-5)
    # -A gamma p / (p + gamma)^2: -2 * 0.01 / 0.04 and 0.08 / 0.81; the clipped own token has none.
    np.testing.assert_allclose(gradient(luffy), [-2.0, 0.0, -0.5, 0.08 / 0.81, 0.0], rtol=1e-5)


def test_luffy_is_what_its_authors_compute():
    """Printed by ElliottYan/LUFFY at commit 01f4ae0, luffy/verl/verl/mix_src/mix_core_alg.py:69, `p_div_p_0.1`.

    The loss of own tokens is their mean, 1.6 for a gain, and that of demonstrated ones theirs; the gradient is of the
    mean over all four.
    """
    loss = np.asarray(luffy(view_of(LOG_PROB)))[0, 0]
    np.testing.assert_allclose([loss[:2].mean(), loss[2:4].mean()], [-1.6, -0.05555555], rtol=1e-5)
    np.testing.assert_allclose(gradient(luffy)[:4] / 4, [-0.5, 0.0, -0.125, 0.0247], atol=1e-4)


def test_shaping_is_strongest_where_the_policy_gives_a_token_gamma():
    steps = jnp.linspace(0.01, 0.99, 99)

    def slope(probability):
        view = view_of(jnp.full((1, 1, 5), jnp.log(probability)))
        return jax.grad(lambda log_prob: luffy(view.replace(log_prob=log_prob), gamma=0.3)[0, 0, 2])(view.log_prob)

    slopes = jax.vmap(slope)(steps)[:, 0, 0, 2]
    np.testing.assert_allclose(steps[jnp.argmin(slopes)], 0.3, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({}, [0.1 * 0.9, 0.8 * 0.2]),  # p (1 - p)
        ({"certainty": 1.0, "doubt": 0.0}, [0.1, 0.8]),  # importance sampling
        ({"certainty": 0.0, "doubt": 0.0}, [1.0, 1.0]),  # likelihood
    ],
)
def test_chord_weighs_what_is_shown_and_leaves_own_tokens_to_the_clipped_surrogate(options, weights):
    shown = -ADVANTAGE[0, 0, 2:4] * np.array(weights)
    np.testing.assert_allclose(
        chord(view_of(LOG_PROB), **options)[0, 0], [-2.0, -1.2, *(shown * np.log([0.1, 0.8])), 0.0], rtol=1e-5
    )
    np.testing.assert_allclose(gradient(chord, **options), [-2.0, 0.0, *shown, 0.0], rtol=1e-5)


def test_likelihood_is_plain_where_all_is_shown_and_own_episodes_are_as_they_were():
    view = view_of(LOG_PROB)
    likelihood = chord(view, certainty=0.0, doubt=0.0)[0, 0, 2:4]
    np.testing.assert_allclose(likelihood, plain(view)[0, 0, 2:4], rtol=1e-6)
    own = view.replace(demonstrated=None)
    for loss in (luffy, chord):
        np.testing.assert_array_equal(loss(own), ppo_clip(own))


@pytest.mark.parametrize("loss", [luffy, chord])
def test_an_own_token_of_probability_one_is_an_own_token(loss):
    """Of ratio 0.5: -2 * 0.5 by the clipped surrogate, not -2 * 0.5 / 0.6 as of demonstrations in LUFFY."""
    view = view_of(jnp.log(jnp.full((1, 1, 5), 0.5))).replace(behavior_log_prob=jnp.zeros((1, 1, 5)))
    np.testing.assert_allclose(loss(view)[0, 0, 0], -1.0, rtol=1e-6)


def test_what_is_to_blame_is_pushed_below_the_reference_and_no_further():
    reference = jnp.log(jnp.array([[[0.9, 0.9, 0.1, 0.2, 0.9]]]))

    def loss(log_prob):
        return adversarial_imitation(view_of(log_prob).replace(reference_log_prob=reference), coefficient=0.5)

    # -2 * 1, -min(1.5, 1.2); half of log(1 + p / p_reference), with ratios 1 and 4; nothing.
    expected = [-2.0, -1.2, 0.5 * np.log(2.0), 0.5 * np.log(5.0), 0.0]
    np.testing.assert_allclose(loss(LOG_PROB)[0, 0], expected, rtol=1e-5)
    slope = jax.grad(lambda log_prob: jnp.sum(loss(log_prob)))(LOG_PROB)[0, 0]
    np.testing.assert_allclose(slope, [-2.0, 0.0, 0.5 * 0.5, 0.5 * 0.8, 0.0], rtol=1e-5, atol=1e-7)
    with pytest.raises(ValueError, match="`learner.reference` must be true"):
        adversarial_imitation(view_of(LOG_PROB))
