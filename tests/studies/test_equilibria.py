"""Equilibria of games: what the study reports."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.games import cfr_methods
from jaxagents.games.definitions.kuhn import kuhn
from jaxagents.games.definitions.normal_form import from_payoffs
from jaxagents.games.meta_solvers import uniform
from jaxagents.studies.equilibria import describe, grow_populations, log10, solve_games


def test_curves_are_logarithms_and_their_means():
    np.testing.assert_allclose(log10(np.array([0.01, 1e-30, -1e-18])), [-2.0, -16.0, -16.0])
    found = describe({"a": np.array([-1.0, -2.0, -3.0, -4.0]), "b": np.array([-3.0, -4.0, -5.0, -6.0])})
    assert found["exploitability"] == [-2.0, -3.0, -4.0, -5.0] and found["exploitability_at_half"] == [-3.0]
    assert found["exploitability_b"] == [-3.0, -4.0, -5.0, -6.0]


def test_methods_are_measured_in_every_game():
    pennies = np.array([[1.0, -1.0], [-1.0, 1.0]])
    games = {"poker": kuhn(), "pennies": from_payoffs([pennies, -pennies])}
    settings = {"games": games, "num_iterations": 6, "evaluate_every": 2}
    found = solve_games(0, method=cfr_methods.cfr_plus(), **settings)
    assert {name: len(values) for name, values in found.items()} == {
        "exploitability": 3,
        "exploitability_at_half": 1,
        "exploitability_poker": 3,
        "exploitability_pennies": 3,
    }
    # Uniform policies are an equilibrium of matching pennies, and the first ones of every method.
    assert found["exploitability_pennies"] == [-16.0] * 3 and found["exploitability_poker"][-1] < np.log10(11 / 24)
    assert found["exploitability"][-1] == pytest.approx((found["exploitability_poker"][-1] - 16.0) / 2)
    assert solve_games(7, method=cfr_methods.cfr_plus(), **settings) == found
    with pytest.raises(ValueError, match="`games` must be at least one, got none"):
        solve_games(0, method=cfr_methods.cfr_plus(), games={})


def _first_policy(payoffs, counts):
    return jnp.zeros_like(counts).at[:, 0].set(1.0)


@pytest.mark.slow
def test_populations_are_measured_in_the_games_that_are_played():
    rock_paper_scissors = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
    games = {"poker": kuhn(3), "fists": from_payoffs([rock_paper_scissors, -rock_paper_scissors])}
    settings = {"games": games, "num_iterations": 4, "evaluate_every": 2}
    found = grow_populations(0, solver=uniform, played=["fists"], **settings)
    # Uniform first, then rock, the first of equally good answers: paper earns 2/3 - 1/6 from (U + R) / 2. Against
    # (U + R + P) / 3 it is best again, and scissors earn 7/12 - 1/3 from (U + R + 2 P) / 4.
    np.testing.assert_allclose(found["exploitability_fists"], np.log10([1 / 2, 1 / 4]), rtol=1e-6)
    assert np.isnan(found["exploitability_poker"]).all() and found["exploitability"] == found["exploitability_fists"]
    found = grow_populations(0, solver=uniform, evaluation_solver=_first_policy, played=["fists"], **settings)
    assert max(found["exploitability_fists"]) < -15.0  # The first one is uniform, which is the equilibrium.
    with pytest.raises(ValueError, match=r"`played` must be names of poker, fists, got \['chess'\]"):
        grow_populations(0, solver=uniform, played=["chess"], **settings)
    with pytest.raises(ValueError, match="`num_iterations` must be a multiple of `evaluate_every`, got 4 and 3"):
        grow_populations(0, solver=uniform, played=["fists"], **settings | {"evaluate_every": 3})
