"""Meta-solvers against numbers worked out by hand, OpenSpiel, and games with their actions written twice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from open_spiel.python.algorithms.projected_replicator_dynamics import projected_replicator_dynamics
from open_spiel.python.algorithms.regret_matching import regret_matching as openspiel_regret_matching
from scipy.optimize import linprog

from jaxagents.games import meta_solvers
from jaxagents.games.interior_point import solve_linear_program
from jaxagents.games.meta_solvers import (
    nash,
    projected_replicator,
    regret_matching,
    shor_evaluation,
    shor_training,
    uniform,
)
from jaxagents.games.normal_form import nash_conv, pad_payoffs

SOLVERS = [uniform, nash, projected_replicator, regret_matching, shor_training, shor_evaluation]
PENNIES = np.array([[2.0, 0.0], [0.0, 1.0]], np.float32)  # Of the row player, who loses what the other wins.
PENNIES = np.stack([PENNIES, -PENNIES])


@pytest.fixture(scope="module")
def zero_sum():
    payoff = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    return np.stack([payoff, -payoff])


def test_nash_by_hand():
    # Both play the first action with 1/3: it is worth 2 * 1/3 = 1 * 2/3.
    np.testing.assert_allclose(jax.jit(nash)(PENNIES), [[1 / 3, 2 / 3], [1 / 3, 2 / 3]], atol=1e-4)


def test_nash_is_exact_in_double_precision():
    with jax.enable_x64(True):
        payoff = np.random.default_rng(0).normal(size=(12, 7))
        payoffs, counts = pad_payoffs(np.stack([payoff, -payoff]))
        strategies = jax.jit(nash)(payoffs, counts)
        assert float(nash_conv(payoffs, strategies, counts)) < 1e-8
        np.testing.assert_allclose(np.sum(strategies, axis=1), 1.0)
        np.testing.assert_array_equal(strategies[1, 7:], 0.0)


def test_linear_programs_agree_with_highs():
    with jax.enable_x64(True):
        rng = np.random.default_rng(2)
        rows, limits, cost = rng.uniform(size=(5, 9)), rng.uniform(1, 2, size=5), -rng.uniform(size=9)
        x, multipliers = jax.jit(solve_linear_program)(cost, rows, limits)
        expected = linprog(cost, A_ub=rows, b_ub=limits)
        np.testing.assert_allclose(x, expected.x, atol=1e-7)
        np.testing.assert_allclose(multipliers, -expected.ineqlin.marginals, atol=1e-7)


def test_nash_needs_two_players():
    with pytest.raises(ValueError, match="must be of two players, got 3; try projected_replicator"):
        nash(jnp.zeros((3, 2, 2, 2)))


def test_one_step_of_shor_by_hand():
    options = {"optimism": 0.5, "mixing": 0.2, "temperature": 0.5, "diversity": 0.1, "num_iterations": 1}
    _, strategies = meta_solvers._shor(jnp.asarray(PENNIES), jnp.ones((2, 2)), **options)
    # Row: u = (1, 0.5), gains 1.5 (0.25, -0.25) + 0.05, so all on the first, and softmax(2, 1) = (0.7311, 0.2689).
    # Column sees that row: u = -(1.8924, 0.0538), all weight on the second, and softmax(2 u) = (0.0247, 0.9753).
    expected = [[0.8 + 0.2 * 0.7310586, 0.2 * 0.2689414], [0.2 * 0.0246676, 0.8 + 0.2 * 0.9753324]]
    np.testing.assert_allclose(strategies, expected, atol=2e-5)


def test_the_second_step_of_shor_takes_back_part_of_the_first():
    options = {"optimism": 0.5, "mixing": 0.0, "temperature": 1.0, "diversity": 0.0}
    payoffs = jnp.array([[[3.0, 3.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]])
    # Row's d is (1, -1) in both steps: gains 1.5 (1, -1), then (1, -1), each divided by its largest: C = (2, 0).
    average, last = meta_solvers._shor(payoffs, jnp.ones((2, 2)), num_iterations=2, **options)
    np.testing.assert_allclose(last, [[1.0, 0.0], [0.5, 0.5]])
    np.testing.assert_allclose(average, last)


def test_replicator_agrees_with_openspiel(zero_sum):
    options = {"prd_iterations": 200, "prd_dt": 0.1, "prd_gamma": 0.05}
    expected = projected_replicator_dynamics(list(zero_sum), **options)
    payoffs, counts = pad_payoffs(zero_sum)
    actual = projected_replicator(payoffs, counts, num_iterations=200, step_size=0.1, floor=0.05)
    np.testing.assert_allclose(actual[0], expected[0], atol=1e-5)
    np.testing.assert_allclose(actual[1, :3], expected[1], atol=1e-5)


def test_regret_matching_agrees_with_openspiel(zero_sum):
    expected = openspiel_regret_matching(list(zero_sum), iterations=300, gamma=0.0)
    actual = regret_matching(*pad_payoffs(zero_sum), num_iterations=300)
    np.testing.assert_allclose(actual[0], expected[0], atol=1e-4)
    np.testing.assert_allclose(actual[1, :3], expected[1], atol=1e-4)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_count_is_a_number_of_copies(solver, zero_sum):
    """An action of count 3 is played as often as three equal actions, and padding is not played."""
    copies, copy_counts = pad_payoffs(np.repeat(np.repeat(zero_sum, [1, 3, 1, 1], axis=1), [2, 1, 1], axis=2))
    payoffs, counts = np.zeros_like(copies), np.array([[1, 3, 1, 1, 0, 0], [2, 1, 1, 0, 0, 0]])
    payoffs[:, :4, :3] = zero_sum
    with jax.enable_x64(True):
        compiled = jax.jit(solver)
        actual = compiled(jnp.asarray(payoffs, float), jnp.asarray(counts, float))
        expected = compiled(jnp.asarray(copies, float), jnp.asarray(copy_counts, float))
    np.testing.assert_allclose(actual[0, :4], np.add.reduceat(expected[0], [0, 1, 4, 5]), atol=1e-5)
    np.testing.assert_allclose(actual[1, :3], np.add.reduceat(expected[1, :4], [0, 2, 3]), atol=1e-5)
    np.testing.assert_array_equal(actual[1, 3:], 0.0)


@pytest.mark.parametrize("solver", [nash, projected_replicator, shor_training])
def test_a_batch_of_games_is_solved_like_one_at_a_time(solver, zero_sum):
    games = jnp.stack([pad_payoffs(zero_sum)[0], pad_payoffs(-zero_sum[::-1] * 2.0)[0]])
    batch, compiled = jax.jit(jax.vmap(solver))(games), jax.jit(solver)
    for game, strategies in zip(games, batch):
        np.testing.assert_allclose(strategies, compiled(game), atol=2e-3)


def test_solvers_of_three_players_find_a_dominant_action():
    payoffs = np.zeros((3, 2, 2, 2), np.float32)
    for player in range(3):
        payoffs[player] = np.moveaxis(np.broadcast_to([0.0, 1.0], (2, 2, 2)), -1, player)
    for solver in (regret_matching, shor_evaluation):
        assert float(nash_conv(payoffs, jax.jit(solver)(payoffs))) < 0.1


@pytest.mark.parametrize(
    ("num_policies", "options"),
    [
        (2, {"mixing": 0.3 - 0.25 / 75, "temperature": 0.5 - 0.49 / 75, "diversity": 0.05 - 0.049 / 75}),
        (101, {"mixing": 0.05, "temperature": 0.01, "diversity": 0.001}),
    ],
)
def test_shor_is_annealed_by_the_number_of_policies(num_policies, options):
    counts = jnp.full((2, 2), num_policies / 2)
    iterations = 1000 + 20 * (num_policies - 1)
    expected, _ = meta_solvers._shor(jnp.asarray(PENNIES), counts, optimism=0.5, num_iterations=iterations, **options)
    np.testing.assert_allclose(jax.jit(shor_training)(PENNIES, counts), expected, atol=1e-4)
