"""Preference losses by hand, against the formulas of their public code, and where their gradients point."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.losses.preference import dpo, ipo, kto, logistic, margin_of_rows, orpo, rpo, simpo, squared_margin

# Row 0 is preferred to rows 1 and 3, row 2 is compared with none, row 4 is padding.
ROWS = {
    "log_prob": jnp.array([-2.0, -3.0, -1.0, -1.5, 0.0]),
    "reference_log_prob": jnp.array([-2.5, -2.0, -1.0, -3.5, 0.0]),
    "length": jnp.array([2, 3, 1, 2, 0]),
    "pair": jnp.array([-1, 0, -1, 0, -1]),
    "desirable": jnp.array([True, False, True, False, False]),
}
COMPARED = np.array([False, True, False, True, False])
PAIRED = [dpo, ipo, rpo, simpo, orpo]


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def test_functions_of_margins_by_hand():
    margin = jnp.array([-2.0, 0.0, 3.0])
    # log(1 + e) = 1.313262, log 2 = 0.693147, log(1 + exp(-1.5)) = 0.201413.
    np.testing.assert_allclose(logistic(margin, coefficient=0.5), [1.313262, 0.693147, 0.201413], atol=1e-6)
    # The target is 1 / (2 * 0.25) = 2.
    np.testing.assert_allclose(squared_margin(margin, coefficient=0.25), [16.0, 4.0, 1.0])


def test_margins_are_those_of_the_preferred_row():
    np.testing.assert_allclose(margin_of_rows(ROWS["log_prob"], ROWS["pair"]), [0.0, 1.0, 0.0, -0.5, 0.0])


def test_dpo_and_ipo_by_hand():
    # Log-ratios 0.5, -1, 0, 2: margins 1.5 and -1.5.
    loss, counted = dpo(**ROWS, coefficient=2.0)
    np.testing.assert_array_equal(counted, COMPARED)
    np.testing.assert_allclose(loss, [0.0, np.log1p(np.exp(-3.0)), 0.0, np.log1p(np.exp(3.0)), 0.0], rtol=1e-6)
    np.testing.assert_allclose(ipo(**ROWS, coefficient=0.5)[0], [0.0, 0.25, 0.0, 6.25, 0.0], rtol=1e-6)


def test_rpo_adds_the_likelihood_per_token_of_what_is_preferred():
    difference = rpo(**ROWS, imitation=3.0)[0] - dpo(**ROWS)[0]
    np.testing.assert_allclose(difference, [0.0, 3.0, 0.0, 3.0, 0.0], rtol=1e-6)


def test_simpo_by_hand():
    # Per token -1, -1, -1, -0.75: margins 0 and -0.25.
    expected = [0.0, np.log1p(np.exp(0.5)), 0.0, np.log1p(np.exp(1.0)), 0.0]
    np.testing.assert_allclose(simpo(**ROWS, coefficient=2.0, target_margin=0.5)[0], expected, rtol=1e-6)


def test_orpo_by_hand():
    # As in the authors' trainer: log-odds from mean log-probabilities, minus the mean log-probability of the chosen.
    odds = np.exp([-1.0, -1.0, -0.75]) / (1.0 - np.exp([-1.0, -1.0, -0.75]))
    expected = 1.0 - 0.3 * np.log(sigmoid(np.log(odds[0] / odds[1:])))
    np.testing.assert_allclose(orpo(**ROWS, coefficient=0.3)[0][COMPARED], expected, rtol=1e-5)


def test_simpo_and_orpo_are_what_trl_computes():
    """Printed by huggingface/trl at commit f2cd577, trl/experimental: cpo/cpo_trainer.py:677 (simpo, gamma 0.5, beta 2)
    and orpo/orpo_trainer.py:673 (beta 0.3), which is subtracted from the negative log-likelihood, here 1.
    """
    actual = np.asarray(simpo(**ROWS, coefficient=2.0, target_margin=0.5)[0])[COMPARED]
    np.testing.assert_allclose(actual, [0.9741, 1.3133], atol=1e-4)
    actual = np.asarray(orpo(**ROWS, coefficient=0.3)[0])[COMPARED]
    np.testing.assert_allclose(actual, 1.0 - np.array([-0.2079, -0.2794]), atol=1e-4)


def test_kto_by_hand():
    # Log-ratios 0.5, -1, 0, 2 of the four rows that are not padding: their mean, 0.375, is the reference point.
    loss, counted = kto(**ROWS, coefficient=2.0, undesirable_weight=0.5)
    np.testing.assert_array_equal(counted, [True, True, True, True, False])
    gain = np.array([0.5, -1.0, 0.0, 2.0]) - 0.375
    desired = 1.0 - sigmoid(2.0 * gain)
    expected = np.where([True, False, True, False], desired, 0.5 * (1.0 - sigmoid(-2.0 * gain)))
    np.testing.assert_allclose(loss[:4], expected, rtol=1e-6)
    assert float(loss[4]) == 0.0


def test_the_reference_point_of_kto_is_not_negative_and_has_no_gradient():
    low = ROWS | {"log_prob": ROWS["reference_log_prob"] - 1.0}
    np.testing.assert_allclose(kto(**low, coefficient=1.0)[0][0], 1.0 - sigmoid(-1.0), rtol=1e-6)
    # One row's gradient does not depend on how many others there are.
    slope = jax.grad(lambda log_prob: kto(**ROWS | {"log_prob": log_prob}, coefficient=1.0)[0][0])(ROWS["log_prob"])
    np.testing.assert_array_equal(slope[1:], 0.0)


@pytest.mark.parametrize("loss", [*PAIRED, kto])
def test_gradients_raise_what_is_preferred_and_reach_no_padding(loss):
    slope = jax.grad(lambda log_prob: jnp.sum(loss(**ROWS | {"log_prob": log_prob})[0]))(ROWS["log_prob"])
    assert slope[0] < 0.0 and slope[1] > 0.0 and slope[3] > 0.0 and slope[4] == 0.0
    assert (slope[2] < 0.0) if loss is kto else (slope[2] == 0.0)


@pytest.mark.parametrize("loss", [*PAIRED, kto])
def test_any_row_is_finite_and_jit_changes_nothing(loss):
    # A certain row, a row of no length, and a margin beyond the range of an exponential.
    rows = ROWS | {"log_prob": jnp.array([0.0, -1e4, -1.0, 0.0, 0.0])}
    value, slope = jax.value_and_grad(lambda log_prob: jnp.sum(loss(**rows | {"log_prob": log_prob})[0]))(
        rows["log_prob"]
    )
    assert np.isfinite(value) and np.isfinite(slope).all()
    np.testing.assert_allclose(jax.jit(loss)(**ROWS)[0], loss(**ROWS)[0], rtol=1e-6)


@pytest.mark.parametrize("loss", [dpo, ipo, rpo, kto])
def test_losses_of_ratios_ask_for_a_reference(loss):
    with pytest.raises(ValueError, match="`loss` must have a reference, got None; try learner.reference=true"):
        loss(**ROWS | {"reference_log_prob": None})


@pytest.mark.parametrize("loss", [simpo, orpo])
def test_the_others_need_none(loss):
    np.testing.assert_array_equal(loss(**ROWS | {"reference_log_prob": None})[0], loss(**ROWS)[0])


def test_numbers_may_be_arrays():
    loss = jax.jit(lambda beta: partial(dpo, coefficient=beta)(**ROWS)[0])
    np.testing.assert_allclose(loss(2.0), dpo(**ROWS, coefficient=2.0)[0], rtol=1e-6)
