"""Refusals of settings that cannot work."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def require_positive(name: str, value: Any) -> None:
    """Refuses anything but a positive whole number.

    Raises:
        ValueError: names the setting.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ValueError(f"`{name}` must be a positive number, got {value!r}.")
    if not isinstance(value, int):
        raise ValueError(f"`{name}` must be a whole number, got {value!r}.")


def check_counts(**counts: int | None) -> None:
    """Refuses counts below 1; None is not looked at.

    Raises:
        ValueError: names the setting.
    """
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"`{name}` must be at least 1, got {count}.")


def require_between(name: str, value: float | Sequence[float], low: float, high: float = math.inf) -> None:
    """Refuses a number outside of a range, and a list, as of one number per level, that is empty or has such a number.

    Args:
        name: of the setting.
        value: of it.
        low: least number.
        high: greatest number.

    Raises:
        ValueError: names the setting.
    """
    numbers = list(value) if isinstance(value, Sequence) else [value]
    if not numbers or not all(low <= number <= high for number in numbers):
        wanted = f"at least {low}" if math.isinf(high) else f"from {low} to {high}"
        raise ValueError(f"`{name}` must be {wanted}, got {numbers if isinstance(value, Sequence) else value}.")


def require_one_of(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Refuses what is not among some choices.

    Raises:
        ValueError: names the setting.
    """
    if value not in choices:
        raise ValueError(f"`{name}` must be {' or '.join(map(repr, choices))}, got {value!r}.")


def require_shape(name: str, value: Any, shape: Sequence[int]) -> None:
    """Refuses what a function of a user returned where it is no array of a shape, which would be broadcast.

    Raises:
        ValueError: names the function.
    """
    if getattr(value, "shape", None) != tuple(shape):
        found = f"an array of {value.shape}" if hasattr(value, "shape") else f"a {type(value).__name__}"
        raise ValueError(f"`{name}` must return an array of {tuple(shape)}, got {found}.")


def require_seed(name: str, value: Any, count: int = 1) -> None:
    """Refuses anything but a whole number that, as those that follow it, fits into 32 bits.

    Args:
        name: of the setting.
        value: of it.
        count: runs, whose seeds are `value`, `value + 1` and so on.

    Raises:
        ValueError: names the setting.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 2**32 - count:
        raise ValueError(f"`{name}` must be a whole number from 0 to {2**32 - count}, got {value!r}.")


def within_groups(function: _Function) -> _Function:
    """Marks a function that compares the episodes of a task with each other, and learns nothing from groups of one."""
    function.within_groups = True  # type: ignore[attr-defined]
    return function
