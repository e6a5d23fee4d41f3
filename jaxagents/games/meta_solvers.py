"""Meta-solvers of PSRO: `(payoffs, counts) -> strategies [n, A]`, pure functions of a tensor of payoffs.

`payoffs [n, A, ..., A]` and `counts [n, A]` are those of `games.normal_form`: padding has count 0 and is never played,
and an action with count 2 is equivalent to two equal actions. One compiled function serves all iterations of PSRO.
"""

from functools import partial

import jax
import jax.numpy as jnp

from jaxagents.games.interior_point import solve_linear_program
from jaxagents.games.normal_form import action_value, action_values, require_square
from jaxagents.types import Array


def uniform(payoffs: Array, counts: Array | None = None) -> Array:
    """Plays all existing actions equally often, in proportion to the counts: fictitious play in PSRO."""
    counts = require_square(payoffs, counts)
    return counts / jnp.sum(counts, axis=1, keepdims=True)


def nash(payoffs: Array, counts: Array | None = None) -> Array:
    """Solves a two-player zero-sum game by linear programming.

    With payoffs shifted so that the value is positive, the column player's `y` maximises `sum y` subject to `G y <= 1`,
    and the row player's strategy consists of that program's multipliers.

    Args:
        payoffs: `[2, A, A]`; `payoffs[1]` is assumed to be `-payoffs[0]`. In float64, the strategies' NashConv is about
            1e-9 times the payoffs, in float32 1e-4.
        counts: `[2, A]`.

    Returns:
        `[2, A]`, the centre of all equilibria if there are several.

    Raises:
        ValueError: there are not two players.

    References:
        Lanctot et al. (2017), "A Unified Game-Theoretic Approach to Multiagent Reinforcement Learning".
    """
    if payoffs.shape[0] != 2:
        raise ValueError(f"`payoffs` must be of two players, got {payoffs.shape[0]}; try projected_replicator.")
    exists = require_square(payoffs, counts) > 0
    both = exists[0][:, None] & exists[1][None, :]
    low = jnp.min(jnp.where(both, payoffs[0], jnp.inf))
    high = jnp.max(jnp.where(both, payoffs[0], -jnp.inf))
    spread = jnp.where(high > low, high - low, 1.0)
    shifted = jnp.where(both, (payoffs[0] - low) / spread + 1.0, 0.0)
    column, row = solve_linear_program(
        jnp.where(exists[1], -1.0, 1.0).astype(payoffs.dtype), shifted, jnp.ones_like(shifted[0])
    )
    strategies = jnp.where(exists, jnp.stack([row, column]), 0.0)
    return strategies / jnp.sum(strategies, axis=1, keepdims=True)


def projected_replicator(
    payoffs: Array,
    counts: Array | None = None,
    *,
    num_iterations: int = 10_000,
    step_size: float = 1e-2,
    floor: float = 1e-6,
) -> Array:
    """Follows the projected replicator dynamics, and returns the average over time.

    `sigma(a) <- P[sigma(a) + step_size sigma(a) (u(a) - u(sigma))]` for all players at once, where P projects onto
    the strategies that play every action with at least the probability `floor`.

    Args:
        payoffs: `[n, A, ..., A]`.
        counts: `[n, A]`.
        num_iterations: number of iterations of the dynamics; the average includes the uniform start.
        step_size: step size of Euler's method, in inverse units of the payoff.
        floor: least probability of every copy of an action, below 1 / (number of copies).

    Returns:
        `[n, A]`.

    References:
        Lanctot et al. (2017), "A Unified Game-Theoretic Approach to Multiagent Reinforcement Learning", section 3.2.

    Deviation: 10,000 steps of 0.01 instead of OpenSpiel's 100,000 of 0.001.
    """
    counts = require_square(payoffs, counts)
    start = uniform(payoffs, counts)

    def step(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        strategies, total = carry
        values = action_values(payoffs, strategies)
        growth = strategies * (values - jnp.sum(strategies * values, axis=1, keepdims=True))
        strategies = jax.vmap(partial(_project, floor=floor))(strategies + step_size * growth, counts)
        return strategies, total + strategies

    _, total = jax.lax.fori_loop(0, num_iterations, step, (start, start))
    return total / jnp.sum(total, axis=1, keepdims=True)


def _project(strategy: Array, counts: Array, floor: float) -> Array:
    """Projects a strategy `[A]` in the space of copies: `max(p + theta, floor)`, with theta such that they sum to 1."""
    exists = counts > 0
    single = jnp.where(exists, strategy / jnp.where(exists, counts, 1.0), -jnp.inf) - floor
    order = jnp.argsort(-single)
    weight, value = counts[order], jnp.where(exists, single, 0.0)[order]
    rest = 1.0 - floor * jnp.sum(counts)
    shifts = (rest - jnp.cumsum(weight * value)) / jnp.cumsum(weight)
    last = jnp.sum((weight > 0) & (value + shifts > 0)) - 1  # Actions above the floor come first.
    return counts * (jnp.maximum(jnp.where(exists, single, 0.0) + shifts[last], 0.0) + floor)


def regret_matching(payoffs: Array, counts: Array | None = None, *, num_iterations: int = 10_000) -> Array:
    """Applies regret matching for all players simultaneously, and returns the average strategies.

    `R(a) += u(a) - u(sigma)`, with `sigma(a)` proportional to `max(R(a), 0)`, uniform if no regret is positive.

    Args:
        payoffs: `[n, A, ..., A]`.
        counts: `[n, A]`.
        num_iterations: number of iterations of the dynamics; the average includes the uniform start.

    Returns:
        `[n, A]`.

    References:
        Hart and Mas-Colell (2000), "A Simple Adaptive Procedure Leading to Correlated Equilibrium".
    """
    counts = require_square(payoffs, counts)
    start = uniform(payoffs, counts)

    def step(_: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        strategies, regrets, total = carry
        values = action_values(payoffs, strategies)
        regrets += values - jnp.sum(strategies * values, axis=1, keepdims=True)
        strategies = _proportional(counts * jnp.maximum(regrets, 0.0), start)
        return strategies, regrets, total + strategies

    _, _, total = jax.lax.fori_loop(0, num_iterations, step, (start, jnp.zeros_like(start), start))
    return total / jnp.sum(total, axis=1, keepdims=True)


def shor_training(payoffs: Array, counts: Array | None = None) -> Array:
    """Solves a meta-game for training by smoothed hybrid optimistic regret matching, annealed over PSRO's iterations.

    Optimism is 0.5; over 75 iterations of PSRO (number of policies found minus one) the share of the soft best response
    goes from 0.3 to 0.05, its temperature from 0.5 to 0.01, and the diversity bonus from 0.05 to 0.001. The number of
    inner iterations is 1000, plus 20 per iteration, at most 5000.

    Args:
        payoffs: `[n, A, ..., A]`.
        counts: `[n, A]`; their sum over actions is the number of policies found.

    Returns:
        `[n, A]`, the average over time.

    References:
        "Discovering Multiagent Learning Algorithms with Large Language Models" (2026, arXiv 2602.16928).
    """
    counts = require_square(payoffs, counts)
    iteration = jnp.max(jnp.sum(counts, axis=1)) - 1.0
    progress = jnp.minimum(iteration / 75.0, 1.0)
    average, _ = _shor(
        payoffs,
        counts,
        optimism=0.5,
        mixing=0.3 + progress * (0.05 - 0.3),
        temperature=0.5 + progress * (0.01 - 0.5),
        diversity=0.05 + progress * (0.001 - 0.05),
        num_iterations=jnp.minimum(1000 + 20 * iteration, 5000).astype(jnp.int32),
    )
    return average


def shor_evaluation(payoffs: Array, counts: Array | None = None) -> Array:
    """Solves a meta-game for evaluation: `shor_training` with less noise and more steps; returns the LAST iterate.

    Optimism is 0.2, the share of the soft best response 0.01, its temperature 0.001, diversity 0; the number of inner
    iterations is 8000, plus 50 per iteration of PSRO, at most 15,000.

    Args:
        payoffs: `[n, A, ..., A]`.
        counts: `[n, A]`.

    Returns:
        `[n, A]`.

    References:
        "Discovering Multiagent Learning Algorithms with Large Language Models" (2026, arXiv 2602.16928).
    """
    counts = require_square(payoffs, counts)
    iteration = jnp.max(jnp.sum(counts, axis=1)) - 1.0
    num_iterations = jnp.minimum(8000 + 50 * iteration, 15_000).astype(jnp.int32)
    options = {"optimism": 0.2, "mixing": 0.01, "temperature": 0.001, "diversity": 0.0}
    return _shor(payoffs, counts, num_iterations=num_iterations, **options)[1]


def _shor(
    payoffs: Array,
    counts: Array,
    *,
    optimism: Array | float,
    mixing: Array | float,
    temperature: Array | float,
    diversity: Array | float,
    num_iterations: Array | int,
) -> tuple[Array, Array]:
    """Returns the average and the last strategies; players move one after the other within an iteration.

    `d = u - mean(u)`; `gain = (1 + optimism) d - optimism d_before + diversity (1 - x)`, divided by its largest size;
    `C = max(0, C + gain)`; `x = (1 - mixing) C / sum C + mixing softmax(u / temperature)`.
    """
    start = uniform(payoffs, counts)
    exists = counts > 0
    copies = jnp.where(exists, counts, 1.0)

    def step(_: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        strategies, regrets, before, total = carry
        for player, payoff in enumerate(payoffs):
            count = counts[player]
            value = action_value(payoff, strategies, player)
            centred = jnp.where(exists[player], value - jnp.sum(count * value) / jnp.sum(count), 0.0)
            gain = (1.0 + optimism) * centred - optimism * before[player]
            gain += diversity * (1.0 - strategies[player] / copies[player])
            gain = jnp.where(exists[player], gain, 0.0)
            largest = jnp.max(jnp.abs(gain))
            gain /= jnp.where(largest > 1e-8, largest, 1.0)
            regret = jnp.maximum(regrets[player] + gain, 0.0)
            matched = _proportional(count * regret, start[player])
            soft = count * jax.nn.softmax(jnp.where(exists[player], value, -jnp.inf) / temperature)
            mixed = (1.0 - mixing) * matched + mixing * soft / jnp.sum(soft)
            strategies = strategies.at[player].set(mixed)
            regrets, before = regrets.at[player].set(regret), before.at[player].set(centred)
        return strategies, regrets, before, total + strategies

    zeros = jnp.zeros_like(start)
    strategies, _, _, total = jax.lax.fori_loop(0, num_iterations, step, (start, zeros, zeros, zeros))
    return total / jnp.sum(total, axis=1, keepdims=True), strategies


def _proportional(weights: Array, otherwise: Array) -> Array:
    """Returns weights divided by their sum over actions, or `otherwise` if the sum is zero."""
    total = jnp.sum(weights, axis=-1, keepdims=True)
    return jnp.where(total > 0, weights / jnp.where(total > 0, total, 1.0), otherwise)
