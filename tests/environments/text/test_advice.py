"""Budgets of turns that are drawn and shown, what is paid within them, and who reflects, by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import desk, errands
from jaxagents.environments.text.budgets import with_turn_budget
from jaxagents.environments.text.graded import with_graded
from jaxagents.environments.text.retroformer import with_reflector
from tests.environments.text.test_errands import metrics
from tests.environments.text.test_errands import task as errand

KEY = jax.random.key(3)


def budgeted(reward="sparse", **options):
    wrappers = {"turn_budget": functools.partial(with_turn_budget, fewest=2)}
    wrappers |= {"graded": functools.partial(with_graded, **options)} if options else {}
    return errands.make_environment((2,), reward=reward, wrappers=wrappers)


@pytest.mark.parametrize("held_out", [False, True])
def test_budgets_are_drawn_evenly(held_out):
    environment = budgeted()
    sample = environment.text.sample_held_out_task if held_out else environment.sample_task
    budgets = np.asarray(jax.jit(jax.vmap(sample))(jax.random.split(KEY, 2000))["budget"])
    counts = np.bincount(budgets, minlength=13)
    assert counts[:2].sum() == 0 and len(counts) == 13 and counts[2:].min() > 120


def test_rewards_of_a_consultation_by_hand(hand):
    """DoctorAgent-RL: 10 at the end, 1 for what informs, -1 for what does not, -5 where nothing is decided in time."""
    weights = {"success": 10.0, "useful": 2.0, "questions": -1.0, "overtime": -5.0}
    environment = budgeted("dense", weights=weights)
    inner = errand("red small countertop", "blue large shelf", target=1)
    spoken = ["go to countertop", "ask colour", "ask size", "ask size", "go to shelf", "take"]
    for budget, paid in ((12, [0, 0, 1, -1, 0, 0, 10]), (6, [0, 0, 1, -1, 0, 0, 10]), (5, [0, 0, 1, -1, 0, -5, 0])):
        task = {"inner": inner, "budget": jnp.int32(budget), "level": jnp.int32(0)}
        texts, timesteps, _ = hand.play(environment, task, spoken)
        assert [float(one.reward) for one in timesteps] == paid
        assert texts[0] == f"turn 1 of {' '.join(str(budget))} bring mug of 2"
        assert texts[2].startswith(f"turn 3 of {' '.join(str(budget))} bring mug of 2 blue at countertop")
    assert metrics(timesteps[-1])["overtime"] == 1.0 and bool(timesteps[5].truncated)
    assert not bool(timesteps[4].info["valid"])  # Asked again; the penalty of 2 is the learner's.


def test_rewards_of_questions_by_hand(hand):
    """Ask-to-Act: 5 at the end, 1 for a useful question, -0.5 for one beyond the fewest."""
    environment = budgeted("dense", weights={"success": 5.0, "useful": 1.0, "over_budget": -0.5})
    inner = errand("red small countertop", "blue large shelf", target=1)
    task = {"inner": inner, "budget": jnp.int32(12), "level": jnp.int32(0)}
    _, timesteps, _ = hand.play(
        environment, task, ["go to countertop", "ask colour", "ask size", "go to shelf", "take"]
    )
    assert [float(one.reward) for one in timesteps] == [0, 0, 1, -0.5, 0, 5]


@pytest.mark.parametrize(
    "options, message",
    [({"fewest": 3}, "`fewest` must be from 1 to 2, got 3"), ({"most": 3}, "`most` must be from 1 to 2, got 3")],
)
def test_budgets_that_the_world_does_not_have_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        with_turn_budget(desk.make_environment((3,)).text.rules, **options)


@pytest.mark.parametrize(
    "turns, trials, reflected",
    [
        (["go to bed", "take"], 1, []),
        (["go to bed"] * 4 + ["note take", "go to bed", "take"], 2, [1.0]),
        (["go to bed"] * 4 + ["note bed"] + ["go to desk"] * 4 + ["note take", "go to bed", "take"], 3, [0.0, 1.0]),
        (["go to bed"] * 4 + ["note bed"] + ["go to desk"] * 4 + ["note take"] + ["go to desk"] * 4, 3, [0.0, 0.0]),
    ],
)
def test_who_reflects_is_paid_what_the_next_trial_gains(hand, tiny, turns, trials, reflected):
    environment = tiny.make(with_reflector(tiny.worlds["rooms"], num_trials=3, max_words=2))
    task = {"key": jnp.int32(1), "start": jnp.int32(0), "level": jnp.int32(0)}
    _, timesteps, _ = hand.play(environment, task, turns)
    players = [int(one.player) for one in timesteps[:-1]]
    assert players == [int(turn.startswith("note")) for turn in turns]
    paid = np.asarray([one.reward for one in timesteps[1:]])
    # All that the reflector earns until its next turn.
    own = [*np.flatnonzero(players).tolist(), len(turns)]
    gains = [paid[begin:end, 1].sum() for begin, end in zip(own[:-1], own[1:], strict=True)]
    assert gains == reflected and paid[:, 0].sum() == bool(timesteps[-1].info["success"])
    assert int(timesteps[-1].info["metrics"]["trials"]) == trials
