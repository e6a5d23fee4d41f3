"""Joint equilibria of games: what the study reports."""

from functools import partial

import numpy as np
import pytest

from jaxagents.games.correlated import max_gini
from jaxagents.games.definitions.normal_form import from_payoffs
from jaxagents.studies.joint_equilibria import solve_games


@pytest.mark.exhaustive
def test_meta_solvers_are_measured_in_every_game():
    prisoners = from_payoffs([np.array([[3.0, 5.0], [2.0, 4.0]]), np.array([[3.0, 1.0], [5.0, 1.0]])])
    found = solve_games(
        0, solver=partial(max_gini, coarse=True), coarse=True, games={"dilemma": prisoners}, num_iterations=3
    )
    of_games = {f"{name}_dilemma" for name in ("cce_gap", "ce_gap", "value", "welfare", "policies")}
    assert set(found) == of_games | {"least_cce_gap", "least_ce_gap", "least_cce_gap_of_any_game"}
    # Row gains 0.5 by the first action; column, uniform worth 2.5 against rows alike, 1.5 by its first.
    np.testing.assert_allclose(found["cce_gap_dilemma"], [2.0, 0.0, 0.0], atol=1e-5)
    np.testing.assert_allclose(found["value_dilemma"], [3.5, 3.0, 3.0], atol=1e-5)
    np.testing.assert_allclose(found["welfare_dilemma"], [6.0, 6.0, 6.0], atol=1e-5)
    assert found["policies_dilemma"] == [1.0, 2.0, 2.0]


def test_the_smallest_gap_so_far_counts_in_the_worst_and_in_the_best_game():
    prisoners = from_payoffs([np.array([[3.0, 5.0], [2.0, 4.0]]), np.array([[3.0, 1.0], [5.0, 1.0]])])
    constant = from_payoffs([np.zeros((2, 2)), np.zeros((2, 2))])
    games = {"dilemma": prisoners, "constant": constant}
    found = solve_games(0, solver=partial(max_gini, coarse=True), coarse=True, games=games, num_iterations=1)
    assert found["least_cce_gap"] == [pytest.approx(2.0, abs=1e-5)]
    assert found["least_cce_gap_of_any_game"] == [pytest.approx(0.0, abs=1e-9)]


def test_without_games_there_is_nothing_to_solve():
    with pytest.raises(ValueError, match="`games` must be at least one, got none"):
        solve_games(0, solver=max_gini, coarse=True, games={})
