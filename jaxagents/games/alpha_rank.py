"""Alpha-rank: how often evolving populations of players are found at each joint action."""

import jax
import jax.numpy as jnp

from jaxagents.games.normal_form import product_of, require_square
from jaxagents.types import Array


def alpha_rank(
    payoffs: Array,
    counts: Array | None = None,
    key: Array | None = None,
    *,
    intensity: float | None = None,
    population_size: int = 50,
    noise: float = 0.01,
    tolerance: float = 1e-8,
    max_steps: int = 20_000,
) -> Array:
    """Computes the stationary distribution of mutants that take over populations, one player at a time.

    A chain over joint actions: a player p and another action `a_p'` are drawn uniformly, and the step is taken with the
    probability `rho(G_p[a_p', a_-p] - G_p[a])`, where `rho(d) = (1 - e^(-intensity d)) / (1 - e^(-m intensity d))` for
    populations of m. With infinite intensity rho is `1 - noise` for a better action, `noise` for a worse, 1/2 else.

    Args:
        payoffs: `[n, A, ..., A]`.
        counts: `[n, A]`; copies are drawn as often as they are there.
        key: not used.
        intensity: of selection, alpha; None: infinite.
        population_size: m.
        noise: of infinite intensity.
        tolerance: the chain is followed until no probability changes by more than this share of the largest.
        max_steps: of the chain.

    Returns:
        `[A, ..., A]`.

    References:
        Omidshafiei et al. (2019), "alpha-Rank: Multi-Agent Evaluation by Evolution", sections 3.1 and 4; Muller et al.
        (2020), "A Generalized Training Approach for Multiagent Learning" (as a meta-solver).

    Deviation: one intensity, infinite by default, in place of a sweep until nothing changes.
    """
    counts = require_square(payoffs, counts)
    num_others = jnp.maximum(jnp.sum(jnp.sum(counts, axis=1) - 1.0), 1.0)
    steps = []
    for player, payoff in enumerate(payoffs):
        own = jnp.moveaxis(payoff, player, 0)
        change = own[None, :] - own[:, None]  # From the first axis to the second.
        rho = _infinite(change, noise) if intensity is None else _fixation(intensity * change, population_size)
        to = counts[player].reshape((1, -1) + (1,) * (payoff.ndim - 1))
        steps.append(rho * to / num_others)

    def step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        joint, _, number = carry
        flow = jnp.zeros_like(joint)
        for player, chance in enumerate(steps):
            own = jnp.moveaxis(joint, player, 0)
            moved = jnp.einsum("a...,ab...->b...", own, chance) - own * jnp.sum(chance, axis=1)
            flow += jnp.moveaxis(moved, 0, player)
        after = joint + flow
        after /= jnp.sum(after)
        return after, jnp.max(jnp.abs(flow)) / jnp.max(joint), number + 1

    start = product_of(counts / jnp.sum(counts, axis=1, keepdims=True))
    joint, _, _ = jax.lax.while_loop(
        lambda carry: (carry[1] > tolerance) & (carry[2] < max_steps),
        step,
        (start, jnp.full((), jnp.inf, start.dtype), jnp.int32(0)),
    )
    return joint


def _infinite(change: Array, noise: float) -> Array:
    same = jnp.abs(change) < 1e-9
    return jnp.where(same, 0.5, jnp.where(change > 0, 1.0 - noise, noise)).astype(change.dtype)


def _fixation(selection: Array, size: int) -> Array:
    """Computes `(1 - e^-u) / (1 - e^-(size u))`, 1 / size at 0, of a u of either sign without overflow."""
    small = jnp.abs(selection) < 1e-6
    u = jnp.where(small, 1.0, jnp.abs(selection))
    up = jnp.expm1(-u) / jnp.expm1(-size * u)
    down = jnp.exp(-(size - 1) * u) * up  # The ratio of the two is e^(-(size - 1) u).
    return jnp.where(small, 1.0 / size, jnp.where(selection > 0, up, down))
