"""Numbers and memories of the choices of an algorithm."""

from functools import partial

import jax.numpy as jnp
import numpy as np

from jaxagents.learners.slots import arrays_of, bind, memory_of, numbers_due, numbers_of, remember
from jaxagents.ops.schedules import linear_schedule
from jaxagents.types import Remembering


def weigh(x, *, weights, scale=1.0, name="plain", count=2):
    return scale * jnp.asarray(weights) * x


RUNNING = Remembering(
    init=lambda num_updates: jnp.zeros(()),
    apply=partial(lambda memory, x, *, scale: (memory + scale * x, x), scale=3.0),
    update=lambda memory, summary: memory + summary,
)
SLOTS = {"list": partial(weigh, weights=[0.5, 2.0], scale=4.0, name="a", count=3), "bare": abs, "running": RUNNING}


def test_numbers_are_floats_and_lists_of_floats():
    numbers = numbers_of(SLOTS)
    assert set(numbers) == {"list", "running"}
    assert set(numbers["list"]) == {"weights", "scale"} and set(numbers["running"]) == {"scale"}
    np.testing.assert_array_equal(numbers["list"]["weights"], [0.5, 2.0])
    changed = {"list": {"weights": jnp.ones(2), "scale": jnp.float32(10.0)}}
    np.testing.assert_array_equal(bind(SLOTS, changed)["list"](jnp.ones(2))[0], [10.0, 10.0])


def test_memories_are_handed_in_and_updated_by_what_was_noted():
    memory = memory_of(SLOTS, 5)
    assert set(memory) == {"running"}
    for expected in (6.0, 8.0):
        bound = bind(SLOTS, numbers_of(SLOTS), memory)
        assert bound["bare"](-1.0) == (1.0, {})
        result, noted = bound["running"](jnp.float32(2.0))
        assert float(result) == expected
        memory = remember(SLOTS, memory, noted)


def test_schedules_stand_for_hyperparameters_and_for_keywords_of_slots():
    """Every one moves by one update when the learner remembers."""
    falling = linear_schedule(start=1.0, end=0.0, num_updates=2)
    hyperparameters = {"rate": falling, "constant": 0.25, "absent": None}
    slots = {"list": partial(weigh, weights=[0.5, 2.0], scale=falling), "none": None}
    numbers, memory = arrays_of(hyperparameters), memory_of(hyperparameters | slots, 10)
    assert set(numbers) == {"constant"} and set(memory) == {"rate", "list.scale"}
    for scale in (1.0, 0.5, 0.0, 0.0):
        due = numbers_due(hyperparameters, numbers, memory)
        assert {name: float(number) for name, number in due.items()} == {"rate": scale, "constant": 0.25}
        result, noted = bind(slots, numbers_of(slots), memory)["list"](jnp.ones(2))
        np.testing.assert_array_equal(result, [0.5 * scale, 2.0 * scale])
        memory = remember(hyperparameters | slots, memory, noted)
