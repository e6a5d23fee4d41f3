"""Refusals of settings that cannot work."""

from typing import Any


def require_positive(name: str, value: Any) -> None:
    """Refuses anything but a positive whole number.

    Raises:
        ValueError: names the setting.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ValueError(f"`{name}` must be a positive number, got {value!r}.")
    if not isinstance(value, int):
        raise ValueError(f"`{name}` must be a whole number, got {value!r}.")


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
