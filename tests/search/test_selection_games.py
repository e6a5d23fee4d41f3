"""Games of choosing elements in turn: subsets by hand, and values against plain recursion."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.search.selection_games import make_subsets, solve


def test_subsets_of_three_by_hand():
    subsets = make_subsets(3, 2)
    np.testing.assert_array_equal(subsets.leaves, [[1, 1, 0], [1, 0, 1], [0, 1, 1]])
    np.testing.assert_array_equal(subsets.children[0], [[0, 1, 2]])
    # {0} becomes {0, 1} or {0, 2}; {1} becomes {0, 1} or {1, 2}; {2} becomes {0, 2} or {1, 2}.
    np.testing.assert_array_equal(subsets.children[1], [[0, 1], [0, 2], [1, 2]])


@pytest.mark.parametrize(
    ("players", "value"),
    [(("max", "min"), 2.0), (("min", "max"), 2.0), (("max", "max"), 3.0), (("mean", "min"), 4 / 3)],
)
def test_values_of_three_by_hand(players, value):
    # Of {0, 1}, {0, 2} and {1, 2}; whoever is second has a choice of two.
    np.testing.assert_allclose(solve(jnp.array([1.0, 2.0, 3.0]), make_subsets(3, 2), players), value, rtol=1e-6)


def test_values_are_those_of_all_sequences_of_moves():
    payoff = np.random.default_rng(0).normal(size=(15, 2))
    subsets = make_subsets(6, 4)
    players = ("min", "max", "mean", "max")

    def recurse(chosen, column):
        if len(chosen) == 4:
            mask = np.isin(np.arange(6), chosen)
            return payoff[int(np.flatnonzero((subsets.leaves == mask).all(axis=1))[0]), column]
        values = [recurse((*chosen, element), column) for element in range(6) if element not in chosen]
        return {"max": np.max, "min": np.min, "mean": np.mean}[players[len(chosen)]](values)

    np.testing.assert_allclose(solve(payoff, subsets, players), [recurse((), 0), recurse((), 1)], rtol=1e-5)


def test_refused():
    with pytest.raises(ValueError, match="`num_chosen` must be from 1 to 3, got 4."):
        make_subsets(3, 4)
    with pytest.raises(ValueError, match="`num_elements` must have at most 1000000 subsets of 8, got 64; try fewer."):
        make_subsets(64, 8)
    with pytest.raises(ValueError, match=r"`players` must be 2 of max, min, mean, got \['max'\]."):
        solve(jnp.zeros(3), make_subsets(3, 2), ["max"])
