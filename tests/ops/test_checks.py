"""What settings are refused with."""

import numpy as np
import pytest

from jaxagents.ops.checks import require_between, require_one_of, require_shape


@pytest.mark.parametrize(
    ("value", "high", "message"),
    [
        ((2, 7), 6, r"`hops` must be from 1 to 6, got \[2, 7\]"),
        ([], 6, r"`hops` must be from 1 to 6, got \[\]"),
        (0, 6, "`hops` must be from 1 to 6, got 0"),
        (float("nan"), 6, "`hops` must be from 1 to 6, got nan"),
        (0, float("inf"), "`hops` must be at least 1, got 0"),
    ],
)
def test_numbers_outside_of_a_range_are_refused(value, high, message):
    with pytest.raises(ValueError, match=f"^{message}\\.$"):
        require_between("hops", value, 1, high)


def test_numbers_within_a_range_are_not():
    for value in (1, 6, (1, 6), [3.5]):
        require_between("hops", value, 1, 6)
    require_between("hops", 1e9, 1)


def test_what_is_no_choice_is_refused():
    require_one_of("split", "apps", ("apps", "tasks"))
    with pytest.raises(ValueError, match="^`split` must be 'apps' or 'tasks', got 'pages'.$"):
        require_one_of("split", "pages", ("apps", "tasks"))


def test_what_would_be_broadcast_is_refused():
    require_shape("rewards.mine", np.zeros((3, 2)), (3, 2))
    with pytest.raises(ValueError, match=r"^`rewards.mine` must return an array of \(3, 2\), got an array of \(3,\).$"):
        require_shape("rewards.mine", np.zeros(3), (3, 2))
    with pytest.raises(ValueError, match="got a float.$"):
        require_shape("rewards.mine", 0.5, (3, 2))
