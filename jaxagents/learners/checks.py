"""Refusals of numbers that are out of their range."""


def check_counts(**counts: int | None) -> None:
    """Refuses counts below 1; None is not looked at."""
    for name, count in counts.items():
        _require_number(name, count)
        if count is not None and count < 1:
            raise ValueError(f"`{name}` must be at least 1, got {count}.")


def check_fractions(**fractions: float) -> None:
    """Refuses numbers outside of [0, 1]."""
    for name, fraction in fractions.items():
        _require_number(name, fraction)
        if not 0.0 <= fraction <= 1.0:
            raise ValueError(f"`{name}` must be in [0, 1], got {fraction}.")


def check_positive(**numbers: float | None) -> None:
    """Refuses numbers that are not above 0; None is not looked at."""
    for name, number in numbers.items():
        _require_number(name, number)
        if number is not None and number <= 0.0:
            raise ValueError(f"`{name}` must be positive, got {number}.")


def _require_number(name: str, number: float | None) -> None:
    if isinstance(number, str | bool):
        raise ValueError(f"`{name}` must be a number, got {number!r}.")
