"""Elo ratings: from differences of strength to scores, and back from scores of matches to strengths."""

import math

import jax
import jax.numpy as jnp

from jaxagents.types import Array

SCALE = 400.0 / math.log(10.0)  # Elo points per unit of log-odds.


def expected_score(rating: Array, opponent_rating: Array) -> Array:
    """Computes `1 / (1 + 10^((R_opponent - R) / 400))`, broadcast.

    Args:
        rating: in Elo points.
        opponent_rating: in Elo points.

    Returns:
        Expected score in (0, 1); a drawn game counts a half.

    References:
        Elo (1978), The Rating of Chessplayers, Past and Present.
    """
    return jax.nn.sigmoid((jnp.asarray(rating) - opponent_rating) / SCALE)


def update_ratings(ratings: Array, first: Array, second: Array, score: Array, *, step_size: Array | float) -> Array:
    """Rates games one after the other: `R += K (score - expected score)`, and the opponent loses as much.

    Args:
        ratings: float `[P]`, before.
        first: int32 `[M]`, a player of every game.
        second: int32 `[M]`, its opponent.
        score: float `[M]`, of the first player: 1, 0.5 or 0.
        step_size: K, 32 among beginners, 10 among masters.

    Returns:
        float32 `[P]`, after; their sum stays the same.
    """

    def play(ratings: Array, game: tuple[Array, Array, Array]) -> tuple[Array, None]:
        i, j, s = game
        change = step_size * (s - expected_score(ratings[i], ratings[j]))
        return ratings.at[i].add(change).at[j].add(-change), None

    return jax.lax.scan(play, jnp.asarray(ratings, jnp.float32), (first, second, score))[0]


def fit_ratings(score: Array, games: Array, *, prior_games: float = 0.1, num_iterations: int = 100) -> Array:
    """Fits ratings to a table of matches: the maximum of the likelihood of Bradley and Terry, by Newton's method.

    Maximises `sum_ij s_ij log p_ij` with the `expected_score` p_ij of i against j. Every pair has `prior_games` drawn
    games more, so that ratings of those who never lose are finite. Steps are half as long as Newton's, which overshoot.

    Args:
        score: float `[P, P]`, sum of the scores of row against column; the diagonal does not count.
        games: float `[P, P]`, games of row and column. Both halves count: a match is in one of them.
        prior_games: drawn games of every pair beside those, more than 0.
        num_iterations: Newton steps.

    Returns:
        float32 `[P]`, Elo points with mean 0.

    Raises:
        ValueError: not two square tables of one size, or `prior_games` not positive.

    References:
        Bradley and Terry (1952), Rank analysis of incomplete block designs.
    """
    if score.ndim != 2 or score.shape != games.shape or score.shape[0] != score.shape[1]:
        raise ValueError(f"`score` and `games` must be [P, P], got {score.shape} and {games.shape}.")
    if prior_games <= 0.0:
        raise ValueError(f"`prior_games` must be positive, got {prior_games}; try 0.1.")
    others = 1.0 - jnp.eye(score.shape[0])
    # A match is in either half of the table; the prior is of the pair, whichever half says what it played.
    score, games = score + (games - score).T, games + games.T
    score, games = (score + 0.5 * prior_games) * others, (games + prior_games) * others

    def newton(strength: Array, _: None) -> tuple[Array, None]:
        p = jax.nn.sigmoid(strength[:, None] - strength[None, :])
        gradient = jnp.sum(score - games * p, axis=1)
        curvature = games * p * (1.0 - p)
        # The constant direction has no curvature; any will do, as the gradient has none either.
        hessian = jnp.diag(jnp.sum(curvature, axis=1)) - curvature + jnp.ones_like(curvature)
        strength = strength + 0.5 * jnp.linalg.solve(hessian, gradient)
        return strength - jnp.mean(strength), None

    strength = jax.lax.scan(newton, jnp.zeros(score.shape[0]), None, length=num_iterations)[0]
    return SCALE * strength
