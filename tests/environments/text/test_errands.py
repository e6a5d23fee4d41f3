"""Errands: what is said by hand, which questions are useful, and what they cost."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import errands

make = functools.cache(errands.make_environment)


def task(*things, target=0):
    """Things such as "red small shelf"."""
    rows = []
    for look in things:
        colour, size, place = look.split()
        at = errands.PLACES.index(place)
        rows.append([errands.ATTRIBUTES["colour"].index(colour), errands.ATTRIBUTES["size"].index(size), at // 3, at])
    numbers = {"things": rows, "kind": 0, "target": target, "level": 0}
    return {name: jnp.asarray(value, jnp.int32) for name, value in numbers.items()}


def metrics(timestep):
    return {name: float(value) for name, value in timestep.info["metrics"].items()}


@pytest.mark.exhaustive
def test_an_errand_by_hand(hand):
    one = task("red small countertop", "blue large shelf", target=1)
    spoken = ["take", "go to shelf", "go to countertop", "ask colour", "ask size", "ask size", "go to shelf", "take"]
    texts, timesteps, _ = hand.play(make((2,), reward="dense"), one, spoken)
    assert texts == [
        "bring mug of 2",
        "bring mug of 2 nothing happens .",
        "bring mug of 2 at shelf see blue large",
        "bring mug of 2 at countertop see red small shelf blue large",
        "bring mug of 2 blue at countertop see red small shelf blue large",
        "bring mug of 2 blue large at countertop see red small shelf blue large",
        "bring mug of 2 blue large at countertop see red small shelf blue large nothing happens .",
        "bring mug of 2 blue large at shelf see blue large countertop red small",
        "bring mug of 2 blue large at shelf see blue large countertop red small",
    ]
    assert metrics(timesteps[-1]) == {"questions": 2.0, "useful": 1.0, "over_budget": 1.0}
    assert [float(t.reward) for t in timesteps] == [0, 0, 0, 0, 0.5, 0, 0, 0, 0.5]
    assert bool(timesteps[-1].info["success"])
    # A question about things that nobody has seen is of no use, and what is not meant ends the errand, too.
    _, timesteps, _ = hand.play(make((2,), reward="dense"), one, ["ask size", "go to countertop", "take"])
    assert metrics(timesteps[-1]) == {"questions": 1.0, "useful": 0.0, "over_budget": 0.0}
    assert bool(timesteps[-1].terminated) and not bool(timesteps[-1].info["success"])


@pytest.mark.parametrize(
    "things, fewest",
    [
        (("red small shelf", "blue large bed"), 1),
        (("red small shelf", "red large fridge"), 1),
        (("red small shelf", "red large desk", "blue small bed"), 2),
        (("red small shelf", "red large fridge", "blue small bed"), 2),
        (("red small shelf", "blue small bed", "green small desk"), 1),
    ],
)
def test_the_fewest_questions(things, fewest):
    none, no = jnp.int32(0), jnp.zeros(6, bool)
    asked = jnp.ones(3, bool)
    state = errands.ErrandsState(task=task(*things), at=none - 1, seen=no, asked=asked, taken=no[0], useful=none)
    over = jax.jit(functools.partial(errands.status, 0))(state).parts["over_budget"]
    assert float(over) == 3 - fewest


@pytest.mark.exhaustive
def test_colour_and_size_say_which_one_and_descriptions_are_split(hand):
    described = []
    for held_out in (False, True):
        tasks = hand.drawn_tasks(make((4,)), 256, 0, held_out=held_out)
        looks = tasks["things"][:, :, 0] * 2 + tasks["things"][:, :, 1]
        assert all(len(set(row)) == 4 for row in looks.tolist())
        meant = np.take_along_axis(looks, tasks["target"][:, None], axis=1)[:, 0]
        described.append(set(zip(tasks["kind"].tolist(), meant.tolist())))
    assert not described[0] & described[1] and min(map(len, described)) > 3


@pytest.mark.parametrize("options", [{"num_candidates": (7,)}, {"slack": -1}, {"max_steps": 9}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match="must be"):
        make(**options)
