"""Numbers and memories of the choices of an algorithm."""

from functools import partial

import jax.numpy as jnp
import numpy as np

from jaxagents.learners.settings import make_settings, without_memory
from jaxagents.ops.schedules import linear_schedule
from jaxagents.types import Stateful


def weigh(x, *, weights, scale=1.0, name="plain", count=2):
    return scale * jnp.asarray(weights) * x


RUNNING = Stateful(
    init=lambda num_updates: jnp.zeros(()),
    apply=partial(lambda memory, x, *, scale: (memory + scale * x, x), scale=3.0),
    update=lambda memory, summary: memory + summary,
)
SLOTS = {"list": partial(weigh, weights=[0.5, 2.0], scale=4.0, name="a", count=3), "bare": abs, "running": RUNNING}


def test_numbers_are_floats_and_lists_of_floats():
    settings = make_settings(slots=SLOTS)
    state = settings.init(1)
    assert set(state.numbers) == {"list", "running"}
    assert set(state.numbers["list"]) == {"weights", "scale"} and set(state.numbers["running"]) == {"scale"}
    np.testing.assert_array_equal(state.numbers["list"]["weights"], [0.5, 2.0])
    changed = state.replace(numbers={"list": {"weights": jnp.ones(2), "scale": jnp.float32(10.0)}})
    np.testing.assert_array_equal(settings.open(changed)[1]["list"](jnp.ones(2))[0], [10.0, 10.0])


def test_memories_are_handed_in_and_updated_by_what_was_noted():
    settings = make_settings(slots=SLOTS)
    state = settings.init(5)
    assert set(state.memory) == {"running"}
    for expected in (6.0, 8.0):
        _, slots = settings.open(state)
        assert slots["bare"](-1.0) == without_memory({"bare": abs})["bare"](-1.0) == (1.0, {})
        result, summary = slots["running"](jnp.float32(2.0))
        assert float(result) == expected
        state = settings.close(state, summary)


def test_schedules_stand_for_numbers_and_for_keywords_of_slots():
    """Every one moves by one update when the settings are closed."""
    falling = linear_schedule(start=1.0, end=0.0, num_updates=2)
    slots = {"list": partial(weigh, weights=[0.5, 2.0], scale=falling), "none": None}
    settings = make_settings({"rate": falling, "constant": 0.25, "absent": None}, slots)
    state = settings.init(10)
    assert set(state.numbers) == {"constant", "list"} and set(state.memory) == {"rate", "list.scale"}
    for scale in (1.0, 0.5, 0.0, 0.0):
        numbers, opened = settings.open(state)
        assert {name: float(number) for name, number in numbers.items()} == {"rate": scale, "constant": 0.25}
        result, summary = opened["list"](jnp.ones(2))
        np.testing.assert_array_equal(result, [0.5 * scale, 2.0 * scale])
        state = settings.close(state, summary)
