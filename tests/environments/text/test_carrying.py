"""Carrying: what is too heavy, the trolley, lifting together, and what is refused."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import carrying

make = functools.cache(carrying.make_environment)


def task(at, *, weight=7, trolley=2, told=False, compare=False):
    """A box on the countertop that belongs on the bed, a chair of weight 3 on the shelf."""
    numbers = {"thing": 0, "where": [0, 1, -1, -1, trolley], "weight": [weight, 3, 0, 0, 0], "goal": 3, "at": at}
    flags = {"told": jnp.bool_(told), "compare": jnp.bool_(compare), "level": jnp.int32(0)}
    return {name: jnp.asarray(value, jnp.int32) for name, value in numbers.items()} | flags


@pytest.mark.exhaustive
def test_a_trolley_carries_what_is_too_heavy(hand):
    spoken = ["go to countertop", "take box", "go to desk", "take trolley", "go to countertop", "take box"]
    texts, timesteps, _ = hand.play(make(), task([4]), [*spoken, "lift box", "go to bed", "put"])
    goal = "bring box to bed you"
    assert texts == [
        f"{goal} door",
        f"{goal} countertop see box 7",
        f"{goal} countertop see box 7 nothing happens .",
        f"{goal} desk see trolley",
        f"{goal} desk hold trolley",
        f"{goal} countertop hold trolley see box 7",
        f"{goal} countertop hold box trolley",
        f"{goal} countertop hold box trolley nothing happens .",
        f"{goal} bed hold box trolley",
        f"{goal} bed see box 7 trolley",
    ]
    assert [bool(t.info["success"]) for t in timesteps] == [False] * 9 + [True]


@pytest.mark.exhaustive
def test_a_light_thing_takes_one_hand_that_holds_no_other(hand):
    spoken = ["take box", "go to shelf", "take chair", "go to bed", "put"]
    texts, timesteps, _ = hand.play(make(), task([0], weight=4, trolley=-1, compare=True), spoken)
    assert texts[0] == "bring heavier to bed you countertop see box 4"
    assert texts[3] == "bring heavier to bed you shelf hold box see chair 3 nothing happens ."
    assert bool(timesteps[-1].info["success"])


@pytest.mark.exhaustive
def test_two_lift_together(hand):
    environment = make(2)
    one = task([4, 0], trolley=-1, told=True)
    spoken = ["go to countertop", "lift box", "lift box", "go to bed", "put"]
    texts, timesteps, _ = hand.play(environment, one, spoken)
    goal = "bring box to bed together you"
    assert texts == [
        f"{goal} door they countertop",
        f"{goal} countertop see box 7 they countertop",
        f"{goal} countertop see box 7 they countertop lift box",
        f"{goal} countertop hold box they countertop",
        f"{goal} bed hold box they bed",
        f"{goal} bed see box 7 they bed",
    ]
    np.testing.assert_array_equal(timesteps[-1].reward, [1.0, 1.0])
    # Who goes away, or does something else, does not lift.
    texts, timesteps, _ = hand.play(environment, one, ["wait", "lift box", "lift box", "go to bed", "go to countertop"])
    assert texts[3].endswith("nothing happens .") and texts[4].endswith("they bed")
    assert not any(bool(t.info["success"]) for t in timesteps)


@pytest.mark.exhaustive
def test_levels_are_the_seven_kinds_of_tasks(hand):
    for level in range(7):
        tasks = hand.drawn_tasks(make(2), 64, level)
        rows, named = np.arange(64), tasks["thing"]
        weight = tasks["weight"][rows, named]
        assert ((weight > carrying.STRENGTH) == (level >= 2)).all()
        assert ((tasks["where"][:, carrying.TROLLEY] >= 0) == (level in (2, 3))).all()
        assert (tasks["compare"] == (level in (1, 3, 6))).all() and (tasks["told"] == (level == 4)).all()
        assert (tasks["where"][rows, named] != tasks["goal"]).all()
        if level in (1, 3, 6):
            assert (weight == tasks["weight"].max(axis=1)).all()
            assert ((tasks["weight"] == weight[:, None]).sum(axis=1) == 1).all()


@pytest.mark.parametrize("options", [{"num_seats": 3}, {"max_turns": 5}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match="must be"):
        make(**options)
