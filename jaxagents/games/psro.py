"""Policy-space response oracles: populations that grow by best responses to a meta-solver's strategies."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax

from jaxagents.games.best_response import best_response, nash_conv
from jaxagents.games.extensive_form import Game
from jaxagents.games.populations import Population, add_policy, meta_payoffs, mixed_profile, start_population
from jaxagents.games.strategies import uniform_profile
from jaxagents.ops.checks import check_counts
from jaxagents.types import Array

MetaSolver = Callable[[Array, Array], Array]
"""`(payoffs [n, K, ..., K], counts [n, K]) -> strategies [n, K]`, see `games.meta_solvers`."""


class PsroResult(NamedTuple):
    """The result of PSRO.

    Attributes:
        nash_conv: `[T]`, of the evaluated strategies before every iteration, beginning with the initial policies.
        num_policies: int32 `[T, n]`, numbers of different policies of every player at that time.
        population: population after the last iteration.
        profile: policies `[I, A]` of every player, equivalent to the evaluated strategies of the last iteration.
    """

    nash_conv: Array
    num_policies: Array
    population: Population
    profile: tuple[Array, ...]


def psro(
    game: Game,
    solver: MetaSolver,
    *,
    evaluation_solver: MetaSolver | None = None,
    num_iterations: int = 100,
) -> PsroResult:
    """Repeatedly adds every player's best response to the others' mixture of policies, in one compiled program.

    Args:
        game: compiled game.
        solver: solver of the mixtures to which players respond; `meta_solvers.nash` gives the double oracle, `uniform`
            gives fictitious play.
        evaluation_solver: solver of the mixtures whose NashConv is reported; None: the same solver.
        num_iterations: T, number of iterations; the initial policies are uniform.

    Returns:
        The result, in the precision of the caller: `with jax.enable_x64():` for float64.

    Raises:
        ValueError: there are no iterations.

    References:
        Lanctot et al. (2017), "A Unified Game-Theoretic Approach to Multiagent Reinforcement Learning", algorithm 1.
    """
    check_counts(num_iterations=num_iterations)
    population = start_population(game, uniform_profile(game), num_iterations + 1)
    return _run(game, population, solver, evaluation_solver or solver, num_iterations)


@partial(jax.jit, static_argnames=("solver", "evaluation_solver", "num_iterations"))
def _run(
    game: Game, population: Population, solver: MetaSolver, evaluation_solver: MetaSolver, num_iterations: int
) -> PsroResult:
    def iterate(population: Population, _: None) -> tuple[Population, tuple[Array, Array, tuple[Array, ...]]]:
        payoffs = meta_payoffs(game, population)
        strategies = solver(payoffs, population.counts)
        same = evaluation_solver is solver
        evaluated = strategies if same else evaluation_solver(payoffs, population.counts)
        profile = mixed_profile(game, population, strategies)
        evaluated_profile = profile if same else mixed_profile(game, population, evaluated)
        grown = population
        for player in range(game.num_players):
            grown = add_policy(game, grown, player, best_response(game, player, profile).policy)
        return grown, (nash_conv(game, evaluated_profile), population.num_policies, evaluated_profile)

    population, (curve, sizes, profiles) = jax.lax.scan(iterate, population, None, length=num_iterations)
    return PsroResult(curve, sizes, population, jax.tree.map(lambda policies: policies[-1], profiles))
