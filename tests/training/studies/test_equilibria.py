"""Equilibria of games: what the study reports."""

import numpy as np
import pytest

from jaxagents.games import cfr_methods
from jaxagents.games.definitions.kuhn import kuhn
from jaxagents.games.definitions.normal_form import from_payoffs
from jaxagents.training.studies.equilibria import describe, log10, solve_games


def test_curves_are_logarithms_and_their_means():
    np.testing.assert_allclose(log10(np.array([0.01, 1e-30, -1e-18])), [-2.0, -16.0, -16.0])
    told = describe({"a": np.array([-1.0, -2.0, -3.0, -4.0]), "b": np.array([-3.0, -4.0, -5.0, -6.0])})
    assert told["exploitability"] == [-2.0, -3.0, -4.0, -5.0] and told["exploitability_at_half"] == [-3.0]
    assert told["exploitability_b"] == [-3.0, -4.0, -5.0, -6.0]


def test_methods_are_measured_in_every_game():
    pennies = np.array([[1.0, -1.0], [-1.0, 1.0]])
    games = {"poker": kuhn(), "pennies": from_payoffs([pennies, -pennies])}
    settings = {"games": games, "num_iterations": 6, "evaluate_every": 2}
    told = solve_games(0, method=cfr_methods.cfr_plus(), **settings)
    assert {name: len(values) for name, values in told.items()} == {
        "exploitability": 3,
        "exploitability_at_half": 1,
        "exploitability_poker": 3,
        "exploitability_pennies": 3,
    }
    # Uniform policies are an equilibrium of matching pennies, and the first ones of every method.
    assert told["exploitability_pennies"] == [-16.0] * 3 and told["exploitability_poker"][-1] < np.log10(11 / 24)
    assert told["exploitability"][-1] == pytest.approx((told["exploitability_poker"][-1] - 16.0) / 2)
    assert solve_games(7, method=cfr_methods.cfr_plus(), **settings) == told
    with pytest.raises(ValueError, match="`games` must be at least one, got none"):
        solve_games(0, method=cfr_methods.cfr_plus(), games={})
