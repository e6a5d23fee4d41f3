"""Novelty against matrices and sets of numpy."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.ops.novelty import elliptical_bonus, hash_codes, novelty_rise, visit_counts


def test_codes_are_the_signs_of_projections():
    projection = jnp.array([[1.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
    codes = hash_codes(jnp.array([[1.0, -1.0], [1.0, 1.0], [-1.0, 0.5], [0.0, 0.0]]), projection)
    np.testing.assert_array_equal(codes, [0b001, 0b011, 0b110, 0])


def test_visits_are_counted_anew_in_every_episode():
    codes = jnp.array([[2, 1], [2, 1], [2, 0], [3, 1]])
    before = jnp.array([[1, 1], [2, 1], [3, 1], [2, 0]])  # Two episodes begin, in 1 and in 3.
    first = jnp.array([[False, True], [False, False], [True, False], [False, False]])
    visits, after = visit_counts(codes, before, first, jnp.zeros((2, 4), jnp.int32).at[0, 2].set(3))
    np.testing.assert_array_equal(visits, [[4, 2], [5, 3], [1, 1], [2, 4]])
    np.testing.assert_array_equal(after, [[0, 0, 1, 2], [1, 4, 0, 0]])


def test_ellipses_are_those_of_numpys_inverse_in_every_episode():
    features, before = np.random.default_rng(0).normal(size=(2, 7, 2, 3)).astype(np.float32)
    first = np.zeros((7, 2), bool)
    first[0], first[4, 1] = True, True
    compute = jax.jit(lambda *inputs: elliptical_bonus(*inputs, ridge=0.1))
    bonus, inverse = compute(features, before, first, np.zeros((2, 3, 3)))
    expected = np.zeros((7, 2))
    for row in range(2):
        matrix = np.full((3, 3), np.nan)  # Every row begins with an episode.
        for t in range(7):
            opening = 0.1 * np.eye(3) + np.outer(before[t, row], before[t, row])
            matrix = opening if first[t, row] else matrix
            expected[t, row] = features[t, row] @ np.linalg.inv(matrix) @ features[t, row]
            matrix = matrix + np.outer(features[t, row], features[t, row])
        np.testing.assert_allclose(inverse[row], np.linalg.inv(matrix), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(bonus, expected, rtol=1e-3)
    # The same place again is worth less, and a new episode forgets it.
    steps = jnp.ones((3, 1, 3)), jnp.zeros((3, 1, 3)), jnp.array([[True], [False], [True]])
    again, _ = elliptical_bonus(*steps, jnp.eye(3)[None], ridge=0.5)
    assert again[0, 0] == again[2, 0] > again[1, 0]


def test_the_way_back_to_where_an_episode_began_pays_what_a_second_visit_pays():
    """From s0 to A and back, with features (1, 0) and (0, 1): 1 / 0.1, then 1 / (0.1 + 1)."""
    begin, away = [1.0, 0.0], [0.0, 1.0]
    bonus, _ = elliptical_bonus(
        jnp.array([[away], [begin]]),
        jnp.array([[begin], [away]]),
        jnp.array([[True], [False]]),
        jnp.zeros((1, 2, 2)),
        ridge=0.1,
    )
    np.testing.assert_allclose(bonus[:, 0], [10.0, 1.0 / 1.1], rtol=1e-5)


def test_rises_count_and_falls_do_not():
    np.testing.assert_allclose(
        novelty_rise(jnp.array([1.0, 0.25]), jnp.array([1.0, 1.0]), scale=jnp.array(0.5)), [0.5, 0.0]
    )
