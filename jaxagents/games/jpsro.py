"""Joint policy-space response oracles: populations that grow by deviations from a correlated meta-strategy."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxagents.games.best_response import BestResponse, respond
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
from jaxagents.types import Array

JointSolver = Callable[[Array, Array, Array], Array]
"""`(payoffs [n, K, ..., K], counts [n, K], key) -> joint [K, ..., K]`, see `games.correlated`."""

_LEAST = 1e-8  # Probabilities and gains below are none.
_FIRST_CAPACITY = 16  # Of populations; it is doubled, and a program compiled, when there is no more room.


class JpsroCurves(NamedTuple):
    """What the joint distribution was before every iteration, T of them.

    Attributes:
        cce_gap: `[T]`, what players gain in sum by the best deviations in the game from before the draw.
        ce_gap: `[T]`, by the best deviations from every recommended policy; at least `cce_gap`.
        value: `[T, n]`, what the players earn.
        num_policies: int32 `[T, n]`, different policies.
    """

    cce_gap: Array
    ce_gap: Array
    value: Array
    num_policies: Array


class JpsroResult(NamedTuple):
    """What came of it.

    Attributes:
        curves: over iterations.
        population: after the last iteration.
        joint: `[K, ..., K]`, a distribution over this population.
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
    """Adds policies that deviate best from a joint distribution over those that are there, again and again.

    With CCEs in mind, every player adds a best response to the distribution of the others. With CEs in mind there is
    one per recommended policy, and of those that are new the one that gains most is added, weighted by the probability
    of the recommendation. A policy that is there already is counted once more.

    Args:
        game: the game.
        solver: of the meta-game; `partial(correlated.max_gini, coarse=True)` with `coarse=True`.
        key: for solvers that draw.
        coarse: True: JPSRO(CCE); False: JPSRO(CE).
        num_iterations: T.
        least_gap: there are no more iterations after one whose gap, of the kind that is meant, is not above this; its
            numbers then stand for those left out.
        start: first policies; None: uniform ones.

    Returns:
        What came of it, in the precision of the caller: `with jax.enable_x64():` for float64.

    Raises:
        ValueError: there is no iteration, or policies are not of the game.

    References:
        Marris et al. (2021), "Multi-Agent Training beyond Zero-Sum with Correlated Equilibrium Meta-Solvers", algorithm
        1.

    Deviation: policies are the same where they play the same, whatever they would do where their player never gets.
    Deviation: where no deviation is new, the one that gains most is counted once more, in place of a random one.
    """
    if num_iterations < 1:
        raise ValueError(f"`num_iterations` must be at least 1, got {num_iterations}.")
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
        population, told = _iterate(game, population, joint_key, solver, coarse)
        done = (told.cce_gap if coarse else told.ce_gap) <= least_gap
        rows = jnp.arange(num_iterations)
        rows = jnp.where(done, rows >= progress.iteration, rows == progress.iteration)
        curves = jax.tree.map(
            lambda curve, now: jnp.where(rows.reshape((-1,) + (1,) * now.ndim), now[None], curve), progress.curves, told
        )
        return _Progress(population, curves, jnp.where(done, num_iterations, progress.iteration + 1))

    return jax.lax.while_loop(has_room, step, progress)


def _iterate(
    game: Game, population: Population, key: Array, solver: JointSolver, coarse: bool
) -> tuple[Population, JpsroCurves]:
    """Solves the meta-game and adds a policy per player; tells what the solution was."""
    payoffs = meta_payoffs(game, population)
    joint = solver(payoffs, population.counts, key)
    value = joint_value(payoffs, joint)
    grown, gaps = population, []
    for player in range(game.num_players):
        before, told = _deviations(game, population, player, joint)
        mass, earned = (
            jnp.sum(jnp.moveaxis(v, player, 0).reshape(v.shape[player], -1), axis=1)
            for v in (joint, payoffs[player] * joint)
        )
        gains = jnp.where(mass > _LEAST, jnp.maximum(told.value - earned, 0.0), 0.0)
        gaps.append(jnp.stack([jnp.maximum(before.value - value[player], 0.0), jnp.sum(gains)]))
        policy = before.policy if coarse else told.policy[_choose(game, population, player, told, gains)]
        grown = add_policy(game, grown, player, policy)
    cce_gap, ce_gap = jnp.sum(jnp.stack(gaps), axis=0)
    return grown, JpsroCurves(cce_gap, ce_gap, value, population.num_policies)


def _deviations(game: Game, population: Population, player: int, joint: Array) -> tuple[BestResponse, BestResponse]:
    """Returns the best response from before the draw, and those `[K]` to every recommendation with the value
    times its probability."""
    reach = reach_of_others(game, population, player, joint)
    to_reach = partial(respond, game, player)
    return to_reach(jnp.sum(reach, axis=0)), jax.vmap(to_reach)(reach)


def _choose(game: Game, population: Population, player: int, told: BestResponse, gains: Array) -> Array:
    """Returns the recommendation whose best response gains most, among the new ones that gain, else among all."""
    known = jax.vmap(lambda policy: jnp.any(is_known(game, population, player, policy)))(told.policy)
    new = jnp.where(known, -1.0, gains)
    return jnp.where(jnp.max(new) > _LEAST, jnp.argmax(new), jnp.argmax(gains))
