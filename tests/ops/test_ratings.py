"""Elo: expected scores, updates and fits by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops import ratings


def test_expected_scores_of_the_tables():
    np.testing.assert_allclose(ratings.expected_score(200.0, 0.0), 0.75975, atol=1e-5)
    np.testing.assert_allclose(ratings.expected_score(1500.0, 1900.0), 1.0 / 11.0, atol=1e-6)
    np.testing.assert_allclose(ratings.expected_score(1.0, 2.0) + ratings.expected_score(2.0, 1.0), 1.0, rtol=1e-6)


def test_updates_by_hand():
    # Equals: the winner gets 16 of 32. Then 16 against 0 draws: expected 1 / (1 + 10^(-16/400)) = 0.52301.
    first, second, score = jnp.array([0, 0]), jnp.array([1, 2]), jnp.array([1.0, 0.5])
    new = jax.jit(ratings.update_ratings)(jnp.zeros(3), first, second, score, step_size=32.0)
    np.testing.assert_allclose(new, [16.0 - 0.73628, -16.0, 0.73628], atol=1e-3)
    np.testing.assert_allclose(new.sum(), 0.0, atol=1e-4)


def test_a_fit_gives_the_odds_back():
    # 3 of 4 points are odds of 3: 400 log10(3) points; the third one scores a half against the first.
    score = jnp.array([[0.0, 75.0, 50.0], [25.0, 0.0, 0.0], [50.0, 0.0, 0.0]])
    games = jnp.array([[0.0, 100.0, 100.0], [100.0, 0.0, 0.0], [100.0, 0.0, 0.0]])
    fitted = ratings.fit_ratings(score, games, prior_games=1e-4)
    np.testing.assert_allclose(fitted[0] - fitted[1], 400.0 * np.log10(3.0), atol=0.5)
    np.testing.assert_allclose(fitted[0] - fitted[2], 0.0, atol=0.5)
    np.testing.assert_allclose(fitted.mean(), 0.0, atol=1e-3)
    # Half of the table says the same.
    upper = ratings.fit_ratings(jnp.triu(score), jnp.triu(games), prior_games=1e-4)
    np.testing.assert_allclose(upper, fitted, atol=0.5)


def test_those_who_never_lose_have_a_finite_rating():
    score, games = jnp.array([[0.0, 10.0], [0.0, 0.0]]), jnp.array([[0.0, 10.0], [10.0, 0.0]])
    fitted = ratings.fit_ratings(score, games, prior_games=2.0)
    # 20 of 20, and 1 of 2 drawn ones: 21 of 22 are odds of 21.
    np.testing.assert_allclose(fitted[0] - fitted[1], 400.0 * np.log10(21.0), atol=1.0)


def test_the_prior_is_of_a_pair_whichever_half_of_the_table_holds_its_games():
    """10 of 10, and 1 of 2 drawn ones: 11 of 12 are odds of 11."""
    for score, games in (
        ([[0.0, 10.0], [0.0, 0.0]], [[0.0, 10.0], [0.0, 0.0]]),
        ([[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [10.0, 0.0]]),
        ([[0.0, 5.0], [0.0, 0.0]], [[0.0, 5.0], [5.0, 0.0]]),
    ):
        fitted = ratings.fit_ratings(jnp.array(score), jnp.array(games), prior_games=2.0)
        np.testing.assert_allclose(fitted[0] - fitted[1], 400.0 * np.log10(11.0), atol=1.0)


def test_refused():
    with pytest.raises(ValueError, match=r"`score` and `games` must be \[P, P\], got \(2, 3\) and \(2, 3\)"):
        ratings.fit_ratings(jnp.zeros((2, 3)), jnp.zeros((2, 3)))
    with pytest.raises(ValueError, match="`prior_games` must be positive, got 0; try 0.1."):
        ratings.fit_ratings(jnp.zeros((2, 2)), jnp.zeros((2, 2)), prior_games=0)
