"""Best responses: known equilibria, all pure policies, and OpenSpiel as an oracle."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pyspiel
import pytest
from open_spiel.python.algorithms import exploitability as spiel_exploitability
from open_spiel.python.policy import TabularPolicy

from jaxagents.games import normal_form
from jaxagents.games.best_response import best_response, exploitability, nash_conv
from jaxagents.games.definitions.kuhn import kuhn
from jaxagents.games.definitions.leduc import leduc
from jaxagents.games.definitions.normal_form import from_payoffs
from jaxagents.games.extensive_form import compile_game
from jaxagents.games.openspiel import from_openspiel
from jaxagents.games.strategies import expected_values, uniform_profile
from jaxagents.games.trees import expand
from tests.fakes import random_profile


@pytest.fixture(scope="module")
def poker():
    return compile_game(kuhn(2))


def equilibrium(bluff):
    """Returns Kuhn's equilibrium in which the first player bets a jack with this probability, in [0, 1/3]."""
    first = {(0, ()): bluff, (1, ()): 0.0, (2, ()): 3 * bluff, (0, (0, 1)): 0.0, (1, (0, 1)): bluff + 1 / 3}
    first[2, (0, 1)] = 1.0
    second = {(0, (0,)): 1 / 3, (1, (0,)): 0.0, (2, (0,)): 1.0, (0, (1,)): 0.0, (1, (1,)): 1 / 3, (2, (1,)): 1.0}
    sets = expand(kuhn(2)).information_sets
    bets = [jnp.array([known[entry.label] for entry in own]) for known, own in zip((first, second), sets)]
    return [jnp.stack([1.0 - bet, bet], axis=1) for bet in bets]


@pytest.mark.parametrize("bluff", [0.0, 0.2, 1 / 3])
def test_kuhns_equilibria(poker, bluff):
    with jax.enable_x64():
        profile = equilibrium(bluff)
        np.testing.assert_allclose(expected_values(poker, profile), [-1 / 18, 1 / 18], atol=1e-12)
        np.testing.assert_allclose(nash_conv(poker, profile), 0.0, atol=1e-12)
        another = [equilibrium(0.5 * bluff + 0.1)[0], profile[1]]
        np.testing.assert_allclose(nash_conv(poker, another), 0.0, atol=1e-12)
        spoiled = [profile[0].at[4].set(jnp.array([0.0, 1.0])), profile[1]]  # Calls with every queen.
        assert float(nash_conv(poker, spoiled)) > 0.01


def test_matching_pennies_by_hand():
    matrix = np.array([[1.0, -1.0], [-1.0, 1.0]])
    game = compile_game(from_payoffs([matrix, -matrix]))
    profile = (jnp.array([[0.75, 0.25]]), jnp.array([[0.5, 0.5]]))
    response = best_response(game, 1, profile)
    np.testing.assert_array_equal(response.policy, [[0.0, 1.0]])
    np.testing.assert_allclose(response.value, 0.5)
    np.testing.assert_allclose([nash_conv(game, profile), exploitability(game, profile)], [0.5, 0.25])


def test_nothing_is_better_than_the_best_response(poker):
    profile = random_profile(poker, jax.random.key(0))
    pure = jnp.asarray([jax.nn.one_hot(jnp.array(a), 2) for a in itertools.product((0, 1), repeat=6)])
    earned = jax.vmap(lambda own: expected_values(poker, (profile[0], own))[1])(pure)
    response = best_response(poker, 1, profile)
    np.testing.assert_allclose(response.value, jnp.max(earned), rtol=1e-5)
    np.testing.assert_array_equal(response.policy, pure[jnp.argmax(earned)])


@pytest.mark.parametrize("name", ["kuhn_poker(players=3)", "leduc_poker", "liars_dice(dice_sides=2)"])
def test_openspiel_agrees_about_random_policies(name):
    game, tree = pyspiel.load_game(name), expand(from_openspiel(name))
    compiled, policy = compile_game(tree), TabularPolicy(game)
    with jax.enable_x64():
        profile = random_profile(compiled, jax.random.key(3))
        for own, sets in zip(profile, tree.information_sets):
            for row, known in zip(np.asarray(own), sets):
                policy.policy_for_key(known.label)[list(known.actions)] = row[: len(known.actions)]
        mine = nash_conv(compiled, profile)
        np.testing.assert_allclose(mine, spiel_exploitability.nash_conv(game, policy), rtol=1e-9)


@pytest.mark.parametrize("row", [[0.0, 0.0], [0.7, 0.7], [1.2, -0.2], [np.nan, 1.0]])
@pytest.mark.parametrize("function", [nash_conv, exploitability, lambda game, own: best_response(game, 1, own)])
def test_what_is_no_strategy_is_refused(poker, function, row):
    first, second = uniform_profile(poker)
    with pytest.raises(ValueError, match=r"`profile` must be probabilities .*, player 0 in row \[2\]; try "):
        function(poker, (first.at[2].set(jnp.array(row)), second))


def test_illegal_actions_and_strategies_of_matrices_are_refused():
    game = compile_game(leduc(2))
    first, second = uniform_profile(game)
    row = int(np.flatnonzero(~np.asarray(game.seats[1].mask)[:, 0] | ~np.asarray(game.seats[1].mask)[:, -1])[0])
    illegal = jax.nn.one_hot(int(np.argmin(np.asarray(game.seats[1].mask)[row])), first.shape[1])
    with pytest.raises(ValueError, match="`profile` must be probabilities of legal actions"):
        exploitability(game, (first, second.at[row].set(illegal)))
    with pytest.raises(ValueError, match="`strategies` must be probabilities"):
        normal_form.nash_conv(jnp.zeros((2, 2, 2)), jnp.array([[0.5, 0.5], [0.0, 0.0]]))
