"""Speed of solvers of games, beside OpenSpiel's in C++, and how near to an equilibrium they get."""

import time
from collections.abc import Callable
from typing import Any

import jax

from jaxagents.benchmarks.timing import Subject
from jaxagents.games import cfr_methods
from jaxagents.games.cfr import Method, solve
from jaxagents.games.extensive_form import Game
from jaxagents.games.openspiel import import_openspiel

METHODS: dict[str, Callable[[], Method]] = {
    "cfr_plus": cfr_methods.cfr_plus,
    "cfr": cfr_methods.cfr,
    "dcfr": cfr_methods.dcfr,
    "pcfr_plus": cfr_methods.pcfr_plus,
    "pdcfr_plus": cfr_methods.pdcfr_plus,
    "vad_cfr": cfr_methods.vad_cfr,
}


def cfr_subject(name: str, game: Game, method: Method, *, num_iterations: int) -> Subject:
    """Times iterations of a method in float64, with one evaluation of the average at the end.

    Args:
        name: row of the table.
        game: to solve.
        method: see `cfr_methods`.
        num_iterations: of a call.

    Returns:
        The subject; unit: iterations.
    """
    with jax.enable_x64():
        begin = time.perf_counter()
        compiled = solve.lower(game, method, num_iterations=num_iterations).compile()
        compile_seconds = time.perf_counter() - begin
        jax.block_until_ready(compiled(game, method))

    def run() -> float:
        with jax.enable_x64():
            jax.block_until_ready(compiled(game, method))
        return num_iterations

    return Subject(name=name, run=run, compile_seconds=compile_seconds)


def openspiel_subject(name: str, game: str, *, num_iterations: int) -> Subject:
    """Times iterations of OpenSpiel's `CFRPlusSolver` in C++, without evaluation; unit: iterations.

    Raises:
        ModuleNotFoundError: OpenSpiel is not installed.
    """
    solver = _openspiel_solver(game)

    def run() -> float:
        for _ in range(num_iterations):
            solver.evaluate_and_update_policy()
        return num_iterations

    return Subject(name=name, run=run, compile_seconds=0.0)


def exploitability_of_openspiel(game: str, *, num_iterations: int) -> float:
    """Computes the exploitability of the average policy of `CFRPlusSolver`, by OpenSpiel's own code."""
    spiel, solver = import_openspiel(), _openspiel_solver(game)
    for _ in range(num_iterations):
        solver.evaluate_and_update_policy()
    return spiel.exploitability(spiel.load_game(game), solver.average_policy())


def exploitability_of(game: Game, method: Method, *, num_iterations: int) -> float:
    """Computes the exploitability of the average policy of a method, in float64."""
    with jax.enable_x64():
        return float(solve(game, method, num_iterations=num_iterations)[1][-1])


def _openspiel_solver(game: str) -> Any:
    spiel = import_openspiel()
    return spiel.CFRPlusSolver(spiel.load_game(game))
