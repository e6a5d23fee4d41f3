"""Payoff tensors against numbers worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.games.normal_form import (
    action_values,
    joint_value,
    nash_conv,
    pad_payoffs,
    product_of,
    undominated,
)

PRISONERS = np.array([[[3.0, 0.0], [5.0, 1.0]], [[3.0, 5.0], [0.0, 1.0]]], np.float32)


def test_values_of_two_players_by_hand():
    strategies = jnp.array([[0.5, 0.5], [0.25, 0.75]])
    # Row: cooperating 0.25 * 3, defecting 0.25 * 5 + 0.75; column: 0.5 * 3, 0.5 * 5 + 0.5.
    np.testing.assert_allclose(action_values(PRISONERS, strategies), [[0.75, 2.0], [1.5, 3.0]])
    # Row gains 2 - (0.375 + 1), column 3 - (0.375 + 2.25).
    np.testing.assert_allclose(nash_conv(PRISONERS, strategies), 0.625 + 0.375)
    assert float(nash_conv(PRISONERS, jnp.array([[0.0, 1.0], [0.0, 1.0]]))) == 0.0


def test_values_of_three_players_are_sums_over_the_others():
    payoffs = np.random.default_rng(0).normal(size=(3, 2, 2, 2)).astype(np.float32)
    strategies = np.array([[0.5, 0.5], [0.25, 0.75], [0.1, 0.9]], np.float32)
    expected = [
        np.einsum("abc,b,c->a", payoffs[0], strategies[1], strategies[2]),
        np.einsum("abc,a,c->b", payoffs[1], strategies[0], strategies[2]),
        np.einsum("abc,a,b->c", payoffs[2], strategies[0], strategies[1]),
    ]
    actual = jax.jit(action_values)(payoffs, strategies)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    joint = product_of(jnp.asarray(strategies))
    np.testing.assert_allclose(joint_value(payoffs, joint), np.sum(expected * strategies, axis=1), rtol=1e-5)
    np.testing.assert_allclose(np.sum(joint, axis=(1, 2)), strategies[0], rtol=1e-6)


def test_padding_is_never_the_best_response():
    padded, counts = pad_payoffs(np.array([[[-1.0], [-2.0]], [[4.0], [5.0]]], np.float32))
    assert padded.shape == (2, 2, 2)
    np.testing.assert_array_equal(counts, [[1, 1], [1, 0]])
    # Row loses 1 in its best action, where padding would be worth 0 to the column player's 4.5.
    strategies = jnp.array([[0.5, 0.5], [1.0, 0.0]])
    np.testing.assert_allclose(nash_conv(padded, strategies, counts), 0.5)


@pytest.mark.parametrize(
    ("payoffs", "message"),
    [
        (np.zeros((2, 2)), r"must have shape \[n, A_1, ..., A_n\] for n players, got \[2, 2\]; try np.stack"),
        (np.zeros((3, 2, 2)), r"for n players, got \[3, 2, 2\]"),
        (np.zeros((2, 2, 0)), r"at least one action per player, got \[2, 2, 0\]"),
        (np.array([[[0.0]], [[np.nan]]]), r"must be finite, got nan at \[1, 0, 0\]"),
    ],
)
def test_payoffs_that_are_no_game_are_refused(payoffs, message):
    with pytest.raises(ValueError, match=message):
        pad_payoffs(payoffs)


def test_shapes_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match=r"shape \[n, A, ..., A\].*got \[2, 2, 3\]; try pad_payoffs"):
        nash_conv(jnp.zeros((2, 2, 3)), jnp.ones((2, 2)))
    with pytest.raises(ValueError, match=r"`counts` must have shape \[2, 2\], got \[2, 3\]"):
        nash_conv(jnp.zeros((2, 2, 2)), jnp.ones((2, 2)), jnp.ones((2, 3)))


def test_dominated_actions_go_round_by_round():
    # Row 2 is dominated by row 0 at once; without it column 1 is, and without that row 1. Column 2 is padding.
    row = np.array([[2.0, 1.0, 0.0], [1.0, 3.0, 0.0], [0.0, 0.0, 0.0]])
    column = np.array([[3.0, 2.0, 0.0], [1.0, 0.0, 0.0], [0.0, 5.0, 0.0]])
    counts = jnp.array([[1.0, 1.0, 1.0], [2.0, 1.0, 0.0]])
    left = jax.jit(undominated)(np.stack([row, column]), counts)
    np.testing.assert_array_equal(left, [[1, 0, 0], [2, 0, 0]])
    # An action that is only as good is kept.
    np.testing.assert_array_equal(undominated(jnp.zeros((2, 2, 2))), np.ones((2, 2)))
