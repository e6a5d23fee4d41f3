"""Worlds of guessing: twenty questions, a number, mastermind."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import guess_number, mastermind, twentyq

KEY = jax.random.key(0)
questions = functools.cache(functools.partial(twentyq.make_environment, (3, 8)))
number = functools.cache(functools.partial(guess_number.make_environment, (31,)))
code = functools.cache(functools.partial(mastermind.make_environment, (4, 6)))


def three_candidates(target):
    rows = [[twentyq.VALUES.index(word) for word in row.split()] for row in CANDIDATES] + [[-1] * 3] * 5
    return {"candidates": jnp.asarray(rows, jnp.int32), "target": jnp.int32(target), "level": jnp.int32(0)}


CANDIDATES = ("red small flat", "red large round", "blue small flat")


def test_questions_by_hand(hand):
    environment = questions()
    task = three_candidates(1)
    assert hand.prompt(environment, task) == "a red small flat b red large round c blue small flat"
    texts, timesteps, _ = hand.play(environment, task, ["ask small", "ask red", "ask red", "guess d", "guess b"])
    assert texts == ["ask", "no", "yes", "yes nothing happens .", "yes nothing happens .", "yes"]
    assert [bool(t.info["valid"]) for t in timesteps] == [True, True, True, False, False, True]
    assert [float(t.info["metrics"]["ruled_out"]) for t in timesteps[:3]] == [0.0, 1.0, 1.0]
    assert bool(timesteps[-1].info["success"]) and float(timesteps[-1].reward) == 1.0


def test_a_wrong_guess_ends_the_questions(hand):
    _, timesteps, _ = hand.play(questions(reward="dense"), three_candidates(1), ["ask red", "guess a"])
    assert bool(timesteps[-1].terminated) and not bool(timesteps[-1].info["success"])
    # One of the two others is ruled out, which the wrong guess takes back.
    assert [float(t.reward) for t in timesteps] == [0.0, 0.5, -0.5]


def test_answers_are_recalled(hand):
    environment = questions(recall=True)
    texts, _, state = hand.play(environment, three_candidates(0), ["ask red", "ask round"])
    assert texts == ["ask", "ask yes red", "ask yes red no round"]
    other = hand.play(environment, three_candidates(0), ["ask round", "ask red"])[2]
    assert environment.text.fingerprint(state) == environment.text.fingerprint(other)


@pytest.mark.parametrize("level, most", [(0, 3), (1, 7)])
def test_questions_of_the_expert_narrow_the_candidates(hand, level, most):
    environment = questions()
    reset, step, expert = jax.jit(environment.reset), jax.jit(environment.step), jax.jit(environment.text.expert)
    tasks = hand.drawn_tasks(environment, 16, level)
    for row in range(16):
        state, timestep = reset(KEY, hand.row_of(tasks, row))
        turns = 0
        while not timestep.terminated:
            state, timestep = step(KEY, state, expert(jax.random.key(turns), state)[0])
            turns += 1
        assert bool(timestep.info["success"]) and turns <= most


def test_candidates_are_all_different(hand):
    rows = np.asarray(hand.drawn_tasks(questions(), 64, 1)["candidates"])
    assert all(len({tuple(row) for row in rows[i].tolist()}) == 8 for i in range(64))


def test_a_number_by_hand(hand):
    task = {"secret": jnp.int32(12), "lowest": jnp.int32(1), "largest": jnp.int32(31), "level": jnp.int32(0)}
    texts, timesteps, _ = hand.play(number(), task, ["8", "1 6", "higher", "1 2"])
    assert texts[:4] == ["guess 1 to 3 1", "higher", "lower", "lower nothing happens ."]
    assert bool(timesteps[-1].info["success"])
    # 31, then 23 from 9 on, then 7 up to 15 are left.
    certain = [float(t.info["metrics"]["certainty"]) for t in timesteps]
    np.testing.assert_allclose(certain[:3], 1 - np.log([31, 23, 7]) / np.log(31), atol=1e-6)
    texts, _, _ = hand.play(number(recall=True), task, ["8", "1 6"])
    assert texts == ["guess 1 to 3 1", "guess 9 to 3 1", "guess 9 to 1 5"]


@pytest.mark.parametrize(
    "guess, hidden, answer",
    [
        ("red green blue", "red green blue", (3, 0)),
        ("red red blue", "red blue red", (1, 2)),
        ("red red red", "green blue red", (1, 0)),
        ("green green blue", "red green green", (1, 1)),
        ("red green blue", "yellow white black", (0, 0)),
    ],
)
def test_answers_of_mastermind_by_hand(guess, hidden, answer):
    rows = [jnp.asarray([mastermind.COLOURS.index(word) for word in row.split()]) for row in (guess, hidden)]
    assert tuple(jax.jit(mastermind.compare)(*rows).tolist()) == answer


def test_mastermind_by_hand(hand):
    task = {"code": jnp.asarray([0, 1, 1], jnp.int32), "colours": jnp.arange(6) < 4, "level": jnp.int32(0)}
    texts, timesteps, state = hand.play(code(), task, ["red red green", "red green", "red green green"])
    assert texts[0] == "guess red green blue yellow"
    assert texts[1] == "red red green 2 right 0 misplaced"
    assert texts[2] == texts[1] + " nothing happens ."
    assert bool(timesteps[-1].info["success"])
    one = hand.play(code(), task, ["red red red"])[2].inner.possible
    # Exactly one red of three places, the other two of three colours.
    assert int(one.sum()) == 3 * 9


def test_numbers_may_begin_elsewhere_and_colours_are_drawn(hand):
    tasks = hand.drawn_tasks(guess_number.make_environment((7,), num_starts=20), 128, 0)
    lowest, secret = tasks["lowest"], tasks["secret"]
    assert (tasks["largest"] - lowest == 6).all() and set(lowest.tolist()) == set(range(1, 21))
    assert ((secret >= lowest) & (secret <= tasks["largest"])).all()
    tasks = hand.drawn_tasks(code(), 128, 0)
    assert (tasks["colours"].sum(axis=1) == 4).all() and len({tuple(row) for row in tasks["colours"].tolist()}) == 15
    assert all(tasks["colours"][row, tasks["code"][row]].all() for row in range(128))


@pytest.mark.parametrize(
    "make, options, message",
    [
        (twentyq.make_environment, {"num_candidates": (17,)}, "from 2 to 16"),
        (twentyq.make_environment, {"max_steps": 1}, "time for a question"),
        (guess_number.make_environment, {"largest": (2,)}, "from 3 to 999"),
        (guess_number.make_environment, {"max_steps": 5}, "at least 7"),
        (guess_number.make_environment, {"num_starts": 950}, "numbers below 1000, got 950"),
        (mastermind.make_environment, {"num_colours": (7,)}, "from 2 to 6"),
        (mastermind.make_environment, {"length": 5}, "from 2 to 4"),
    ],
)
def test_wrong_options_are_refused(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
