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
