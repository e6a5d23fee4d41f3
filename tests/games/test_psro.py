"""PSRO on games that are known: it finds their equilibria, and tells how far it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.games.best_response import nash_conv
from jaxagents.games.definitions.kuhn import kuhn
from jaxagents.games.definitions.normal_form import from_payoffs
from jaxagents.games.extensive_form import compile_game
from jaxagents.games.meta_solvers import nash, shor_evaluation, shor_training, uniform
from jaxagents.games.psro import psro
from jaxagents.games.strategies import expected_values

ROCK_PAPER_SCISSORS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])


def test_double_oracle_solves_kuhn_poker():
    game = compile_game(kuhn(2))
    with jax.enable_x64(True):
        result = psro(game, nash, num_iterations=12)
        # Uniform play of all cards: each player gains 11/12 in sum, as in OpenSpiel.
        np.testing.assert_allclose(result.nash_conv[0], 11 / 12)
        assert float(result.nash_conv[-1]) < 1e-8
        np.testing.assert_allclose(nash_conv(game, result.profile), result.nash_conv[-1], atol=1e-12)
        np.testing.assert_allclose(expected_values(game, result.profile), [-1 / 18, 1 / 18], atol=1e-8)
        assert int(jnp.max(result.num_policies)) < 12  # Others were found again.
        np.testing.assert_array_equal(jnp.sum(result.population.counts, axis=1), 13.0)


def test_uniform_psro_is_fictitious_play():
    """In rock, paper, scissors from rock on, both play what is best against the average so far."""
    game = compile_game(from_payoffs(np.stack([ROCK_PAPER_SCISSORS, -ROCK_PAPER_SCISSORS])))
    rock = [jnp.array([[1.0, 0.0, 0.0]])] * 2
    result = psro(game, uniform, num_iterations=3, start=rock)
    # Averages: R; (R + P) / 2, against which paper earns 1/2; (R + 2 P) / 3.
    np.testing.assert_allclose(result.nash_conv, [2.0, 1.0, 2 / 3], atol=1e-6)
    np.testing.assert_array_equal(result.num_policies, [[1, 1], [2, 2], [2, 2]])
    # Against (R + 2 P) / 3 paper and scissors earn 1/3: the first of the equal ones is taken.
    np.testing.assert_array_equal(result.population.counts, [[1, 3, 0, 0]] * 2)


def test_shor_approaches_the_equilibrium():
    game = compile_game(kuhn(2))
    result = psro(game, shor_training, evaluation_solver=shor_evaluation, num_iterations=12)
    assert float(result.nash_conv[-1]) < 0.05


def test_without_iterations_there_is_no_result():
    with pytest.raises(ValueError, match="`num_iterations` must be at least 1, got 0"):
        psro(compile_game(kuhn(2)), uniform, num_iterations=0)
