"""The band around past entropies against numbers made by hand, and that a constant penalty has no gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.losses.epo import (
    EntropyHistory,
    add_to_history,
    entropy_smoothing,
    make_entropy_smoothing,
    phase_weight,
)
from jaxagents.types import TokenView

# Turn 0 had a mean of 1 nat in two updates, turn 1 of 0.5 in one, turn 2 never took place.
HISTORY = EntropyHistory(
    total=jnp.array([2.0, 0.5, 0.0]),
    count=jnp.array([2.0, 1.0, 0.0]),
    update=jnp.array(0.0),
    num_updates=jnp.array(10.0),
)
TURN = jnp.array([[0, 0, 0, 1], [1, 2, 7, 0]])
ENTROPY = jnp.array([[1.0, 2.0, 0.5, 0.1], [0.9, 5.0, 5.0, 9.0]])
MASK = jnp.array([[True, True, True, True], [True, True, True, False]])
SETTINGS = {"coefficient": 2.0, "lower": 0.8, "upper": 1.2, "penalty": 0.5}


def term(entropy=ENTROPY, history=HISTORY, hinge=True, **changes):
    nothing = jnp.zeros(MASK.shape)
    view = TokenView(mask=MASK, turn=TURN, sequence=TURN, behavior_log_prob=nothing, log_prob=nothing, entropy=entropy)
    return entropy_smoothing(history, view, hinge=hinge, **SETTINGS | changes)


def test_the_hinge_by_hand():
    # Distances from the band in units of the history: 0, 2 - 1.2, 0.8 - 0.5, 0.8 - 0.2 and 1.8 - 1.2.
    actual, summary = term()
    np.testing.assert_allclose(actual, [[0.0, 0.8, 0.3, 0.6], [0.6, 0.0, 0.0, 0.0]], rtol=1e-5)
    np.testing.assert_allclose(summary["entropy"], [3.5, 1.0, 10.0], rtol=1e-6)
    np.testing.assert_allclose(summary["tokens"], [3.0, 2.0, 2.0])


def test_the_constant_by_hand():
    np.testing.assert_allclose(term(hinge=False)[0], [[0.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0]], rtol=1e-6)


def test_a_constant_penalty_has_no_gradient_and_a_hinge_pulls_into_the_band():
    def slope(hinge):
        return jax.grad(lambda entropy: jnp.sum(term(entropy, hinge=hinge)[0]))(ENTROPY)

    np.testing.assert_array_equal(slope(False), 0.0)
    np.testing.assert_allclose(slope(True), [[0.0, 1.0, -1.0, -2.0], [2.0, 0.0, 0.0, 0.0]], rtol=1e-6)


def test_the_weight_falls_over_training():
    expected = [1.0, 1 - 0.2 * (1 - np.exp(-1.0)), 0.8, 0.8 * np.exp(-1.5), 0.8 * np.exp(-3.0)]
    np.testing.assert_allclose(phase_weight(jnp.array([0.0, 0.25, 0.5, 0.75, 1.0])), expected, rtol=1e-6)
    late = HISTORY.replace(update=jnp.array(7.5))
    np.testing.assert_allclose(term(history=late)[0], 0.8 * np.exp(-1.5) * term()[0], rtol=1e-6)


def test_history_is_the_mean_over_updates_of_the_means_of_turns():
    summary = {"entropy": jnp.array([12.0, 0.0, 1.0]), "tokens": jnp.array([4.0, 0.0, 2.0])}
    history = add_to_history(HISTORY, summary)
    np.testing.assert_allclose(history.total, [5.0, 0.5, 0.5])
    np.testing.assert_allclose(history.count, [3.0, 1.0, 1.0])
    assert float(history.update) == 1.0


def test_compiled_over_coefficients_and_histories():
    compiled = jax.jit(lambda entropy, upper: term(entropy, upper=upper)[0])
    np.testing.assert_allclose(compiled(ENTROPY, 1.2), term()[0], rtol=1e-6)
    np.testing.assert_allclose(compiled(ENTROPY, 3.0), term(upper=3.0)[0], rtol=1e-6)
    assert compiled._cache_size() == 1
    several = jax.vmap(lambda factor: term(factor * ENTROPY)[0])(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(several[1], term(2.0 * ENTROPY)[0], rtol=1e-6)


def test_nothing_is_asked_of_tokens_without_history_or_off_the_mask():
    empty = make_entropy_smoothing(coefficient=1.0, num_turns=3).init(10)
    np.testing.assert_array_equal(term(history=empty)[0], 0.0)
    junk = jnp.where(MASK, ENTROPY, jnp.nan)
    np.testing.assert_array_equal(term(junk)[0], term()[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lower": 1.2, "upper": 1.0}, r"`lower` must be in \[0, `upper`\), got 1.2 and 1.0; try 0.8 and 1.2."),
        ({"num_turns": 0}, "`num_turns` must be at least 1, got 0; try 50."),
    ],
)
def test_refused_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        make_entropy_smoothing(coefficient=0.1, **settings)
