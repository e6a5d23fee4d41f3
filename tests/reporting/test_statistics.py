"""Intervals and comparisons, against numbers by hand and against scipy."""

import json

import numpy as np
import pytest
from scipy import stats

from jaxagents.reporting.statistics import (
    bootstrap_interval,
    by_seed,
    describe,
    holm,
    interquartile_mean,
    paired_or_welch_interval,
    paired_or_welch_p_value,
    performance_profile,
    spent_levels,
    t_interval,
    welch_interval,
    welch_p_value,
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


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_the_welch_interval_is_that_of_scipy(confidence):
    other = VALUES[1:4] * 0.1
    expected = stats.ttest_ind(VALUES, other, equal_var=False).confidence_interval(confidence)
    mean, *bounds = welch_interval(VALUES, other, confidence)
    assert mean == pytest.approx(4.0 - 0.3)
    np.testing.assert_allclose(bounds, (expected.low, expected.high))


def test_p_values_are_those_of_scipy_and_adjusted_by_hand():
    expected = stats.ttest_ind(VALUES, VALUES[1:4], equal_var=False).pvalue
    assert welch_p_value(VALUES, VALUES[1:4]) == pytest.approx(expected)
    assert welch_p_value(np.ones(3), np.ones(3)) == 1.0 and welch_p_value(np.ones(3), np.zeros(3)) == 0.0
    # 0.005 x 4, 0.01 x 3, 0.03 x 2, and 0.04 x 1, which is not below the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []


def test_the_welch_interval_of_what_does_not_vary():
    assert welch_interval(np.full(3, 0.5), np.full(3, 0.25)) == (0.25, 0.25, 0.25)
    # One arm is a constant: Student's interval of the other one.
    np.testing.assert_allclose(welch_interval(VALUES, np.full(5, 1.0)), t_interval(VALUES - 1.0))
    assert np.isnan(welch_interval(VALUES, np.array([1.0])).low)


def test_seeds_are_paired_where_their_correlation_pays():
    # Eight seeds: from r = tanh(atanh(1 - (2.1448 / 2.3646)^2) + 1.6449 / sqrt(5)) = 0.725 on.
    first = np.arange(8.0)
    noise = np.array([1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0, 1.0])  # Orthogonal: r = (1 + 8 scale^2 / 42)^(-1 / 2).
    for scale, correlation, paired in ((2.3, 0.706, False), (2.0, 0.753, True)):
        second = first + scale * noise
        assert np.corrcoef(first, second)[0, 1] == pytest.approx(correlation, abs=1e-3)
        expected = t_interval(first - second) if paired else welch_interval(first, second)
        assert paired_or_welch_interval(first, second) == expected
    assert paired_or_welch_interval(first, -first) == welch_interval(first, -first)
    assert paired_or_welch_interval(first, first + 3.0) == (-3.0, -3.0, -3.0)
    # Three seeds say nothing about a correlation, and five need 0.90.
    assert paired_or_welch_interval(first[:3], first[:3] + 3.0) == welch_interval(first[:3], first[:3] + 3.0)
    second = np.array([0.0, 2.0, 1.0, 3.0, 4.0])
    assert np.corrcoef(first[:5], second)[0, 1] == pytest.approx(0.9)
    assert paired_or_welch_interval(first[:5], second[::-1]) == welch_interval(first[:5], second[::-1])


def test_runs_without_a_value_pair_no_others():
    first = np.arange(9.0)
    lost = {seed: value for seed, value in enumerate(first) if seed != 2}
    other = {seed: value + 3.0 for seed, value in enumerate(first) if seed != 7}
    own, others = by_seed(lost, other)
    np.testing.assert_array_equal(own, [0, 1, np.nan, 3, 4, 5, 6, 7, 8])
    np.testing.assert_array_equal(others, [3, 4, 5, 6, 7, 8, 9, np.nan, 11])
    # Equal numbers of runs, of other seeds: in order they would differ by -3 and -4, almost without width.
    apart = welch_interval(np.asarray([*lost.values()]), np.asarray([*other.values()]))
    assert paired_or_welch_interval(own, others) == apart
    # The same run of both is missing: the others are paired.
    assert paired_or_welch_interval(own, own + 3.0) == (-3.0, -3.0, -3.0)
    assert paired_or_welch_p_value(own, own + 3.0) == 0.0


@pytest.mark.parametrize("correlation", [0.0, 0.7])
def test_the_choice_of_pairs_keeps_the_coverage(correlation):
    drawn = np.random.default_rng(1).normal(size=(2000, 2, 8))
    second = correlation * drawn[:, 0] + np.sqrt(1.0 - correlation**2) * drawn[:, 1]
    intervals = [paired_or_welch_interval(a, b) for a, b in zip(drawn[:, 0], second)]
    assert np.mean([low <= 0.0 <= high for _, low, high in intervals]) > 0.94


def test_looks_spend_the_error_once():
    # 0.05 ln(1 + 1.71828 t) at 1/8, 1/4, 1/2 and 1: 0.00973, 0.01787, 0.03101, 0.05.
    levels = 0.05 * np.array(spent_levels([1 / 8, 1 / 4, 1 / 2, 1.0]))
    np.testing.assert_allclose(levels, (0.00973, 0.00814, 0.01314, 0.01899), atol=1e-5)
    assert spent_levels([1.0]) == pytest.approx([1.0]) and spent_levels([]) == []


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
