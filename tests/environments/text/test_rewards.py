"""Rewards that come late, and those of a judge who errs."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.graded import with_graded
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.rewards import with_delay, with_judge
from jaxagents.environments.text.texts import text
from jaxagents.environments.text.world import Status, World

KEY = jax.random.key(0)
LATER, TWO, JUDGED = (functools.partial(with_delay), functools.partial(with_delay, num_turns=2), with_judge)


def coins(num_seats=1):
    """ "take" pays 1 and then 2, 4, ... to who takes, "leave" ends the episode with success; cut after five turns."""
    grammar = make_grammar("take", "leave")

    def play(key, state, verb, args):
        taken = state["taken"] + (verb == 0)
        return {"taken": taken, "turn": state["turn"] + 1, "left": state["left"] | (verb == 1)}

    def status(state):
        paid = (2.0 ** state["taken"] - 1.0) * jnp.where(jnp.arange(num_seats) == 0, 1.0, -1.0)
        return Status(success=state["left"], over=state["left"], payoff=paid)

    return World(
        name="coins",
        grammar=grammar,
        max_steps=5,
        num_seats=num_seats,
        sample=lambda key, level: {"number": jax.random.randint(key, (), 0, 100), "level": level},
        start=lambda key, task: {"taken": jnp.int32(0), "turn": jnp.int32(0), "left": jnp.bool_(False)},
        player=None if num_seats == 1 else lambda state: state["turn"] % 2,
        play=play,
        status=status,
        tell=lambda state, seat: text("coins"),
        expert=lambda key, state: (jnp.int32(1), grammar.args(), None),
    )


TASK = {"number": jnp.int32(1), "level": jnp.int32(0)}


@functools.cache
def made(wrap=None, num_seats=1, **options):
    wrappers = {} if wrap is None else {"wrap": wrap}
    return make_text_world(coins(num_seats), wrappers=wrappers, **options)


def rewards(hand, environment, spoken):
    return [np.asarray(timestep.reward).tolist() for timestep in hand.play(environment, TASK, spoken)[1]]


TAKEN = ["take"] * 4


@pytest.mark.parametrize(
    "wrap, last, expected",
    [
        (None, "leave", [0, 1, 2, 4, 8, 0]),
        (LATER, "leave", [0, 0, 0, 0, 0, 15]),
        (LATER, "take", [0, 0, 0, 0, 0, 31]),  # cut
        (TWO, "leave", [0, 0, 0, 1, 2, 12]),
        (TWO, "nonsense", [0, 0, 0, 1, 2, 12]),  # cut by a turn in which nothing happened
    ],
)
def test_all_that_is_withheld_comes_with_the_end(hand, wrap, last, expected):
    spoken = [*TAKEN, "coins" if last == "nonsense" else last]
    assert rewards(hand, made(wrap), spoken) == expected
    assert rewards(hand, made(wrap), [*spoken, "take"])[-1] == 0


def test_penalties_of_steps_are_paid_at_once(hand):
    assert rewards(hand, made(LATER, step_penalty=0.5), ["take", "leave"]) == [0, -0.5, 0.5]


def test_every_seat_has_its_delay(hand):
    assert rewards(hand, made(LATER, 2), ["take", "take", "leave"]) == [[0, 0], [0, 0], [0, 0], [3, -3]]


def verdicts(wrap, action, count=2000):
    environment = made(wrap)
    state, _ = environment.reset(KEY, TASK)
    act = jax.jit(jax.vmap(lambda key: environment.step(key, state, jnp.asarray([action]))[1]))
    timestep = act(jax.random.split(KEY, count))
    return np.asarray(timestep.reward), np.asarray(timestep.info["success"])


def judge(**options):
    return functools.partial(with_judge, **{"false_positive_rate": 0.2, "false_negative_rate": 0.4} | options)


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, 0.6),
        ({"num_votes": 3}, 0.6**3 + 3 * 0.6**2 * 0.4),
        ({"num_votes": 2}, 0.36),  # One of two is no majority.
        ({"num_votes": 4, "rule": "unanimous"}, 0.6**4),
        ({"false_negative_rate": 0.0}, 1.0),
    ],
)
def test_votes_are_counted(options, expected):
    reward, success = verdicts(judge(**options), made().text.words.index("leave"))
    np.testing.assert_allclose(reward.mean(), expected, atol=0.035)
    assert success.all() and set(reward.tolist()) <= {0.0, 1.0}


def test_a_judge_pays_failures_when_they_end_only(hand):
    always = judge(false_positive_rate=1.0, false_negative_rate=1.0)
    assert rewards(hand, made(always), ["take"] * 5) == [0, 0, 0, 0, 0, 1]
    assert rewards(hand, made(always), ["take", "leave"]) == [0, 0, 0]


def test_payouts_follow_each_other(hand):
    always = judge(false_positive_rate=1.0, false_negative_rate=0.0)
    both = make_text_world(coins(), wrappers={"late": TWO, "judge": always})
    assert rewards(hand, both, ["take", "leave"]) == [0, 0, 1]
    assert both.text.rules.name == "coins" and len(both.text.rules.payouts) == 2


@pytest.mark.parametrize(
    "wrap, message",
    [
        (functools.partial(with_delay, num_turns=0), "`num_turns` must be a positive number, got 0"),
        (judge(false_positive_rate=1.5), r"`false_positive_rate` must be in \[0, 1\], got 1.5"),
        (judge(rule="most"), "`rule` must be majority or unanimous, got 'most'"),
        (judge(num_votes=0), "`num_votes` must be a positive number, got 0"),
    ],
)
def test_what_cannot_be_paid_out_is_refused(wrap, message):
    with pytest.raises(ValueError, match=message):
        wrap(coins())


def test_a_judge_of_a_game_is_refused():
    with pytest.raises(ValueError, match="`world` must have one seat to be judged, got 2 in 'coins'"):
        judge()(coins(2))


def parted():
    """Coins whose report has what was taken, and whether the last turn took."""
    rules = coins()
    parts = lambda state: {"taken": state["taken"] / 4.0, "took": 1.0 - state["left"]}  # noqa: E731
    return replace(rules, status=lambda state: rules.status(state).replace(parts=parts(state)))


@pytest.mark.parametrize(
    "options, spoken, expected",
    [
        ({"weights": {"taken": 2.0, "success": 1.0}}, ["take", "take", "leave"], [0, 0.5, 0.5, 1]),
        ({"weights": {"taken": 2.0, "success": 1.0}}, TAKEN[:2] + ["coins"], [0, 0.5, 0.5, 0]),  # Not understood.
        # The gate is open while coins are taken: what was earned is lost with the end.
        ({"weights": {"taken": 2.0}, "gate": {"took": 1.0}}, ["take", "take", "leave"], [0, 0.5, 0.5, -1]),
        ({"weights": {"taken": 4.0}, "gate": {"success": 1.0}}, ["take", "take", "leave"], [0, 0, 0, 2]),
        ({"weights": {"taken": -1.0, "took": 1.0}}, ["take", "leave"], [0, -0.25, -1]),
    ],
)
def test_weighted_parts_are_paid_as_they_grow(hand, options, spoken, expected):
    wrap = functools.partial(with_graded, **options)
    environment = make_text_world(parted(), wrappers={"graded": wrap}, reward="dense")
    np.testing.assert_allclose(rewards(hand, environment, spoken), expected, atol=1e-6)


def test_sparse_rewards_are_those_of_success(hand):
    wrap = functools.partial(with_graded, weights={"taken": 2.0})
    environment = make_text_world(parted(), wrappers={"graded": wrap})
    assert rewards(hand, environment, ["take", "leave"]) == [0, 0, 1]


@pytest.mark.parametrize(
    "world, options, message",
    [
        (parted(), {"weights": {"kept": 1.0}}, "parts of 'coins', got 'kept'; there are success, taken, took"),
        (parted(), {"weights": {"taken": 1.0}, "gate": {"open": 1.0}}, "got 'open'; there are success, taken, took"),
        (coins(), {"weights": {"taken": 1.0}}, "got 'taken'; there are success"),
        (coins(), {"weights": {}}, "`weights` must hold at least one part, got none"),
        (coins(2), {"weights": {"success": 1.0}}, "`world` must have one seat to be graded, got 2 in 'coins'"),
    ],
)
def test_what_cannot_be_graded_is_refused(world, options, message):
    with pytest.raises(ValueError, match=message):
        with_graded(world, **options)
