"""Correlated equilibria of payoff tensors: what deviating gains, and meta-solvers of JPSRO.

A meta-solver is `(payoffs, counts, key) -> joint [A, ..., A]`; those without randomness ignore the key. `coarse` says
which equilibrium is meant. In a coarse correlated one (CCE) nobody gains by an action chosen before the joint action is
drawn; in a correlated one (CE) nobody gains by replacing the action that was recommended.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.games.gini import Flattest, flattest
from jaxagents.games.interior_point import solve_linear_program
from jaxagents.games.meta_solvers import uniform
from jaxagents.games.normal_form import product_of, require_square, undominated
from jaxagents.types import Array

_SAME = 1e-8  # Payoffs closer than this, in units of their range, are the same.
_MOST_ENTRIES = 2**26  # Of the dense rows of a linear program: half a GiB in float64.


def coarse_gains(payoffs: Array, joint: Array) -> Array:
    """Computes `sum_a x[a] (G_p[a_p', a_-p] - G_p[a])` of every player p and action `a_p'`, `[n, A]`."""
    rows = []
    for player, payoff in enumerate(payoffs):
        own = jnp.moveaxis(payoff, player, 0).reshape(payoff.shape[player], -1)
        rows.append(own @ jnp.sum(joint, axis=player).reshape(-1) - jnp.sum(payoff * joint))
    return jnp.stack(rows)


def swap_gains(payoffs: Array, joint: Array) -> Array:
    """Computes `sum_{a_-p} x[a] (G_p[a_p', a_-p] - G_p[a])` of every player p, `a_p` and `a_p'`, `[n, A, A]`."""
    rows = []
    for player, payoff in enumerate(payoffs):
        own, mass = (jnp.moveaxis(v, player, 0).reshape(v.shape[player], -1) for v in (payoff, joint))
        rows.append(mass @ own.T - jnp.sum(mass * own, axis=1, keepdims=True))
    return jnp.stack(rows)


def cce_gaps(payoffs: Array, joint: Array, counts: Array | None = None) -> Array:
    """Computes what every player gains by its best deviation before the draw, `[n]`; the CCE gap is their sum."""
    exists = require_square(payoffs, counts) > 0
    return jnp.maximum(jnp.max(jnp.where(exists, coarse_gains(payoffs, joint), 0.0), axis=1), 0.0)


def ce_gaps(payoffs: Array, joint: Array, counts: Array | None = None) -> Array:
    """Computes what every player gains by the best deviations from recommendations, `[n]`; the CE gap is their sum."""
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
    """Computes the (C)CE of the largest Gini impurity `1 - sum_a x[a]^2`, MGCE or MGCCE; it is unique.

    Args:
        payoffs: `[n, A, ..., A]`; float64 for tolerances under 1e-4.
        counts: `[n, A]`; every copy of a joint action counts in the impurity.
        key: not used.
        coarse: True: CCE; False: CE.
        epsilon: deviations may gain this share of the largest gain from the uniform distribution; 0 is an equilibrium.
        tolerance: of gains, in units of the range of payoffs.
        max_steps: of the ascent, see `gini.flattest`.

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


def min_epsilon_max_gini(
    payoffs: Array,
    counts: Array | None = None,
    key: Array | None = None,
    *,
    coarse: bool,
    tolerance: float = 1e-6,
    max_steps: int = 20_000,
) -> Array:
    """Maximises `1 - sum_a x[a]^2 - 2 epsilon` with gains of deviations at most `epsilon <= 0`: a strict (C)CE.

    Args:
        payoffs: `[n, A, ..., A]`; their unit weighs epsilon against the impurity.
        counts: `[n, A]`.
        key: not used.
        coarse: True: CCE; False: CE.
        tolerance: of gains, in units of the range of payoffs.
        max_steps: of the ascent.

    Returns:
        `[A, ..., A]`.

    References:
        Marris et al. (2021), "Multi-Agent Training beyond Zero-Sum with Correlated Equilibrium Meta-Solvers".
    """
    scaled, counts = _scaled(payoffs, counts, coarse)
    # In the units of `flattest`, whose payoffs have range 1 and whose weights sum to 1.
    slack_value = _range(payoffs, counts) * jnp.prod(jnp.sum(counts, axis=1))
    options: dict[str, Any] = {"slack_value": slack_value, "tolerance": tolerance, "max_steps": max_steps}
    return _flattest(scaled, counts, coarse, 0.0, **options).joint


def max_welfare(payoffs: Array, counts: Array | None = None, key: Array | None = None, *, coarse: bool) -> Array:
    """Computes the (C)CE of the largest sum of payoffs by linear programming, the centre of all such.

    Args:
        payoffs: `[n, A, ..., A]`, float64.
        counts: `[n, A]`, only whether they are positive.
        key: not used.
        coarse: True: CCE; False: CE.

    Returns:
        `[A, ..., A]`.

    Raises:
        ValueError: the program's dense rows are too large.
    """
    return _optimum(payoffs, counts, jnp.sum(payoffs, axis=0), coarse)


def random_vertex(payoffs: Array, counts: Array | None = None, key: Array | None = None, *, coarse: bool) -> Array:
    """Computes the (C)CE that is best for normally distributed payoffs of joint actions, see `max_welfare`."""
    return _optimum(payoffs, counts, jax.random.normal(key, payoffs.shape[1:], payoffs.dtype), coarse)


def random_joint(payoffs: Array, counts: Array | None = None, key: Array | None = None) -> Array:
    """Puts all probability on one joint action that is there, drawn uniformly; a baseline."""
    support = product_of((require_square(payoffs, counts) > 0).astype(payoffs.dtype))
    chosen = jax.random.categorical(key, jnp.log(support).reshape(-1))
    return jax.nn.one_hot(chosen, support.size, dtype=payoffs.dtype).reshape(support.shape)


def product(
    payoffs: Array, counts: Array | None = None, key: Array | None = None, *, solver: Callable[[Array, Array], Array]
) -> Array:
    """Draws every player's action apart, from the strategies of a solver of `games.meta_solvers`."""
    return product_of(solver(payoffs, counts))


def _gains(payoffs: Array, coarse: bool) -> Callable[[Array], Array]:
    return lambda joint: (coarse_gains if coarse else swap_gains)(payoffs, joint)


def _row_mask(payoffs: Array, counts: Array, coarse: bool) -> Array:
    """Returns which deviations are there and change something, `[n, A]` or `[n, A, A]`."""
    masks = []
    for player, payoff in enumerate(payoffs):
        own = jnp.moveaxis(payoff, player, 0).reshape(payoff.shape[player], -1)
        exists = counts[player] > 0
        differs = jnp.max(jnp.abs(own[:, None, :] - own[None, :, :]), axis=-1) > _SAME
        swap = exists[:, None] & exists[None, :] & differs
        masks.append(jnp.any(swap, axis=0) if coarse else swap)
    return jnp.stack(masks)


def _range(payoffs: Array, counts: Array) -> Array:
    """Returns the largest difference between payoffs of one player, 1 where there is none."""
    support = (product_of(counts) > 0)[None]
    axes = tuple(range(1, payoffs.ndim))
    high = jnp.max(jnp.where(support, payoffs, -jnp.inf), axis=axes)
    low = jnp.min(jnp.where(support, payoffs, jnp.inf), axis=axes)
    return jnp.where(jnp.max(high - low) > 0, jnp.max(high - low), 1.0)


def _scaled(payoffs: Array, counts: Array | None, coarse: bool) -> tuple[Array, Array]:
    """Returns payoffs of range 1, zero where there is nothing, and counts without what no CE plays."""
    counts = require_square(payoffs, counts)
    if not coarse:
        counts = undominated(payoffs, counts)
    return jnp.where((product_of(counts) > 0)[None], payoffs, 0.0) / _range(payoffs, counts), counts


def _flattest(payoffs: Array, counts: Array, coarse: bool, limit: Array | float, **options: Any) -> Flattest:
    weight = product_of(counts / jnp.sum(counts, axis=1, keepdims=True))
    return flattest(_gains(payoffs, coarse), weight, _row_mask(payoffs, counts, coarse), limit, **options)


def _optimum(payoffs: Array, counts: Array | None, welfare: Array, coarse: bool) -> Array:
    """Maximises `sum_a welfare[a] x[a]` over the (C)CE."""
    num_rows = payoffs.shape[0] * payoffs.shape[-1] ** (1 if coarse else 2) + 2
    if num_rows * (welfare.size + num_rows) > _MOST_ENTRIES:
        raise ValueError(
            f"`payoffs` must give a linear program of at most {_MOST_ENTRIES} entries, got {num_rows} rows of "
            f"{welfare.size + num_rows}; try fewer policies, coarse=true or max_gini."
        )
    payoffs, counts = _scaled(payoffs, counts, coarse)
    support = product_of((counts > 0).astype(payoffs.dtype))
    welfare = jnp.where(support > 0, welfare, 0.0)
    welfare = welfare / jnp.maximum(jnp.max(jnp.abs(welfare)), jnp.finfo(payoffs.dtype).tiny)
    transpose = jax.linear_transpose(_gains(payoffs, coarse), support)
    mask = _row_mask(payoffs, counts, coarse)
    units = jnp.diag(mask.reshape(-1).astype(payoffs.dtype)).reshape(mask.size, *mask.shape)
    rows = jax.vmap(lambda unit: (support * transpose(unit)[0]).reshape(-1))(units)
    total = support.reshape(1, -1)
    limits = jnp.where(mask.reshape(-1), 0.0, 1.0).astype(payoffs.dtype)  # Those that are no rows have room.
    cost = jnp.where(support > 0, -welfare, 1.0).reshape(-1)
    x, _ = solve_linear_program(
        cost, jnp.concatenate([rows, total, -total]), jnp.concatenate([limits, jnp.array([1.0, -1.0], limits.dtype)])
    )
    x = jnp.where(support.reshape(-1) > 0, x, 0.0)
    return (x / jnp.sum(x)).reshape(support.shape)
