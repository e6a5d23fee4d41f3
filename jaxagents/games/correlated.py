"""Correlated equilibria of payoff tensors: gains from deviating, and meta-solvers of JPSRO.

A meta-solver is `(payoffs, counts, key) -> joint [A, ..., A]`; deterministic ones ignore the key. `coarse` selects the
kind of equilibrium. In a coarse correlated equilibrium (CCE), nobody gains by an action chosen before the joint action
is drawn; in a correlated equilibrium (CE), nobody gains by replacing the recommended action.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxagents.games.gini import Flattest, flattest
from jaxagents.games.meta_solvers import uniform
from jaxagents.games.normal_form import product_of, require_square, undominated
from jaxagents.types import Array

_SAME = 1e-8  # Payoffs closer than this, in units of their range, count as equal.


def coarse_gains(payoffs: Array, joint: Array) -> Array:
    """Computes `sum_a x[a] (G_p[a_p', a_-p] - G_p[a])` for every player p and action `a_p'`, `[n, A]`."""
    rows = []
    for player, payoff in enumerate(payoffs):
        own = jnp.moveaxis(payoff, player, 0).reshape(payoff.shape[player], -1)
        rows.append(own @ jnp.sum(joint, axis=player).reshape(-1) - jnp.sum(payoff * joint))
    return jnp.stack(rows)


def swap_gains(payoffs: Array, joint: Array) -> Array:
    """Computes `sum_{a_-p} x[a] (G_p[a_p', a_-p] - G_p[a])` for every player p, `a_p` and `a_p'`, `[n, A, A]`."""
    rows = []
    for player, payoff in enumerate(payoffs):
        own, mass = (jnp.moveaxis(v, player, 0).reshape(v.shape[player], -1) for v in (payoff, joint))
        rows.append(mass @ own.T - jnp.sum(mass * own, axis=1, keepdims=True))
    return jnp.stack(rows)


def cce_gaps(payoffs: Array, joint: Array, counts: Array | None = None) -> Array:
    """Computes every player's gain from its best deviation before the draw, `[n]`; the CCE gap is their sum."""
    exists = require_square(payoffs, counts) > 0
    return jnp.maximum(jnp.max(jnp.where(exists, coarse_gains(payoffs, joint), 0.0), axis=1), 0.0)


def ce_gaps(payoffs: Array, joint: Array, counts: Array | None = None) -> Array:
    """Computes every player's gain from its best deviations from recommendations, `[n]`; the CE gap is their sum."""
    exists = require_square(payoffs, counts) > 0
    gains = jnp.where(exists[:, None, :], swap_gains(payoffs, joint), 0.0)
    return jnp.sum(jnp.maximum(jnp.max(gains, axis=2), 0.0), axis=1)


def max_gini(
    payoffs: Array,
    counts: Array | None = None,
    key: Array | None = None,
    *,
    coarse: bool,
    epsilon: float = 0.0,
    tolerance: float = 1e-6,
    max_steps: int = 20_000,
) -> Array:
    """Computes the (C)CE with the largest Gini impurity `1 - sum_a x[a]^2`, MGCE or MGCCE, which is unique.

    Args:
        payoffs: `[n, A, ..., A]`; float64 for tolerances below 1e-4.
        counts: `[n, A]`; every copy of a joint action counts in the impurity.
        key: not used.
        coarse: whether to compute a CCE instead of a CE.
        epsilon: gain that deviations may have, as a fraction of the largest gain from the uniform distribution; 0 gives
            an equilibrium.
        tolerance: tolerance of gains, in units of the range of payoffs.
        max_steps: greatest number of ascent steps, see `gini.flattest`.

    Returns:
        `[A, ..., A]`.

    References:
        Marris et al. (2021), "Multi-Agent Training beyond Zero-Sum with Correlated Equilibrium Meta-Solvers".
    """
    payoffs, counts = _scaled(payoffs, counts, coarse)
    gains = _gains(payoffs, coarse)
    limit = epsilon * jnp.maximum(
        jnp.max(_row_mask(payoffs, counts, coarse) * gains(product_of(uniform(payoffs, counts)))), 0.0
    )
    return _flattest(payoffs, counts, coarse, limit, tolerance=tolerance, max_steps=max_steps).joint


def product(
    payoffs: Array, counts: Array | None = None, key: Array | None = None, *, solver: Callable[[Array, Array], Array]
) -> Array:
    """Draws every player's action independently, from the strategies of a solver of `games.meta_solvers`."""
    return product_of(solver(payoffs, counts))


def _gains(payoffs: Array, coarse: bool) -> Callable[[Array], Array]:
    return lambda joint: (coarse_gains if coarse else swap_gains)(payoffs, joint)


def _row_mask(payoffs: Array, counts: Array, coarse: bool) -> Array:
    """Returns which deviations exist and have an effect, `[n, A]` or `[n, A, A]`."""
    masks = []
    for player, payoff in enumerate(payoffs):
        own = jnp.moveaxis(payoff, player, 0).reshape(payoff.shape[player], -1)
        exists = counts[player] > 0
        differs = jnp.max(jnp.abs(own[:, None, :] - own[None, :, :]), axis=-1) > _SAME
        swap = exists[:, None] & exists[None, :] & differs
        masks.append(jnp.any(swap, axis=0) if coarse else swap)
    return jnp.stack(masks)


def _range(payoffs: Array, counts: Array) -> Array:
    """Returns the largest difference between payoffs of one player, or 1 if there is none."""
    support = (product_of(counts) > 0)[None]
    axes = tuple(range(1, payoffs.ndim))
    high = jnp.max(jnp.where(support, payoffs, -jnp.inf), axis=axes)
    low = jnp.min(jnp.where(support, payoffs, jnp.inf), axis=axes)
    return jnp.where(jnp.max(high - low) > 0, jnp.max(high - low), 1.0)


def _scaled(payoffs: Array, counts: Array | None, coarse: bool) -> tuple[Array, Array]:
    """Returns payoffs of range 1, zero for padding, and counts without actions that no CE plays."""
    counts = require_square(payoffs, counts)
    if not coarse:
        counts = undominated(payoffs, counts)
    return jnp.where((product_of(counts) > 0)[None], payoffs, 0.0) / _range(payoffs, counts), counts


def _flattest(payoffs: Array, counts: Array, coarse: bool, limit: Array | float, **options: Any) -> Flattest:
    weight = product_of(counts / jnp.sum(counts, axis=1, keepdims=True))
    return flattest(_gains(payoffs, coarse), weight, _row_mask(payoffs, counts, coarse), limit, **options)
