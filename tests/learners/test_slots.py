"""Numbers and memories of the choices of an algorithm."""

from functools import partial

import jax.numpy as jnp
import numpy as np

from jaxagents.learners.slots import bind, memory_of, numbers_of, remember
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
