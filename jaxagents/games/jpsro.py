"""Joint policy-space response oracles: populations that grow by deviations from a correlated meta-strategy."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxagents.games.best_response import respond
from jaxagents.games.extensive_form import Game
from jaxagents.games.normal_form import joint_value
from jaxagents.games.populations import (
    Population,
    add_policy,
    enlarge,
    is_known,
    meta_payoffs,
    reach_of_others,
    start_population,
)
from jaxagents.games.strategies import Profile, uniform_profile
from jaxagents.ops.checks import check_counts
from jaxagents.types import Array

JointSolver = Callable[[Array, Array, Array], Array]
"""`(payoffs [n, K, ..., K], counts [n, K], key) -> joint [K, ..., K]`, see `games.correlated`."""

_LEAST = 1e-8  # Probabilities and gains below it count as zero.
_FIRST_CAPACITY = 16  # Initial capacity of populations; when full, it is doubled and the program is compiled again.


class JpsroCurves(NamedTuple):
    """Properties of the joint distribution before each of T iterations.

    Attributes:
        cce_gap: `[T]`, sum of the players' gains in the game from the best deviations before the draw.
        ce_gap: `[T]`, the same for the best deviations from every recommended policy; at least `cce_gap`.
        value: `[T, n]`, expected payoffs of the players.
        num_policies: int32 `[T, n]`, numbers of different policies.
    """

    cce_gap: Array
    ce_gap: Array
    value: Array
    num_policies: Array


class JpsroResult(NamedTuple):
    """The result of JPSRO.

    Attributes:
        curves: curves over iterations.
        population: population after the last iteration.
        joint: `[K, ..., K]`, joint distribution over this population.
    """

    curves: JpsroCurves
    population: Population
    joint: Array


def jpsro(
    game: Game,
    solver: JointSolver,
    key: Array,
    *,
    coarse: bool,
    num_iterations: int = 40,
    least_gap: float = 0.0,
    start: Profile | None = None,
) -> JpsroResult:
    """Repeatedly adds the policies that deviate best from a joint distribution over the existing ones.

    For CCEs, every player adds a best response to the distribution of the others. For CEs, there is one per recommended
    policy, and the new one with the largest gain, weighted by the probability of the recommendation, is added. A policy
    that already exists only increases its count.

    Args:
        game: compiled game.
        solver: solver of the meta-game; `partial(correlated.max_gini, coarse=True)` with `coarse=True`.
        key: PRNG key for random solvers.
        coarse: whether to run JPSRO(CCE) instead of JPSRO(CE).
        num_iterations: T, number of iterations.
        least_gap: gap of the chosen kind at or below which iterations stop; the last numbers then also stand for the
            iterations left out.
        start: initial policies; None: uniform ones.

    Returns:
        The result, in the precision of the caller: `with jax.enable_x64():` for float64.

    Raises:
        ValueError: there are no iterations, or policies do not fit the game.

    References:
        Marris et al. (2021), "Multi-Agent Training beyond Zero-Sum with Correlated Equilibrium Meta-Solvers", algorithm
        1.

    Deviation: policies are equal if they play the same, whatever they would do at unreachable points of the game.
    Deviation: if no deviation is new, the one with the largest gain is counted once more, instead of a random one.
    """
    check_counts(num_iterations=num_iterations)
    population = start_population(game, uniform_profile(game) if start is None else start, _FIRST_CAPACITY)
    numbers = jnp.zeros((num_iterations, game.num_players), population.counts.dtype)
    curves = JpsroCurves(numbers[:, 0], numbers[:, 0], numbers, numbers.astype(jnp.int32))
    progress = _Progress(population, curves, jnp.int32(0))
    while True:
        progress = _grow(game, progress, key, least_gap, solver, coarse)
        if int(progress.iteration) == num_iterations:
            break
        progress = progress._replace(population=enlarge(progress.population, 2 * progress.population.counts.shape[1]))
    population = progress.population
    joint = jax.jit(solver)(meta_payoffs(game, population), population.counts, key)
    return JpsroResult(progress.curves, population, joint)


class _Progress(NamedTuple):
    population: Population
    curves: JpsroCurves
    iteration: Array


@partial(jax.jit, static_argnames=("solver", "coarse"))
def _grow(
    game: Game, progress: _Progress, key: Array, least_gap: Array, solver: JointSolver, coarse: bool
) -> _Progress:
    """Iterates until the end, or until there is no room for more policies."""
    num_iterations = len(progress.curves.cce_gap)

    def has_room(progress: _Progress) -> Array:
        population = progress.population
        room = jnp.max(population.num_policies) < population.counts.shape[1]
        return room & (progress.iteration < num_iterations)

    def step(progress: _Progress) -> _Progress:
        population, joint_key = progress.population, jax.random.fold_in(key, progress.iteration)
        population, gaps = _iterate(game, population, joint_key, solver, coarse)
        done = (gaps.cce_gap if coarse else gaps.ce_gap) <= least_gap
        rows = jnp.arange(num_iterations)
        rows = jnp.where(done, rows >= progress.iteration, rows == progress.iteration)
        curves = jax.tree.map(
            lambda curve, now: jnp.where(rows.reshape((-1,) + (1,) * now.ndim), now[None], curve), progress.curves, gaps
        )
        return _Progress(population, curves, jnp.where(done, num_iterations, progress.iteration + 1))

    return jax.lax.while_loop(has_room, step, progress)


def joint_gaps(game: Game, population: Population, joint: Array) -> tuple[Array, Array]:
    """Computes the CCE gap and the CE gap, in the game, of a joint distribution over a population.

    Args:
        game: compiled game.
        population: population with K policies of every player.
        joint: `[K, ..., K]`, from any solver: the one used in training, or `correlated.max_welfare` for evaluation.

    Returns:
        Sums of the players' gains from the best deviations before the draw, and from the recommendations.
    """
    payoffs = meta_payoffs(game, population)
    return _sum_gaps([_deviate(game, population, payoffs[p], p, joint) for p in range(game.num_players)])


class _Deviation(NamedTuple):
    """A player's best responses with their gains: before the draw, and to each of K recommendations.

    The latter's gains are multiplied by the probability of the recommendation.
    """

    policy: Array
    gain: Array
    policies: Array
    gains: Array


def _iterate(
    game: Game, population: Population, key: Array, solver: JointSolver, coarse: bool
) -> tuple[Population, JpsroCurves]:
    """Solves the meta-game and adds a policy per player; also returns the curves of the solution."""
    payoffs = meta_payoffs(game, population)
    joint = solver(payoffs, population.counts, key)
    grown, deviations = population, []
    for player in range(game.num_players):
        deviation = _deviate(game, population, payoffs[player], player, joint)
        chosen = deviation.policy if coarse else _largest_gap(game, population, player, deviation)
        grown = add_policy(game, grown, player, chosen)
        deviations.append(deviation)
    cce_gap, ce_gap = _sum_gaps(deviations)
    return grown, JpsroCurves(cce_gap, ce_gap, joint_value(payoffs, joint), population.num_policies)


def _deviate(game: Game, population: Population, payoff: Array, player: int, joint: Array) -> _Deviation:
    reach = reach_of_others(game, population, player, joint)
    before = respond(game, player, jnp.sum(reach, axis=0))
    after = jax.vmap(partial(respond, game, player))(reach)
    mass, earned = (
        jnp.sum(jnp.moveaxis(v, player, 0).reshape(v.shape[player], -1), axis=1) for v in (joint, payoff * joint)
    )
    gains = jnp.where(mass > _LEAST, jnp.maximum(after.value - earned, 0.0), 0.0)
    return _Deviation(before.policy, jnp.maximum(before.value - jnp.sum(earned), 0.0), after.policy, gains)


def _sum_gaps(deviations: Sequence[_Deviation]) -> tuple[Array, Array]:
    return sum(deviation.gain for deviation in deviations), sum(jnp.sum(deviation.gains) for deviation in deviations)  # type: ignore[return-value]


def _largest_gap(game: Game, population: Population, player: int, deviation: _Deviation) -> Array:
    """Returns the response with the largest gain, among new ones that gain, or among all if there are none."""
    known = jax.vmap(lambda policy: jnp.any(is_known(game, population, player, policy)))(deviation.policies)
    new = jnp.where(known, -1.0, deviation.gains)
    return deviation.policies[jnp.where(jnp.max(new) > _LEAST, jnp.argmax(new), jnp.argmax(deviation.gains))]
