"""Intervals and comparisons, against numbers by hand and against scipy."""

import numpy as np
import pytest
from scipy import stats

from jaxagents.reporting.statistics import (
    bootstrap_interval,
    interquartile_mean,
    probability_of_improvement,
    t_interval,
)

VALUES = np.array([1.0, 2.0, 3.0, 4.0, 10.0])


def test_the_student_interval_by_hand():
    # Mean 2, standard deviation 1, t(0.975, 2) = 4.302653, half width 4.302653 / sqrt(3).
    interval = t_interval(np.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(interval, (2.0, 2.0 - 2.484138, 2.0 + 2.484138), atol=1e-6)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_the_student_interval_is_that_of_a_test(confidence):
    expected = stats.ttest_1samp(VALUES, 0.0).confidence_interval(confidence)
    np.testing.assert_allclose(t_interval(VALUES, confidence)[1:], (expected.low, expected.high))


def test_the_student_interval_covers_what_it_says_and_the_bootstrap_of_five_seeds_does_not():
    draws = np.random.default_rng(1).normal(size=(400, 5))
    covers = {
        interval: np.mean([low <= 0.0 <= high for _, low, high in map(interval, draws)])
        for interval in (t_interval, bootstrap_interval)
    }
    assert 0.92 < covers[t_interval] < 0.98
    assert covers[bootstrap_interval] < 0.9


def test_the_bootstrap_interval_by_hand():
    # Of two values, a resample is the lower one twice with probability 1/4, and so is the higher one.
    np.testing.assert_array_equal(bootstrap_interval(np.array([0.0, 1.0]), 0.9), (0.5, 0.0, 1.0))
    np.testing.assert_array_equal(bootstrap_interval(np.array([0.0, 1.0]), 0.4), (0.5, 0.5, 0.5))
    np.testing.assert_array_equal(bootstrap_interval(np.array([3.0])), (3.0, 3.0, 3.0))


def test_the_bootstrap_interval_agrees_with_scipy_and_is_repeatable():
    expected = stats.bootstrap((VALUES,), np.mean, method="percentile", rng=5).confidence_interval
    np.testing.assert_allclose(bootstrap_interval(VALUES)[1:], (expected.low, expected.high), atol=0.25)
    assert bootstrap_interval(VALUES) == bootstrap_interval(VALUES)


def test_the_interquartile_mean_drops_a_quarter_at_either_end():
    assert interquartile_mean(np.array([[0.0, 1.0], [3.0, 100.0]])) == 2.0
    assert interquartile_mean(np.array([7.0])) == 7.0


def test_the_probability_of_improvement_counts_pairs():
    # Pairs: 1 > 0, 1 = 1 (a half), 3 > 0, 3 > 1.
    assert probability_of_improvement(np.array([1.0, 3.0]), np.array([0.0, 1.0])) == 3.5 / 4.0
    mann_whitney = stats.mannwhitneyu(VALUES, VALUES[::2]).statistic / (5 * 3)
    assert probability_of_improvement(VALUES, VALUES[::2]) == pytest.approx(mann_whitney)


def test_of_several_tasks_the_probabilities_are_averaged():
    first, second = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0], [0.0, 0.0]])
    assert probability_of_improvement(first, second) == pytest.approx((1.0 + 0.25) / 2.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: t_interval(np.array([1.0])), "`values` must be of two seeds at least, got 1"),
        (lambda: bootstrap_interval(np.array([])), "`values` must be finite and one at least, got"),
        (lambda: interquartile_mean(np.array([np.nan])), "`values` must be finite"),
    ],
)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
