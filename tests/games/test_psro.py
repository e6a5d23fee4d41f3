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

MATRIX = np.array([[2.0, -1.0], [-1.0, 1.0]])


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
    """Both play what is best against the average so far, which is uniform at first."""
    game = compile_game(from_payoffs(np.stack([MATRIX, -MATRIX])))
    result = psro(game, uniform, num_iterations=3)
    # Averages of rows and columns: (1/2, 1/2) both, where the first row earns 1/2 and the second column loses 0; (3/4,
    # 1/4) and (1/4, 3/4), where the second ones earn 1/2 each; (1/2, 1/2) and (1/6, 5/6), where they earn 2/3 and 0.
    np.testing.assert_allclose(result.nash_conv, [0.5, 1.0, 2 / 3], atol=1e-6)
    np.testing.assert_array_equal(result.num_policies, [[1, 1], [2, 2], [3, 2]])
    np.testing.assert_array_equal(result.population.counts, [[1, 1, 2, 0], [1, 3, 0, 0]])


def test_shor_approaches_the_equilibrium():
    game = compile_game(kuhn(2))
    result = psro(game, shor_training, evaluation_solver=shor_evaluation, num_iterations=12)
    assert float(result.nash_conv[-1]) < 0.05


def test_without_iterations_there_is_no_result():
    with pytest.raises(ValueError, match="`num_iterations` must be at least 1, got 0"):
        psro(compile_game(kuhn(2)), uniform, num_iterations=0)
