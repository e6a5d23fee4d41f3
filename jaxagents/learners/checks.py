"""Checks that refuse numbers outside their range."""

from typing import Any

from jaxagents.ops.schedules import ScheduleState
from jaxagents.types import Stateful

FRACTIONS = frozenset(
    {
        "discount",
        "trace_decay",
        "epsilon",
        "target_update_rate",
        "range_update_rate",
        "importance_exponent",
        "priority_max_share",
        *("solved", "gain", "control_solved"),
    }
)
"""Numbers in the states of learners that `check_fractions` keeps in [0, 1], and that stay there while they change."""


def check_fractions(**fractions: float | Stateful) -> None:
    """Refuses numbers outside [0, 1], and schedules that begin or end outside it."""
    for name, number in fractions.items():
        for fraction in _values(name, number):
            if not 0.0 <= fraction <= 1.0:
                raise ValueError(f"`{name}` must be in [0, 1], got {fraction}.")


def check_positive(**numbers: float | Stateful | None) -> None:
    """Refuses numbers that are not above 0, and schedules that begin or end there; None is accepted."""
    for name, number in numbers.items():
        for value in _values(name, number):
            if value is not None and value <= 0.0:
                raise ValueError(f"`{name}` must be positive, got {value}.")


def check_widths(**slots: Any) -> None:
    """Refuses widths of trust intervals, such as `clip_epsilon`, that are not positive numbers.

    Args:
        **slots: functions by name, whose widths are arguments of a `functools.partial`, as configs make them.
    """
    for name, function in slots.items():
        for argument, width in getattr(function, "keywords", {}).items():
            if argument.startswith("clip_epsilon"):
                check_positive(**{f"{name}.{argument}": width})


def _values(name: str, number: float | Stateful | None) -> list[float | None]:
    """Returns the number itself; for a schedule, its first and last values."""
    if isinstance(number, str | bool):
        raise ValueError(f"`{name}` must be a number, got {number!r}.")
    if not isinstance(number, Stateful):
        return [number]
    memory = number.init(1)
    return [float(memory.start), float(memory.end)] if isinstance(memory, ScheduleState) else []
