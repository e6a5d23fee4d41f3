"""Intervals and comparisons, against numbers by hand and against scipy."""

import json

import numpy as np
import pytest
from scipy import stats

from jaxagents.reporting.statistics import (
    bootstrap_interval,
    describe,
    interquartile_mean,
    performance_profile,
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


def test_the_student_interval_of_five_seeds_covers_what_it_says():
    _, low, high = t_interval(np.random.default_rng(1).normal(size=(400, 5)))
    assert 0.92 < np.mean((low <= 0.0) & (high >= 0.0)) < 0.98


def test_seeds_without_a_value_do_not_count():
    mean, low, high = t_interval(np.array([[1.0, np.nan, 2.0, 3.0], [5.0, np.nan, np.inf, np.nan], [2.5] * 4]))
    np.testing.assert_allclose(mean, (2.0, 5.0, 2.5))
    np.testing.assert_allclose(high - mean, (2.484138, np.nan, 0.0), atol=1e-6)
    np.testing.assert_allclose(mean - low, high - mean)


def test_described_values_are_plain_data():
    assert describe(np.array([2.0, 2.0])) == {"mean": 2.0, "low": 2.0, "high": 2.0}
    assert describe(np.array([3.0])) == {"mean": 3.0, "low": None, "high": None}
    assert json.dumps(describe(VALUES))


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
        (lambda: t_interval(np.array([np.nan])), r"`values` must be finite, one at least, got \[nan\]"),
        (lambda: t_interval(np.array([])), r"`values` must be finite, one at least, got \[\]"),
        (lambda: interquartile_mean(np.array([np.nan])), "`values` must be finite"),
    ],
)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_profiles_count_seeds_above_each_threshold_task_by_task():
    profile = performance_profile([np.array([0.0, 1.0]), np.array([0.5])], np.array([-1.0, 0.2, 0.5, 0.7]))
    np.testing.assert_allclose(profile, [1.0, 0.75, 0.25, 0.25])


def test_bootstraps_of_one_task_are_those_of_scipy_and_draw_within_tasks():
    values = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 3.0])
    expected = stats.bootstrap(
        (values,), np.mean, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    np.testing.assert_allclose(bootstrap_interval([values], np.mean), expected, atol=0.25)
    # Seeds never change their task: without spread inside of tasks there is none in the mean over both.
    assert bootstrap_interval([np.zeros(4), np.ones(4)], np.mean) == (0.5, 0.5)
    with pytest.raises(ValueError, match="`values` must be finite"):
        bootstrap_interval([np.array([np.nan])], np.mean)
