"""JPSRO on games whose equilibria are known, and OpenSpiel's NashConv of where it starts."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pyspiel
import pytest
from open_spiel.python.algorithms.exploitability import nash_conv as openspiel_nash_conv
from open_spiel.python.policy import UniformRandomPolicy

from jaxagents.games.best_response import nash_conv
from jaxagents.games.correlated import ce_gaps, max_gini, product
from jaxagents.games.definitions.kuhn import kuhn
from jaxagents.games.definitions.normal_form import from_payoffs
from jaxagents.games.extensive_form import compile_game
from jaxagents.games.jpsro import joint_gaps, jpsro
from jaxagents.games.meta_solvers import nash, uniform
from jaxagents.games.normal_form import product_of
from jaxagents.games.populations import meta_payoffs, mixed_profile

FLATTEST_CE = partial(max_gini, coarse=False, tolerance=1e-9)
CHICKEN = np.stack([np.array([[0.0, 7.0], [2.0, 6.0]]), np.array([[0.0, 2.0], [7.0, 6.0]])])


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@pytest.mark.slow
def test_deviations_from_recommendations_solve_chicken():
    game = compile_game(from_payoffs(CHICKEN))
    daring = [jnp.array([[1.0, 0.0]])] * 2
    result = jpsro(game, FLATTEST_CE, jax.random.key(0), coarse=False, num_iterations=4, start=daring)
    # Both dare: swerving gains 2 for each. Then the meta-game is chicken, with policies in the order of discovery.
    np.testing.assert_allclose(result.curves.ce_gap, [4.0, 0.0, 0.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(result.curves.cce_gap, [4.0, 0.0, 0.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(result.curves.value[1], [(10 * 7 + 10 * 2 + 9 * 6) / 34] * 2, atol=1e-6)
    np.testing.assert_array_equal(result.curves.num_policies, [[1, 1], [2, 2], [2, 2], [2, 2]])
    assert float(jnp.sum(ce_gaps(CHICKEN, result.joint[:2, :2]))) < 1e-6


def test_it_ends_at_the_least_gap():
    game = compile_game(from_payoffs(CHICKEN))
    daring = [jnp.array([[1.0, 0.0]])] * 2
    options = {"coarse": False, "num_iterations": 4, "least_gap": 1e-3, "start": daring}
    result = jpsro(game, FLATTEST_CE, jax.random.key(0), **options)
    np.testing.assert_allclose(result.curves.ce_gap, [4.0, 0.0, 0.0, 0.0], atol=1e-6)
    np.testing.assert_array_equal(np.sum(result.population.counts, axis=1), 3.0)  # The start and two more.


@pytest.mark.exhaustive
def test_two_player_poker_gets_its_value():
    game = compile_game(kuhn(2))
    solver = partial(max_gini, coarse=True)
    result = jpsro(game, solver, jax.random.key(0), coarse=True, num_iterations=12)
    curves = result.curves
    assert float(curves.cce_gap[-1]) < 1e-3
    # The last distribution, and the strategies that anybody would play in two-player zero-sum games.
    cce_gap, _ = jax.jit(joint_gaps)(game, result.population, result.joint)
    assert float(cce_gap) < 1e-3
    strategies = nash(meta_payoffs(game, result.population), result.population.counts)
    cce_gap, ce_gap = jax.jit(joint_gaps)(game, result.population, product_of(strategies))
    expected = nash_conv(game, mixed_profile(game, result.population, strategies))
    np.testing.assert_allclose([cce_gap, ce_gap], [expected] * 2, atol=1e-7)
    np.testing.assert_allclose(curves.value[-1], [-1 / 18, 1 / 18], atol=1e-3)
    assert bool(jnp.all(curves.ce_gap >= curves.cce_gap - 1e-9))


def test_three_player_poker_starts_where_openspiel_says():
    spiel = pyspiel.load_game("kuhn_poker", {"players": 3})
    expected = openspiel_nash_conv(spiel, UniformRandomPolicy(spiel))
    game, solver = compile_game(kuhn(3)), partial(product, solver=uniform)
    curves = jpsro(game, solver, jax.random.key(0), coarse=True, num_iterations=2).curves
    np.testing.assert_allclose(curves.cce_gap[0], expected, atol=1e-9)
    np.testing.assert_allclose(curves.ce_gap[0], expected, atol=1e-9)
    np.testing.assert_allclose(jnp.sum(curves.value, axis=1), 0.0, atol=1e-9)


def test_populations_grow_beyond_their_first_room():
    """In a game of 20 numbers where one more than the other wins, every response is new."""
    numbers = np.arange(20)
    wins = (numbers[:, None] == numbers[None, :] + 1).astype(float)
    game = compile_game(from_payoffs(np.stack([wins, wins.T])))
    zero = [jnp.eye(20)[:1]] * 2
    curves = jpsro(game, last_found, jax.random.key(0), coarse=True, num_iterations=18, start=zero).curves
    np.testing.assert_array_equal(curves.num_policies[:, 0], np.arange(1, 19))
    np.testing.assert_allclose(curves.cce_gap, 2.0)


def last_found(payoffs, counts, key):
    """Puts all probability on the newest policies."""
    last = jax.nn.one_hot(jnp.sum(counts > 0, axis=1) - 1, counts.shape[1], dtype=payoffs.dtype)
    return last[0][:, None] * last[1][None, :]


def test_without_iterations_there_is_no_result():
    with pytest.raises(ValueError, match="`num_iterations` must be at least 1, got 0"):
        jpsro(compile_game(kuhn(2)), last_found, jax.random.key(0), coarse=True, num_iterations=0)
