"""Policies, plans and values, by hand on Kuhn poker and on a matrix game."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.games.definitions.kuhn import kuhn
from jaxagents.games.definitions.leduc import leduc
from jaxagents.games.definitions.normal_form import from_payoffs
from jaxagents.games.extensive_form import compile_game
from jaxagents.games.strategies import (
    action_values,
    behavior_policy,
    check_profile,
    expected_values,
    normalize,
    realization_plan,
    realization_plans,
    sequence_values,
    uniform_profile,
)
from tests.fakes import random_profile


@pytest.fixture(scope="module")
def poker():
    return compile_game(kuhn(2))


def test_plans_multiply_own_choices(poker):
    bet = jnp.array([0.25, 0.0, 0.75, 0.5, 0.5, 1.0])
    plan = realization_plan(poker.seats[0], jnp.stack([1.0 - bet, bet], axis=1))
    after_pass = [0.75 * 0.5, 0.75 * 0.5, 0.5, 0.5, 0.0, 0.25]
    np.testing.assert_allclose(plan, [1.0, 0.75, 0.25, 1.0, 0.0, 0.25, 0.75, *after_pass])


def test_policies_come_back_from_plans(poker):
    for seat, policy in zip(poker.seats, random_profile(poker, jax.random.key(0))):
        np.testing.assert_allclose(behavior_policy(seat, realization_plan(seat, policy)), policy, rtol=1e-5)
    # What is never reached is uniform.
    plan = realization_plan(poker.seats[0], jnp.array([[0.0, 1.0]] * 6))
    np.testing.assert_array_equal(behavior_policy(poker.seats[0], plan)[3:], [[0.5, 0.5]] * 3)


def test_values_of_a_matrix_game_by_hand():
    game = compile_game(from_payoffs([[[3.0, 0.0], [5.0, 1.0]], [[3.0, 5.0], [0.0, 1.0]]]))
    profile = (jnp.array([[0.5, 0.5]]), jnp.array([[0.25, 0.75]]))
    np.testing.assert_allclose(expected_values(game, profile), [(0.75 + 2.0) / 2, (4.5 + 0.75) / 2])
    values = sequence_values(game, 0, realization_plans(game, profile))
    np.testing.assert_allclose(values, [0.0, 0.75, 2.0])
    np.testing.assert_allclose(action_values(game.seats[0], values)[1], 2.0)
    np.testing.assert_allclose(action_values(game.seats[0], values, profile[0])[1], 1.375)


@pytest.mark.exhaustive
@pytest.mark.parametrize("definition", [kuhn(3), leduc()], ids=lambda definition: definition.name)
def test_the_root_is_worth_the_expected_value(definition):
    game = compile_game(definition)
    with jax.enable_x64():
        profile = random_profile(game, jax.random.key(1))
        plans, expected = realization_plans(game, profile), expected_values(game, profile)
        for player, seat in enumerate(game.seats):
            _, root = action_values(seat, sequence_values(game, player, plans), profile[player])
            np.testing.assert_allclose(root, expected[player], atol=1e-12)
        np.testing.assert_allclose(jnp.sum(expected), 0.0, atol=1e-12)


def test_compiled_and_mapped_values_are_the_same(poker):
    profiles = [random_profile(poker, jax.random.key(seed)) for seed in range(3)]
    one_by_one = jnp.stack([expected_values(poker, profile) for profile in profiles])
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *profiles)
    mapped = jax.jit(jax.vmap(expected_values, in_axes=(None, 0)))(poker, stacked)
    np.testing.assert_allclose(mapped, one_by_one, rtol=1e-5)
    assert mapped.dtype == jnp.float32


def test_gradients_are_action_values_where_the_player_gets_to(poker):
    profile = uniform_profile(poker)
    gradient = jax.grad(lambda policy: expected_values(poker, (policy, profile[1]))[0])(profile[0])
    values, _ = action_values(poker.seats[0], sequence_values(poker, 0, realization_plans(poker, profile)), profile[0])
    np.testing.assert_allclose(gradient[:3], values[:3], rtol=1e-5)
    np.testing.assert_allclose(gradient[3:], 0.5 * values[3:], rtol=1e-5)  # Half of the time after its own pass.


def test_weights_become_policies(poker):
    weights = jnp.array([[1.0, 3.0]] + [[0.0, 0.0]] * 5)
    np.testing.assert_allclose(normalize(poker.seats[0], weights), [[0.25, 0.75]] + [[0.5, 0.5]] * 5)
    game = compile_game(leduc())
    for seat, policy in zip(game.seats, uniform_profile(game)):
        np.testing.assert_array_equal(policy > 0.0, seat.mask)
        np.testing.assert_allclose(jnp.sum(policy, axis=1), 1.0, rtol=1e-6)


def test_policies_of_another_game_are_refused(poker):
    with pytest.raises(ValueError, match=r"shapes \[\(6, 2\), \(6, 2\)\] in kuhn2, got \[\(6, 2\)\]; try uniform"):
        check_profile(poker, uniform_profile(poker)[:1])
