"""CFR+ of OpenSpiel, in C++."""

from typing import Any

from jaxagents.benchmarks.timing import Subject
from jaxagents.games.openspiel import import_openspiel


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


def _openspiel_solver(game: str) -> Any:
    spiel = import_openspiel()
    return spiel.CFRPlusSolver(spiel.load_game(game))
