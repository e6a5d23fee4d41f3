"""The flattest joint distribution under linear constraints: a strictly convex program, solved through its dual."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxagents.types import Array

_POWER_STEPS = 40  # For the spectral norm, which is estimated from below, hence the margin.
_MARGIN = 1.05


class Flattest(NamedTuple):
    """The solution, the multipliers of the constraints, the largest optimality residual, and the number of steps."""

    joint: Array
    multipliers: Array
    residual: Array
    num_steps: Array


class _Ascent(NamedTuple):
    multipliers: Array
    ahead: Array
    momentum: Array
    residual: Array
    num_steps: Array


def flattest(
    gains: Callable[[Array], Array],
    weight: Array,
    row_mask: Array,
    limit: Array | float,
    *,
    tolerance: float = 1e-6,
    max_steps: int = 20_000,
) -> Flattest:
    """Minimises `1/2 sum x^2 / weight` subject to `gains(x) <= limit`, `sum x = 1` and `x >= 0`.

    For multipliers `alpha >= 0` of the rows, the minimiser is `x(alpha) = weight max(0, tau - gains^T alpha)`, with tau
    such that it sums to 1, and `gains(x(alpha)) - limit` is the gradient of the dual, which is maximised with
    Nesterov's momentum, reset whenever it points downhill.

    Args:
        gains: linear function of the joint distribution, such as `correlated.swap_gains`; of size about 1.
        weight: weight of every entry of `x`; 0 keeps it at 0.
        row_mask: bool, with the shape of the gains; True if the row is a constraint.
        limit: upper bound for all rows.
        tolerance: optimality residual at which to stop; constraints are violated by at most about as much.
        max_steps: greatest number of ascent steps.

    Returns:
        The distribution, which sums to exactly one, and its accuracy.

    References:
        Marris et al. (2021), "Multi-Agent Training beyond Zero-Sum with Correlated Equilibrium Meta-Solvers", appendix;
        O'Donoghue and Candes (2015), "Adaptive restart for accelerated gradient schemes".

    Deviation: the multipliers of `x >= 0` and of the sum are eliminated, whereas the paper also ascends in them.
    """
    transpose = jax.linear_transpose(gains, weight)
    mask = row_mask.astype(weight.dtype)

    def primal(multipliers: Array) -> Array:
        return _fill(transpose(mask * multipliers)[0], weight)

    def project(multipliers: Array) -> Array:
        return mask * jnp.maximum(multipliers, 0.0)

    step_size = 1.0 / (_MARGIN * _squared_norm(gains, transpose, weight, mask))

    def step(state: _Ascent) -> _Ascent:
        gradient = mask * (gains(primal(state.ahead)) - limit)
        multipliers = project(state.ahead + step_size * gradient)
        change = multipliers - state.multipliers
        uphill = jnp.sum((multipliers - state.ahead) * change) >= 0
        momentum = jnp.where(uphill, 0.5 * (1.0 + jnp.sqrt(1.0 + 4.0 * state.momentum**2)), 1.0)
        ahead = multipliers + jnp.where(uphill, (state.momentum - 1.0) / momentum, 0.0) * change
        residual = jnp.max(jnp.abs(multipliers - project(state.ahead))) / step_size
        return _Ascent(multipliers, ahead, momentum, residual, state.num_steps + 1)

    start = project(jnp.zeros_like(mask))
    one = jnp.ones((), weight.dtype)
    state = jax.lax.while_loop(
        lambda s: (s.residual > tolerance) & (s.num_steps < max_steps),
        step,
        _Ascent(start, start, one, jnp.inf * one, jnp.int32(0)),
    )
    return Flattest(primal(state.multipliers), state.multipliers, state.residual, state.num_steps)


def _fill(level: Array, weight: Array) -> Array:
    """Returns `weight max(0, tau - level)` with tau such that it sums to 1, by Newton's method from above."""

    def lower(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        tau, slope, _ = carry
        under = jnp.where(level < tau, weight, 0.0)
        new_slope = jnp.sum(under)
        new = (1.0 + jnp.sum(under * level)) / jnp.where(new_slope > 0, new_slope, 1.0)
        return jnp.where(new_slope > 0, new, tau), new_slope, new_slope < slope

    slope = jnp.sum(weight)
    start = (1.0 + jnp.sum(weight * level)) / jnp.where(slope > 0, slope, 1.0)
    tau, _, _ = jax.lax.while_loop(lambda carry: carry[2], lower, (start, slope, jnp.bool_(True)))
    filled = weight * jnp.maximum(tau - level, 0.0)
    size = jnp.sum(filled)
    return filled * jnp.where(size > 0, 1.0 / jnp.where(size > 0, size, 1.0), 0.0)


def _squared_norm(
    gains: Callable[[Array], Array], transpose: Callable[[Array], tuple[Array]], weight: Array, mask: Array
) -> Array:
    """Estimates the largest eigenvalue of `gains diag(weight) gains^T` by power iteration."""

    def step(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        vector, _ = carry
        image = mask * gains(weight * transpose(vector)[0])
        size = jnp.sqrt(jnp.sum(image**2))
        return image / jnp.where(size > 0, size, 1.0), size

    # Not constant, because gains of opposite deviations would cancel.
    start = mask * jnp.cos(jnp.arange(mask.size, dtype=mask.dtype)).reshape(mask.shape)
    start /= jnp.maximum(jnp.sqrt(jnp.sum(start**2)), jnp.finfo(mask.dtype).tiny)
    _, size = jax.lax.fori_loop(0, _POWER_STEPS, step, (start, jnp.ones((), mask.dtype)))
    return jnp.where(size > 0, size, 1.0)
