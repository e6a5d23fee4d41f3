"""How close methods come to equilibria in a number of games; nothing here is random."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from jaxagents.games.cfr import Method, solve
from jaxagents.games.extensive_form import compile_game
from jaxagents.games.psro import MetaSolver, psro
from jaxagents.games.trees import Definition

LEAST = 1e-16  # Smaller exploitabilities are rounding errors of float64.


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
        games: games by name.
        num_iterations: number of iterations.
        evaluate_every: number of iterations between the points of a curve.

    Returns:
        `exploitability_<game>`: log10 of the exploitability of the average policies, after every `evaluate_every`
        iterations; `exploitability`: its mean over games; `exploitability_at_half`: that mean after half of the
        iterations.

    Raises:
        ValueError: there are no games, or see `cfr.solve`.
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


def grow_populations(
    seed: int,
    *,
    solver: MetaSolver,
    games: Mapping[str, Definition],
    played: Sequence[str],
    evaluation_solver: MetaSolver | None = None,
    num_iterations: int = 50,
    evaluate_every: int = 5,
) -> dict[str, list[float]]:
    """Runs PSRO on some of the games, in float64.

    Args:
        seed: not used.
        solver: solver of the mixtures to which players respond, see `games.meta_solvers`.
        games: games by name.
        played: names of the games that are played.
        evaluation_solver: solver of the mixtures that are evaluated; None: the same solver.
        num_iterations: number of iterations.
        evaluate_every: number of iterations between the points of a curve.

    Returns:
        See `solve_games`, for the evaluated mixtures; means are over the games that are played, and the others are NaN:
        meta-games with more than two players grow with a power of the number of iterations.

    Raises:
        ValueError: a game is unknown, there are no games, or the number of iterations is not a multiple of
            `evaluate_every`.
    """
    del seed
    unknown = sorted(set(played) - set(games))
    if unknown or not played:
        raise ValueError(f"`played` must be names of {', '.join(games)}, got {list(played)}.")
    if evaluate_every < 1 or num_iterations % evaluate_every:
        raise ValueError(
            f"`num_iterations` must be a multiple of `evaluate_every`, got {num_iterations} and {evaluate_every}."
        )
    curves = {name: np.full(num_iterations // evaluate_every, np.nan) for name in games}
    for name in played:
        with jax.enable_x64():
            game = compile_game(games[name])
            result = psro(game, solver, evaluation_solver=evaluation_solver, num_iterations=num_iterations)
            curve = np.asarray(result.nash_conv) / game.num_players
        curves[name] = log10(curve[evaluate_every - 1 :: evaluate_every])
    return describe(curves)


def log10(exploitability: np.ndarray) -> np.ndarray:
    """Computes the decimal logarithm, with smaller values replaced by `LEAST`."""
    return np.log10(np.maximum(exploitability, LEAST))


def describe(curves: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    """Names the curves of games, all with the same points, and adds their mean (without NaN) and its middle point."""
    mean = np.nanmean(list(curves.values()), axis=0)
    return {
        "exploitability": mean.tolist(),
        "exploitability_at_half": [float(mean[(len(mean) - 1) // 2])],
        **{f"exploitability_{name}": curve.tolist() for name, curve in curves.items()},
    }
