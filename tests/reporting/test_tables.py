"""Numbers of tables."""

import pytest

from jaxagents.reporting.tables import describe_interval, describe_number


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *((0.01234, "0.0123"), (-0.5, "-0.5"), (0.0, "0"), (123.4, "123"), (999.6, "1,000")),
        *((23040.0, "23,000"), (-1188.0, "-1,190"), (1234567.0, "1,230,000"), (2e13, "2e+13"), (float("nan"), "-")),
        (float("inf"), "inf"),
    ],
)
def test_a_number_has_three_significant_digits_and_no_exponent_before_it_is_huge(number, text):
    assert describe_number(number) == text


def test_an_interval_is_its_mean_and_its_ends():
    assert describe_interval({"mean": 23040.0, "low": 19960.0, "high": 26120.0}) == "23,000 (20,000 to 26,100)"
    assert describe_interval({"mean": 1.0, "low": None, "high": None}) == "1" and describe_interval(None) == "-"
