"""Streams of edits: texts by hand, what is graded, and that the history is needed."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import edit_streams
from jaxagents.environments.text.code import OPERATIONS

make = functools.cache(edit_streams.make_environment)


def task(done=2):
    """`dup` becomes `mul` at the places 1, 3, 6 and 8."""
    program = [OPERATIONS.index(word) for word in ["dup", "add", "dup", "mul", "one", "dup", "two", "dup"]]
    numbers = {"program": program, "places": [0, 2, 5, 7], "old": program[0], "new": program[3], "done": done}
    return {name: jnp.asarray(value, jnp.int32) for name, value in (numbers | {"level": 2}).items()}


@pytest.mark.exhaustive
def test_edits_by_hand(hand):
    for move, place, operation in (("edit 6 mul", 1, 1), ("edit 8 mul", 0, 1), ("edit 6 add", 1, 0)):
        texts, timesteps, _ = hand.play(make(), task(), [move])
        assert texts[0] == "1 dup to mul 3 dup to mul in mul add mul mul one dup two dup"
        graded = {name: float(value) for name, value in timesteps[1].info["metrics"].items()}
        assert graded == {"place": place, "operation": operation}
        assert bool(timesteps[1].info["success"]) == (place + operation == 2)
    assert hand.play(make(), task(3), [])[0][0] == (
        "1 dup to mul 3 dup to mul 6 dup to mul in mul add mul mul one mul two dup"
    )
    assert hand.play(make(history=0), task(), [])[0] == ["in mul add mul mul one dup two dup"]


@pytest.mark.exhaustive
def test_half_of_the_places_are_edited_in_order(hand):
    for level, length in enumerate((4, 6, 8)):
        tasks = hand.drawn_tasks(make(), 128, level)
        assert ((tasks["program"] >= 0).sum(axis=1) == length).all()
        for program, places, old, new, done in zip(*(tasks[n] for n in ("program", "places", "old", "new", "done"))):
            where = np.flatnonzero(program == old)
            np.testing.assert_array_equal(places[: length // 2], where)
            assert (places[length // 2 :] == -1).all() and new != old and 1 <= done < length // 2


@pytest.mark.parametrize("options", [{"lengths": (5,)}, {"history": 4}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match="must be"):
        make(**options)
