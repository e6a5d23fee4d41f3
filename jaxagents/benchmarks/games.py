"""Speed of solvers of games, and how close to an equilibrium they get."""

from collections.abc import Callable

import jax

from jaxagents.benchmarks.timing import Subject, timed
from jaxagents.games import cfr_methods
from jaxagents.games.cfr import Method, solve
from jaxagents.games.extensive_form import Game

METHODS: dict[str, Callable[[], Method]] = {
    "cfr_plus": cfr_methods.cfr_plus,
    "cfr": cfr_methods.cfr,
    "dcfr": cfr_methods.dcfr,
    "pcfr_plus": cfr_methods.pcfr_plus,
    "pdcfr_plus": cfr_methods.pdcfr_plus,
    "vad_cfr": cfr_methods.vad_cfr,
}


def cfr_subject(name: str, game: Game, method: Method, *, num_iterations: int) -> Subject:
    """Times iterations of a method in float64, with one evaluation of the average policy at the end.

    Args:
        name: row of the table.
        game: game to solve.
        method: see `cfr_methods`.
        num_iterations: number of iterations per call.

    Returns:
        The subject; unit: iterations.
    """
    with jax.enable_x64():
        compiled, compile_seconds = timed(lambda: solve.lower(game, method, num_iterations=num_iterations).compile())
        jax.block_until_ready(compiled(game, method))

    def run() -> float:
        with jax.enable_x64():
            jax.block_until_ready(compiled(game, method))
        return num_iterations

    return Subject(name=name, run=run, compile_seconds=compile_seconds)


def exploitability_of(game: Game, method: Method, *, num_iterations: int) -> float:
    """Computes the exploitability of the average policy of a method, in float64."""
    with jax.enable_x64():
        return float(solve(game, method, num_iterations=num_iterations)[1][-1])
