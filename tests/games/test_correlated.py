"""Correlated equilibria against numbers worked out by hand, HiGHS and a general non-linear solver."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from jaxagents.games.correlated import (
    cce_gaps,
    ce_gaps,
    coarse_gains,
    max_gini,
    product,
    swap_gains,
)
from jaxagents.games.meta_solvers import uniform
from jaxagents.games.normal_form import joint_value, pad_payoffs, product_of

CHICKEN = np.stack([np.array([[0.0, 7.0], [2.0, 6.0]]), np.array([[0.0, 2.0], [7.0, 6.0]])])
GAPS = {True: cce_gaps, False: ce_gaps}
FLATTEST = {coarse: jax.jit(partial(max_gini, coarse=coarse, tolerance=1e-9)) for coarse in (True, False)}


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def rows_of(payoffs, coarse):
    """Returns `A` of `A x <= 0`, written out entry by entry."""
    rows, numbers = [], payoffs.shape[1:]
    for player in range(payoffs.shape[0]):
        for recommended in [None] if coarse else range(numbers[player]):
            for action in range(numbers[player]):
                row = np.zeros(numbers)
                for joint in np.ndindex(*numbers):
                    if recommended in (None, joint[player]):
                        other = (*joint[:player], action, *joint[player + 1 :])
                        row[joint] = payoffs[(player, *other)] - payoffs[(player, *joint)]
                rows.append(row.reshape(-1))
    return np.array(rows)


@pytest.fixture(scope="module")
def games():
    rng = np.random.default_rng(4)
    return [CHICKEN, rng.normal(size=(2, 3, 3)), rng.normal(size=(3, 2, 2, 2)), rng.normal(size=(3, 3, 3, 3))]


def test_gaps_of_chicken_by_hand():
    # On a recommended crash (0, 0) both gain 2, on (1, 1) both gain 1; before the draw swerving loses for sure.
    joint = jnp.array([[0.25, 0.0], [0.0, 0.75]])
    np.testing.assert_allclose(swap_gains(CHICKEN, joint)[0], [[0.0, 0.25 * 2.0], [0.75 * 1.0, 0.0]])
    np.testing.assert_allclose(ce_gaps(CHICKEN, joint), [1.25, 1.25])
    np.testing.assert_allclose(coarse_gains(CHICKEN, joint), [[0.75, 0.5], [0.75, 0.5]])
    np.testing.assert_allclose(cce_gaps(CHICKEN, joint), [0.75, 0.75])


@pytest.mark.parametrize("coarse", [True, False])
def test_gains_are_the_rows_written_out(games, coarse):
    for payoffs in games:
        joint = np.random.default_rng(0).dirichlet(np.ones(payoffs[0].size)).reshape(payoffs.shape[1:])
        actual = (coarse_gains if coarse else swap_gains)(jnp.asarray(payoffs), jnp.asarray(joint))
        np.testing.assert_allclose(actual.reshape(-1), rows_of(payoffs, coarse) @ joint.reshape(-1), atol=1e-12)


@pytest.mark.parametrize("coarse", [True, False])
def test_flattest_equilibrium_of_chicken(coarse):
    # With two actions each, a deviation before the draw is one from a recommendation.
    joint = FLATTEST[coarse](jnp.asarray(CHICKEN))
    np.testing.assert_allclose(joint, np.array([[5, 10], [10, 9]]) / 34, atol=1e-8)


@pytest.mark.parametrize(("number", "coarse"), [(1, False), (2, True)])
def test_flattest_equilibria_agree_with_a_general_solver(games, number, coarse):
    rows = rows_of(games[number], coarse)
    constraints = [{"type": "eq", "fun": lambda x: np.sum(x) - 1.0}, {"type": "ineq", "fun": lambda x: -rows @ x}]
    start = np.full(rows.shape[1], 1 / rows.shape[1])
    options = {"bounds": [(0, 1)] * start.size, "constraints": constraints, "options": {"ftol": 1e-14}}
    expected = minimize(lambda x: x @ x, start, method="SLSQP", **options)
    assert expected.success
    actual = FLATTEST[coarse](jnp.asarray(games[number]))
    np.testing.assert_allclose(actual.reshape(-1), expected.x, atol=1e-6)


def test_counts_are_copies():
    payoffs = np.random.default_rng(5).normal(size=(2, 3, 2))
    copies, copy_counts = pad_payoffs(np.repeat(np.repeat(payoffs, [2, 1, 1], axis=1), [1, 3], axis=2))
    padded, counts = np.zeros_like(copies), np.array([[2.0, 1.0, 1.0, 0.0], [1.0, 3.0, 0.0, 0.0]])
    padded[:, :3, :2] = payoffs
    actual = FLATTEST[False](jnp.asarray(padded), jnp.asarray(counts))
    expected = np.asarray(FLATTEST[False](jnp.asarray(copies), jnp.asarray(copy_counts)))
    expected = np.add.reduceat(np.add.reduceat(expected, [0, 2, 3], axis=0), [0, 1], axis=1)
    np.testing.assert_allclose(actual[:3, :2], expected, atol=1e-6)
    np.testing.assert_allclose(jnp.sum(actual[:3, :2]), 1.0)


@pytest.mark.parametrize("coarse", [True, False])
def test_the_flattest_equilibrium_of_a_zero_sum_game_has_its_value(coarse):
    # Both play the first action with 1/3, for 2/3.
    payoff = np.array([[2.0, 0.0], [0.0, 1.0]])
    payoffs = jnp.asarray(np.stack([payoff, -payoff]))
    joint = FLATTEST[coarse](payoffs)
    assert float(jnp.sum(GAPS[coarse](payoffs, joint))) < 1e-6
    np.testing.assert_allclose(joint_value(payoffs, joint), [2 / 3, -2 / 3], atol=1e-6)


def test_epsilon_makes_it_flatter():
    solver = jax.jit(lambda epsilon: max_gini(jnp.asarray(CHICKEN), coarse=False, epsilon=epsilon))
    impurity = [1 - float(jnp.sum(solver(epsilon) ** 2)) for epsilon in (0.0, 0.5, 1.0)]
    assert impurity[0] < impurity[1] < impurity[2]
    # Uniform play gains 0.5 per recommendation at most, all of which epsilon = 1 allows.
    np.testing.assert_allclose(impurity[2], 0.75, atol=1e-6)


def test_product_of_uniform_strategies():
    np.testing.assert_allclose(product(CHICKEN, jnp.ones((2, 2)), solver=uniform), product_of(jnp.full((2, 2), 0.5)))
