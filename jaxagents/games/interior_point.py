"""Linear programs inside jit: Mehrotra's interior-point method with dense rows."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve

from jaxagents.types import Array

_MAX_STEPS = 100
_TO_BOUNDARY = 0.995  # Largest fraction of the way to the nearest bound that a step may take.


class Program(NamedTuple):
    """`min cost . x` subject to `rows x = limits`, `x >= 0`; `[V]`, `[M, V]`, `[M]`."""

    cost: Array
    rows: Array
    limits: Array


class Point(NamedTuple):
    """`x [V]`, the multipliers `y [M]` of the rows, reduced costs `s [V] = cost - rows' y`, and whether to go on."""

    x: Array
    y: Array
    s: Array
    running: Array
    steps: Array


def solve_linear_program(cost: Array, rows: Array, limits: Array) -> tuple[Array, Array]:
    """Minimises `cost . x` subject to `rows x <= limits`, `x >= 0`.

    Args:
        cost: float `[V]`; float64 for a precision of about 1e-9, float32 reaches about 1e-4.
        rows: `[M, V]`; an all-zero row needs a positive limit.
        limits: `[M]`.

    Returns:
        The minimiser `[V]` (the centre if there are several) and the multipliers of the rows `[M]`, non-negative.
        Infeasible or unbounded programs give the last finite point: the caller must know that the program is feasible.

    References:
        Mehrotra (1992), "On the implementation of a primal-dual interior point method".
    """
    slack = jnp.eye(rows.shape[0], dtype=rows.dtype)
    program = Program(
        cost=jnp.concatenate([cost, jnp.zeros_like(limits)]), rows=jnp.concatenate([rows, slack], axis=1), limits=limits
    )
    point = jax.lax.while_loop(lambda p: p.running, lambda p: _step(program, p), _start(program))
    return point.x[: cost.shape[0]], jnp.maximum(-point.y, 0.0)


def _start(program: Program) -> Point:
    """Returns Mehrotra's starting point: the least-squares solutions, pushed into the interior."""
    cost, rows, limits = program
    factor = _factor(rows @ rows.T)
    x = rows.T @ cho_solve(factor, limits)
    y = cho_solve(factor, rows @ cost)
    s = cost - rows.T @ y
    x, s = (v + jnp.maximum(-1.5 * jnp.min(v), 0.0) for v in (x, s))
    product = jnp.sum(x * s) + 1e-3
    x, s = x + 0.5 * product / (jnp.sum(s) + 1e-3) + 1e-3, s + 0.5 * product / (jnp.sum(x) + 1e-3) + 1e-3
    return Point(x=x, y=y, s=s, running=jnp.bool_(True), steps=jnp.int32(0))


def _factor(matrix: Array) -> tuple[Array, bool]:
    tiny = jnp.finfo(matrix.dtype).eps * (1.0 + jnp.max(jnp.diagonal(matrix)))
    return cho_factor(matrix + tiny * jnp.eye(matrix.shape[0], dtype=matrix.dtype))


def _step(program: Program, point: Point) -> Point:
    """Takes one predictor-corrector step; stops if complementarity and both residuals have reached the precision."""
    cost, rows, limits = program
    x, y, s, _, steps = point
    primal, dual = limits - rows @ x, cost - rows.T @ y - s
    scale = x / s
    factor = _factor((rows * scale[None, :]) @ rows.T)

    def direction(target: Array) -> tuple[Array, Array, Array]:
        """Solves `rows dx = primal`, `rows' dy + ds = dual`, `s dx + x ds = target`."""
        dy = cho_solve(factor, primal + rows @ (scale * dual - target / s))
        ds = dual - rows.T @ dy
        return (target - x * ds) / s, dy, ds

    gap = jnp.mean(x * s)
    dx, _, ds = direction(-x * s)
    affine = jnp.mean((x + _length(x, dx) * dx) * (s + _length(s, ds) * ds))
    dx, dy, ds = direction(gap * (affine / gap) ** 3 - x * s - dx * ds)
    primal_length, dual_length = (_TO_BOUNDARY * _length(v, dv) for v, dv in ((x, dx), (s, ds)))
    new = (x + primal_length * dx, y + dual_length * dy, s + dual_length * ds)
    finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(v)) for v in new]))
    x, y, s = (jnp.where(finite, after, before) for after, before in zip(new, (x, y, s)))
    precision = jnp.finfo(x.dtype).eps ** 0.7
    residual = jnp.maximum(jnp.max(jnp.abs(limits - rows @ x)), jnp.max(jnp.abs(cost - rows.T @ y - s)))
    done = (jnp.mean(x * s) < precision) & (residual < precision * (1.0 + jnp.max(jnp.abs(cost))))
    return Point(x=x, y=y, s=s, running=finite & ~done & (steps + 1 < _MAX_STEPS), steps=steps + 1)


def _length(value: Array, change: Array) -> Array:
    """Returns the largest step of at most 1 that keeps `value + length * change` non-negative."""
    return jnp.minimum(1.0, jnp.min(jnp.where(change < 0, -value / jnp.where(change < 0, change, 1.0), jnp.inf)))
