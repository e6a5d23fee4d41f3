"""Populations against the games that they are of, policy by policy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.games.best_response import respond
from jaxagents.games.definitions.kuhn import kuhn
from jaxagents.games.extensive_form import compile_game
from jaxagents.games.populations import (
    add_policy,
    enlarge,
    meta_payoffs,
    mixed_profile,
    reach_of_others,
    start_population,
)
from jaxagents.games.strategies import (
    expected_values,
    outcome_weights,
    realization_plans,
    uniform_profile,
)
from tests.fakes import random_profile


@pytest.fixture(scope="module")
def poker():
    return compile_game(kuhn(3))


@pytest.fixture(scope="module")
def population(poker):
    """Two policies of players 0 and 1, one of player 2, room for three."""
    first, second = (random_profile(poker, jax.random.key(k)) for k in range(2))
    population = start_population(poker, first, 3)
    for player in (0, 1):
        population = add_policy(poker, population, player, second[player])
    return population


def test_the_meta_game_is_what_policies_earn(poker, population):
    payoffs = meta_payoffs(poker, population)
    assert payoffs.shape == (3, 3, 3, 3)
    for indices in itertools.product(range(2), range(2), range(1)):
        profile = [policies[index] for policies, index in zip(population.policies, indices)]
        np.testing.assert_allclose(payoffs[(slice(None), *indices)], expected_values(poker, profile), atol=1e-6)
    np.testing.assert_array_equal(payoffs[:, :, :, 1:], 0.0)


def test_a_mixture_plays_like_its_policies(poker, population):
    strategies = jnp.array([[0.25, 0.75, 0.0], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    expected = jnp.einsum("pabc,a,b,c->p", meta_payoffs(poker, population), *strategies)
    actual = expected_values(poker, mixed_profile(poker, population, strategies))
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def respond_to_mixture(game, profiles, weights):
    """Returns the best response of player 0 to others who draw one of several joint policies before the game."""
    reach = jax.vmap(lambda profile: outcome_weights(game, realization_plans(game, profile), without=0))
    return respond(game, 0, weights @ reach(tuple(profiles)))


def test_others_are_responded_to_as_they_are_drawn(poker, population):
    joint = jnp.zeros((3, 3, 3)).at[:2, :2, 0].set(jnp.array([[0.4, 0.1], [0.2, 0.3]]))
    profiles = [policies[jnp.array([0, 0, 1, 1])] for policies in population.policies]
    profiles[1] = population.policies[1][jnp.array([0, 1, 0, 1])]
    profiles[2] = population.policies[2][jnp.zeros(4, int)]
    expected = respond_to_mixture(poker, profiles, joint[:2, :2, 0].reshape(-1))
    reach = reach_of_others(poker, population, 0, joint)
    before = respond(poker, 0, jnp.sum(reach, axis=0))
    np.testing.assert_allclose(before.value, expected.value, atol=1e-6)
    np.testing.assert_array_equal(before.policy, expected.policy)
    # Knowing the own recommendation, the others are drawn given it.
    profiles = [policies[:2] for policies in profiles]
    profiles[1] = population.policies[1][:2]
    expected = respond_to_mixture(poker, profiles, joint[1, :2, 0])
    np.testing.assert_allclose(respond(poker, 0, reach[1]).value, expected.value, atol=1e-6)


def test_policies_that_play_the_same_are_counted(poker):
    policies = uniform_profile(poker)
    population = start_population(poker, policies, 3)
    bold = jnp.zeros_like(policies[0]).at[:, 1].set(1.0)
    # After a bet there is no second choice: what it would be plays no part.
    second = jnp.arange(poker.seats[0].levels[1], poker.seats[0].levels[2])
    for policy in (bold, policies[0], bold.at[second].set(jnp.array([1.0, 0.0])), 1.0 - bold):
        population = jax.jit(add_policy, static_argnums=2)(poker, population, 0, policy)
    np.testing.assert_array_equal(population.counts, [[2, 2, 1], [1, 0, 0], [1, 0, 0]])
    np.testing.assert_array_equal(population.num_policies, [3, 1, 1])
    np.testing.assert_array_equal(population.policies[0][2], 1.0 - bold)


def test_a_full_population_stays_as_it_is(poker):
    policies = uniform_profile(poker)
    population = start_population(poker, policies, 1)
    full = add_policy(poker, population, 0, jnp.zeros_like(policies[0]).at[:, 0].set(1.0))
    np.testing.assert_array_equal(full.counts, population.counts)
    np.testing.assert_array_equal(full.policies[0], population.policies[0])
    again = add_policy(poker, enlarge(full, 3), 0, jnp.zeros_like(policies[0]).at[:, 0].set(1.0))
    np.testing.assert_array_equal(again.counts, [[1, 1, 0], [1, 0, 0], [1, 0, 0]])


def test_a_population_without_room_is_refused(poker):
    with pytest.raises(ValueError, match="`capacity` must be at least 1, got 0; try the number of iterations plus 1"):
        start_population(poker, uniform_profile(poker), 0)
