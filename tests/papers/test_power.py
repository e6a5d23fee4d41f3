"""Power: how often an expectation is decided, and how many seeds that needs."""

import pytest

from jaxagents.papers.expectations import Expectation
from jaxagents.papers.power import first_look, power_of, seeds_needed

HIGHER = Expectation("success", "higher", ("a", "b"), 0.05)


def test_a_margin_as_large_as_the_effect_has_half_of_the_power():
    # The mean is above its own expectation in half of the cases, however many seeds there are.
    for num_seeds in (10, 40):
        assert power_of(HIGHER, 0.05, 0.02, num_seeds) == pytest.approx(0.5, abs=0.02)


def test_seeds_grow_with_the_spread():
    # By hand at the normal limit, low > 0 is the harder half: n = (1.96 + 1.2816)^2 (sd / effect)^2 = 10.5 and 42.
    needed = [seeds_needed(HIGHER, 0.1, deviation) for deviation in (0.02, 0.1, 0.2)]
    assert needed[0] == 8 and needed[1] in range(11, 14) and needed[2] in range(42, 46)  # 8 are the least.
    assert seeds_needed(HIGHER, 0.1, 10.0) is None
    assert seeds_needed(Expectation("x", "near", ("a",), 0.05, value=0.5), 0.5, 0.036) in range(8, 11)


def test_lower_and_bounds_have_power_of_their_own():
    lower = HIGHER._replace(kind="lower")
    assert power_of(lower, -0.1, 0.02, 8) > 0.95 and power_of(lower, 0.1, 0.02, 8) < 0.01
    assert power_of(Expectation("x", "below", ("a",), 0.1), 0.05, 0.02, 8) > 0.95


def test_paired_seeds_have_half_of_the_degrees_of_freedom():
    # 1 - nct.cdf(t.ppf(0.975, f), f, 1 / (1 / sqrt(8))) of scipy.stats, for f of 14 and of 7.
    alone, paired = (power_of(HIGHER, 0.1, 0.1, 8, paired=paired) for paired in (False, True))
    assert alone == pytest.approx(0.749, abs=0.015) and paired == pytest.approx(0.681, abs=0.015)


def test_a_first_look_has_its_power_at_the_share_of_the_error_that_it_may_spend():
    # By hand at the normal limit: after 16 of 24 seeds ln(1 + 1.718 * 2 / 3) = 0.764 of 5 % is spent, 3.8 % on two
    # sides, and n = (2.073 + 1.2816)^2 (sd / effect)^2 = 15.9.
    wide = HIGHER._replace(margin=0.0)
    count, power = first_look(wide, 0.1, 0.119, 24, 0.9)
    assert count in range(15, 19) and 0.9 <= power < 0.93
    assert count > seeds_needed(wide, 0.1, 0.119) and power < power_of(wide, 0.1, 0.119, count)
    assert first_look(HIGHER, 0.1, 0.001, 24, 0.9) == (8, 1.0)
    count, power = first_look(HIGHER, 0.1, 1.0, 24, 0.9)
    assert count == 24 and power == power_of(HIGHER, 0.1, 1.0, 24) < 0.1  # One look with the whole of the error.
