"""Pools of opponents: the ring, counts and weights by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops import opponents


def numbered(number):
    return {"w": jnp.full((2,), float(number))}


def filled(capacity, count):
    pool = opponents.init_pool(numbered(0), capacity)
    for number in range(1, count):
        pool = opponents.add(pool, numbered(number))
    return pool


def test_a_full_pool_forgets_the_oldest():
    pool = filled(3, 2)
    np.testing.assert_array_equal(opponents.taken(pool), [True, True, False])
    np.testing.assert_array_equal(opponents.latest(pool), [0, 1, 0])
    np.testing.assert_array_equal(opponents.uniform(pool), [1, 1, 0])
    pool = opponents.record(pool, jnp.array([0, 1]), jnp.ones(2), jnp.ones(2, bool))
    pool = opponents.add(opponents.add(pool, numbered(2)), numbered(3))
    np.testing.assert_array_equal(pool.params["w"][:, 0], [3, 1, 2])
    np.testing.assert_array_equal(pool.games, [0, 1, 0])  # A new opponent has no games.
    np.testing.assert_array_equal(opponents.latest(pool), [1, 0, 0])
    np.testing.assert_array_equal(opponents.take(pool, jnp.array([[2, 0]]))["w"][..., 0], [[2, 3]])
    same = opponents.add(pool, numbered(9), when=False)
    for one, other in zip(jax.tree.leaves(same), jax.tree.leaves(pool), strict=True):
        np.testing.assert_array_equal(one, other)


def test_games_are_counted_and_forgotten():
    pool = filled(3, 3)
    slot, score = jnp.array([[0, 0], [2, 1]]), jnp.array([[1.0, 0.5], [0.0, 1.0]])
    finished = jnp.array([[True, True], [True, False]])
    pool = jax.jit(opponents.record)(pool, slot, score, finished)
    np.testing.assert_allclose(pool.score, [1.5, 0, 0])
    np.testing.assert_allclose(pool.games, [2, 0, 1])
    np.testing.assert_allclose(opponents.win_rate(pool), [2 / 3, 0.5, 0.25])
    pool = opponents.record(pool, slot, score, finished, decay=0.5)
    np.testing.assert_allclose(pool.score, [2.25, 0, 0])
    np.testing.assert_allclose(pool.games, [3, 0, 1.5])


def test_prioritised_weights_by_hand():
    pool = filled(4, 3).replace(score=jnp.array([1.5, 0, 0, 0]), games=jnp.array([2.0, 0, 1.0, 0]))
    np.testing.assert_allclose(opponents.hard(pool), [1 / 9, 1 / 4, 9 / 16, 0], rtol=1e-6)
    np.testing.assert_allclose(opponents.hard(pool, power=0.0), opponents.uniform(pool))
    np.testing.assert_allclose(opponents.even(pool), [2 / 9, 1 / 4, 3 / 16, 0], rtol=1e-6)


def test_places_are_drawn_in_proportion():
    slots = opponents.sample(jax.random.key(0), jnp.array([1.0, 0.0, 3.0]), (4000,))
    assert slots.dtype == jnp.int32
    np.testing.assert_allclose(np.bincount(slots, minlength=3) / 4000, [0.25, 0, 0.75], atol=0.03)


def test_a_pool_without_places_is_refused():
    with pytest.raises(ValueError, match="`capacity` of an opponent pool must be at least 1, got 0; try 16."):
        opponents.init_pool(numbered(0), 0)
