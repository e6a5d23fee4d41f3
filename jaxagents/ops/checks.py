"""Checks that refuse settings that cannot work."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def require_positive(name: str, value: Any) -> None:
    """Refuses anything but a positive whole number.

    Raises:
        ValueError: the check fails; the message names the setting.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ValueError(f"`{name}` must be a positive number, got {value!r}.")
    if not isinstance(value, int):
        raise ValueError(f"`{name}` must be a whole number, got {value!r}.")


def check_counts(**counts: int | None) -> None:
    """Refuses counts below 1; None is accepted.

    Raises:
        ValueError: the check fails; the message names the setting.
    """
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"`{name}` must be at least 1, got {count}.")


def require_between(name: str, value: float | Sequence[float], low: float, high: float = math.inf) -> None:
    """Refuses a number outside a range, and a list (such as one number per level) that is empty or has such a number.

    Args:
        name: name of the setting.
        value: value of the setting.
        low: lower bound, included.
        high: upper bound, included.

    Raises:
        ValueError: the check fails; the message names the setting.
    """
    numbers = list(value) if isinstance(value, Sequence) else [value]
    if not numbers or not all(low <= number <= high for number in numbers):
        wanted = f"at least {low}" if math.isinf(high) else f"from {low} to {high}"
        raise ValueError(f"`{name}` must be {wanted}, got {numbers if isinstance(value, Sequence) else value}.")


def require_one_of(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Refuses a value that is not among some choices.

    Raises:
        ValueError: the check fails; the message names the setting.
    """
    if value not in choices:
        raise ValueError(f"`{name}` must be {' or '.join(map(repr, choices))}, got {value!r}.")


def require_shape(name: str, value: Any, shape: Sequence[int]) -> None:
    """Refuses the result of a user's function if it does not have this shape; broadcasting would hide the mistake.

    Raises:
        ValueError: the check fails; the message names the function.
    """
    if getattr(value, "shape", None) != tuple(shape):
        found = f"an array of {value.shape}" if hasattr(value, "shape") else f"a {type(value).__name__}"
        raise ValueError(f"`{name}` must return an array of {tuple(shape)}, got {found}.")


def require_seed(name: str, value: Any, count: int = 1) -> None:
    """Refuses anything but a whole number that fits into 32 bits together with the `count - 1` numbers after it.

    Args:
        name: name of the setting.
        value: value of the setting.
        count: number of runs, whose seeds are `value`, `value + 1` and so on.

    Raises:
        ValueError: the check fails; the message names the setting.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 2**32 - count:
        raise ValueError(f"`{name}` must be a whole number from 0 to {2**32 - count}, got {value!r}.")


def within_groups(function: _Function) -> _Function:
    """Marks a function that compares the episodes of a task with each other, and learns nothing from groups of one."""
    function.within_groups = True  # type: ignore[attr-defined]
    return function
