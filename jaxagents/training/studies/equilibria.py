"""How near to an equilibrium methods get in a number of games; nothing here is random."""

from collections.abc import Mapping

import jax
import numpy as np

from jaxagents.games.cfr import Method, solve
from jaxagents.games.extensive_form import compile_game
from jaxagents.games.trees import Definition

LEAST = 1e-16  # Exploitabilities below it are rounding errors of float64.


def solve_games(
    seed: int,
    *,
    method: Method,
    games: Mapping[str, Definition],
    num_iterations: int = 1000,
    evaluate_every: int = 50,
) -> dict[str, list[float]]:
    """Runs a method of the CFR family on every game, in float64.

    Args:
        seed: not used.
        method: see `games.cfr_methods`.
        games: by name.
        num_iterations: how many.
        evaluate_every: iterations between the points of a curve.

    Returns:
        `exploitability_<game>`: log10 of the exploitability of the average policies, after every `evaluate_every`
        iterations; `exploitability`: its mean over games; `exploitability_at_half`: that after half of the iterations.

    Raises:
        ValueError: no games, or see `cfr.solve`.
    """
    del seed
    if not games:
        raise ValueError("`games` must be at least one, got none.")
    curves = {}
    for name, definition in games.items():
        with jax.enable_x64():
            _, curve = solve(
                compile_game(definition), method, num_iterations=num_iterations, evaluate_every=evaluate_every
            )
            curves[name] = log10(np.asarray(curve))
    return describe(curves)


def log10(exploitability: np.ndarray) -> np.ndarray:
    """Computes the decimal logarithm of what is at least `LEAST`."""
    return np.log10(np.maximum(exploitability, LEAST))


def describe(curves: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    """Names the curves of games, all of the same points, and adds their mean and its middle."""
    mean = np.mean(list(curves.values()), axis=0)
    return {
        "exploitability": mean.tolist(),
        "exploitability_at_half": [float(mean[(len(mean) - 1) // 2])],
        **{f"exploitability_{name}": curve.tolist() for name, curve in curves.items()},
    }
