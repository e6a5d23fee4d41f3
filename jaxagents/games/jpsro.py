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
_FIRST_CAPACITY = 8


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
        joint: `[K, ..., K]`, a last distribution, over this population.
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
    capacity = min(_FIRST_CAPACITY, num_iterations + 1)
    population = start_population(game, uniform_profile(game) if start is None else start, capacity)
    parts, done = [], 0
    while done < num_iterations:  # Meta-games grow with the cube of policies: a program per doubling.
        steps = min(capacity - 1, num_iterations) - done
        keys = jax.random.split(jax.random.fold_in(key, done), steps)
        population, part = _iterate(game, population, keys, solver, coarse)
        parts.append(part)
        done += steps
        capacity = min(2 * capacity, num_iterations + 1)
        population = enlarge(population, capacity) if done < num_iterations else population
    joint = jax.jit(solver)(meta_payoffs(game, population), population.counts, key)
    return JpsroResult(jax.tree.map(lambda *curves: jnp.concatenate(curves), *parts), population, joint)


@partial(jax.jit, static_argnames=("solver", "coarse"))
def _iterate(
    game: Game, population: Population, keys: Array, solver: JointSolver, coarse: bool
) -> tuple[Population, JpsroCurves]:
    def iterate(population: Population, key: Array) -> tuple[Population, JpsroCurves]:
        payoffs = meta_payoffs(game, population)
        joint = solver(payoffs, population.counts, key)
        value = joint_value(payoffs, joint)
        grown, gaps = population, []
        for player in range(game.num_players):
            before, told = _deviations(game, population, player, joint)
            gains = told.value - jnp.sum(
                jnp.moveaxis(payoffs[player] * joint, player, 0).reshape(len(told.value), -1), 1
            )
            recommended = jnp.sum(jnp.moveaxis(joint, player, 0).reshape(len(gains), -1), axis=1) > _LEAST
            gains = jnp.where(recommended, jnp.maximum(gains, 0.0), -1.0)
            gaps.append(jnp.stack([jnp.maximum(before.value - value[player], 0.0), jnp.sum(jnp.maximum(gains, 0.0))]))
            policy = before.policy if coarse else told.policy[_choose(game, population, player, told, gains)]
            grown = add_policy(game, grown, player, policy)
        cce_gap, ce_gap = jnp.sum(jnp.stack(gaps), axis=0)
        return grown, JpsroCurves(cce_gap, ce_gap, value, population.num_policies)

    return jax.lax.scan(iterate, population, keys)


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
