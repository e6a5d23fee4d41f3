"""A planner by hand: what executors do for sub-goals, what memory holds, who stops an episode, and when."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import agentflow, crafting, kuhn, tools
from jaxagents.environments.text.turns import strong
from tests.environments.text import test_crafting
from tests.environments.text.test_tools import task
from tests.fakes import jitted

KEY = jax.random.key(0)


@functools.cache
def plan_tools(num_calls=(1, 2, 3), max_steps=8, failure_rate=0.0, **options):
    wrap = functools.partial(agentflow.with_planner, executor=agentflow.call_tools, **options)
    return jitted(
        tools.make_environment(
            num_calls, num_apps=16, max_steps=max_steps, failure_rate=failure_rate, wrappers={"planner": wrap}
        )
    )


@functools.cache
def plan_crafting(**options):
    wrap = functools.partial(agentflow.with_planner, executor=agentflow.follow_recipes, **options)
    return jitted(crafting.make_environment((1, 2), wrappers={"planner": wrap}))


def ends(timesteps):
    """Returns how the last step ended: terminated, truncated, with success."""
    last = timesteps[-1]
    return bool(last.terminated), bool(last.truncated), bool(last.info["success"])


FOUND, OPENED = "use find order fern .", "use open parcel gold ."


@pytest.mark.parametrize(
    "spoken, last, end",
    [
        (["use find", "use open", "use push"], f"{FOUND} {OPENED} use push done .", (True, False, True)),
        (
            ["use find", "use open", "use post"],
            f"{FOUND} {OPENED} use post done .",
            (True, False, False),
        ),
        # Above an act that nobody wants. Nothing is known of orders; there is no such tool; the turns do not suffice.
        (
            ["use open", "use track", "use find"],
            f"use open error unknown value . use track error no such tool . {FOUND}",
            (False, True, False),
        ),
        # What needs no tool is what it is in the world.
        (
            ["ask person", "confirm", "refuse"],
            "ask person person elm . confirm yes . refuse done .",
            (True, False, False),
        ),
    ],
)
def test_tools_are_called_with_what_memory_holds(hand, spoken, last, end):
    texts, timesteps, _ = hand.play(plan_tools(), task(), spoken)
    assert texts[0] == "ready" and texts[-1] == last and ends(timesteps) == end
    entries = [f"{entry.strip()} ." for entry in last.split(".")[:-1]]
    assert texts[1:] == [" ".join(entries[:count]) for count in (1, 2, 3)]
    assert all(bool(one.info["valid"]) for one in timesteps)
    assert [float(one.reward) for one in timesteps] == [0.0, 0.0, 0.0, float(end[2])]


def test_what_is_no_sub_goal_takes_a_turn_and_is_remembered(hand):
    texts, timesteps, state = hand.play(plan_tools(), task(first=1), ["find", "use open", "use open", "use push"])
    assert texts[1:3] == ["none ready . nothing happens .", "none ready . use open parcel fern ."]
    assert [bool(one.info["valid"]) for one in timesteps] == [True, False, True, True, True]
    assert ends(timesteps[:-1]) == (False, True, False)
    # After the end nothing changes.
    assert texts[4] == texts[3] == f"{texts[2]} use open parcel fern ." and float(timesteps[-1].reward) == 0.0
    assert int(state.inner["left"]) == 6 and int(state.inner["turn"]) == 3


def test_a_busy_tool_is_called_again_while_steps_are_left(hand):
    """Two steps of the world for a sub-goal, and three for the episode."""
    environment = plan_tools((1,), 3, 1.0, num_steps=2)
    texts, timesteps, state = hand.play(environment, task(first=2), ["use push"])
    assert texts[1] == "use push error busy ." and ends(timesteps) == (False, False, False)
    assert int(state.inner["inner"].counts[0]) == 2 and int(state.inner["left"]) == 1
    texts, timesteps, state = hand.play(environment, task(first=2), ["use push", "use push"])
    assert texts[2] == "use push error busy . use push error busy ." and ends(timesteps) == (True, False, False)
    assert int(state.inner["inner"].counts[0]) == 3 and int(state.inner["left"]) == 0


def test_an_episode_whose_last_step_is_that_of_the_last_sub_goal_is_truncated(hand):
    _, timesteps, state = hand.play(plan_tools((1,), 3, 1.0), task(first=2), ["use push"] * 3)
    assert ends(timesteps) == (False, True, False) and int(state.inner["left"]) == 0


def test_a_verifier_that_errs_stops_before_the_end(hand):
    environment = plan_tools(false_stop_rate=1.0)
    texts, timesteps, _ = hand.play(environment, task(), ["use find"])
    assert texts[1] == FOUND and ends(timesteps) == (True, False, False)
    _, timesteps, _ = hand.play(environment, task(first=2), ["use push"])
    assert ends(timesteps) == (True, False, True) and float(timesteps[-1].reward) == 1.0


@pytest.mark.parametrize(
    "num_steps, spoken, packs, left",
    [
        (5, ["make plank", "make pole"], ["plank", "pole"], 6),
        # What a pole lacks besides iron is a sub-goal of its own.
        (5, ["make pole", "make plank", "make pole"], ["iron", "iron plank", "pole"], 6),
        (1, ["make plank", "make plank", "make pole"], ["wood", "plank", "iron plank"], 7),
    ],
)
def test_recipes_are_followed_for_one_good(hand, num_steps, spoken, packs, left):
    environment = plan_crafting(num_steps=num_steps)
    texts, timesteps, state = hand.play(environment, test_crafting.task("pole"), spoken)
    entries = [f"{goal} goal pole pack {pack} ." for goal, pack in zip(spoken, packs, strict=True)]
    assert texts == ["goal pole pack", *(" ".join(entries[: n + 1]) for n in range(len(entries)))]
    won = packs[-1] == "pole"
    assert ends(timesteps) == (won, not won, won) and int(state.inner["left"]) == left


@pytest.mark.parametrize("make", [plan_tools, lambda: plan_crafting(num_steps=5)], ids=["tools", "crafting"])
def test_a_planner_that_knows_succeeds(tiny, make):
    steps, _, _ = tiny.run_expert(make(), 32)
    assert steps.info["success"][:, -1].all() and steps.info["valid"].all()


def test_executors_call_what_the_expert_would():
    rules = tools.make_environment(num_apps=16, hidden=0.4, policy=0.4, impossible=0.2).text.rules
    executor = agentflow.call_tools(rules)

    def compare(key, level):
        def follow(state, key):
            verb, args, _ = rules.expert(key, state)
            own_verb, own_args = executor.act(state, *executor.choose(key, state))
            same = (own_verb == verb) & jnp.all(own_args == args)
            return strong(rules.play(key, state, verb, args)), same | rules.status(state).over

        return jax.lax.scan(follow, strong(rules.start(key, rules.sample(key, level))), jax.random.split(key, 7))[1]

    same = jax.jit(jax.vmap(compare))(jax.random.split(KEY, 128), jnp.arange(128) % 4)
    assert np.asarray(same).all()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_turns": 0}, "`max_turns` must be a positive number"),
        ({"num_steps": 0}, "`num_steps` must be a positive number"),
        ({"false_stop_rate": 1.5}, "`false_stop_rate` must be from 0.0 to 1.0, got 1.5"),
        ({"executor": agentflow.follow_recipes}, "`world` must be crafting for this executor, got 'tools'"),
    ],
)
def test_planners_of_other_worlds_and_numbers_are_refused(options, message):
    rules = tools.make_environment(num_apps=16).text.rules
    with pytest.raises(ValueError, match=message):
        agentflow.with_planner(rules, **({"executor": agentflow.call_tools} | options))


def test_games_of_several_seats_are_refused():
    with pytest.raises(ValueError, match="`world` must have one seat for a planner, got 2"):
        agentflow.with_planner(kuhn.make_environment().text.rules, executor=agentflow.call_tools)
