"""JPSRO on small games: the gaps that a meta-solver leaves, and the values of its distributions."""

from collections.abc import Mapping

import jax
import numpy as np

from jaxagents.games.extensive_form import compile_game
from jaxagents.games.jpsro import JointSolver, jpsro
from jaxagents.games.trees import Definition


def solve_games(
    seed: int,
    *,
    solver: JointSolver,
    coarse: bool,
    games: Mapping[str, Definition],
    num_iterations: int = 40,
    least_gap: float = 0.0,
) -> dict[str, list[float]]:
    """Runs JPSRO on every game from uniform policies, in float64.

    Args:
        seed: seed of random solvers.
        solver: solver of meta-games, see `games.correlated`.
        coarse: whether to run JPSRO(CCE) instead of JPSRO(CE).
        games: games by name.
        num_iterations: greatest number of iterations.
        least_gap: gap at which a game's run ends early; its last numbers stand for the rest.

    Returns:
        For every game over iterations: `cce_gap_<game>` and `ce_gap_<game>`, `value_<game>` of the first player and
            `welfare_<game>` of all, and `policies_<game>`, the largest number of different policies of a player. Over
            games, `least_cce_gap` and `least_ce_gap`: the smallest gap so far, for the game with the largest one, and
            `least_cce_gap_of_any_game`, for the game with the smallest one.

    Raises:
        ValueError: there are no games, or see `jpsro`.
    """
    if not games:
        raise ValueError("`games` must be at least one, got none.")
    metrics = {}
    for name, definition in games.items():
        options = {"coarse": coarse, "num_iterations": num_iterations, "least_gap": least_gap}
        with jax.enable_x64():
            curves = jpsro(compile_game(definition), solver, jax.random.key(seed), **options).curves  # type: ignore[arg-type]
            curves = jax.tree.map(np.asarray, curves)
        metrics[f"cce_gap_{name}"] = curves.cce_gap
        metrics[f"ce_gap_{name}"] = curves.ce_gap
        metrics[f"value_{name}"] = curves.value[:, 0]
        metrics[f"welfare_{name}"] = np.sum(curves.value, axis=1)
        metrics[f"policies_{name}"] = np.max(curves.num_policies, axis=1).astype(float)
    least = {
        kind: [np.minimum.accumulate(metrics[f"{kind}_gap_{name}"])[-1] for name in games] for kind in ("cce", "ce")
    }
    metrics |= {f"least_{kind}_gap": np.asarray([max(of_games)]) for kind, of_games in least.items()}
    metrics["least_cce_gap_of_any_game"] = np.asarray([min(least["cce"])])
    return {name: values.tolist() for name, values in metrics.items()}
