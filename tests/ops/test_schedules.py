"""Numbers that change by updates."""

import jax
import numpy as np
import pytest

from jaxagents.ops.schedules import cosine_schedule, linear_schedule


def values_of(schedule, run_updates, num_updates):
    memory, values = schedule.init(run_updates), []
    for _ in range(num_updates):
        value, summary = schedule.apply(memory)
        values.append(float(value))
        memory = schedule.update(memory, summary)
    return values


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1.0, 0.875, 0.75, 0.625, 0.5]),  # The whole run of 8 updates.
        ({"fraction": 0.5}, [1.0, 0.75, 0.5, 0.25, 0.0]),
        ({"num_updates": 2}, [1.0, 0.5, 0.0, 0.0, 0.0]),
        ({"num_updates": 2, "end": 3.0}, [1.0, 2.0, 3.0, 3.0, 3.0]),
    ],
)
def test_values_by_hand(options, expected):
    schedule = linear_schedule(**({"start": 1.0, "end": 0.0} | options))
    np.testing.assert_allclose(values_of(schedule, 8, 5), expected, rtol=1e-6)


def test_a_cosine_by_hand():
    """At 0, 1/4, 1/2, 3/4 and all of the way: cosines of 1, 0.7071, 0, -0.7071 and -1."""
    schedule = cosine_schedule(start=0.9, end=0.1, num_updates=4)
    expected = [0.9, 0.5 + 0.4 * np.sqrt(0.5), 0.5, 0.5 - 0.4 * np.sqrt(0.5), 0.1, 0.1]
    np.testing.assert_allclose(values_of(schedule, 8, 6), expected, rtol=1e-5)


def test_its_numbers_are_arrays_of_the_memory():
    schedule = linear_schedule(start=1.0, end=0.0, num_updates=2)
    memory = jax.jit(schedule.init, static_argnums=0)(8).replace(start=np.float32(5.0))
    assert float(jax.jit(schedule.apply)(memory)[0]) == 5.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_updates": 0}, "`num_updates` of a schedule must be at least 1, got 0"),
        ({"fraction": 0.0}, r"`fraction` of a schedule must be in \(0, 1\], got 0"),
        ({"fraction": 1.5}, r"`fraction` of a schedule must be in \(0, 1\], got 1.5"),
    ],
)
def test_refuses_schedules_that_never_move(options, message):
    with pytest.raises(ValueError, match=message):
        linear_schedule(start=1.0, end=0.0, **options)
