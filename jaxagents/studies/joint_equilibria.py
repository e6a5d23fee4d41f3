"""JPSRO on small games: how large the gaps are that a meta-solver leaves, and what its distributions are worth."""

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
        seed: of solvers that draw.
        solver: of meta-games, see `games.correlated`.
        coarse: True: JPSRO(CCE); False: JPSRO(CE).
        games: by name.
        num_iterations: at most.
        least_gap: ends a game's run early; its last numbers stand for the rest.

    Returns:
        Of every game over iterations: `cce_gap_<game>` and `ce_gap_<game>`, `value_<game>` of the first player and
        `welfare_<game>` of all, `policies_<game>`, different ones of the player who has most. Over games,
        `least_cce_gap` and `least_ce_gap`: the smallest gap so far, of the game where it is largest, and
        `least_cce_gap_of_any_game`, of the game where it is smallest.

    Raises:
        ValueError: no games, or see `jpsro`.
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
