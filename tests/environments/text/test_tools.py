"""Tools: registries, calls that build on others, errors, users, rules, graded parts, and how far it is."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import kuhn, tools
from jaxagents.environments.text import tools_rules as rules
from jaxagents.environments.text.call_grades import with_call_grades
from jaxagents.ops.call_grades import errors, toolrl

KEY = jax.random.key(0)
make = functools.cache(functools.partial(tools.make_environment, num_apps=16))


def task(act="ship", first=0, **changes):
    """An app: `find` leads from persons to orders, `open` to parcels, `fetch` to rooms; `list` looks like `find`."""
    person, order, room, parcel, flight, _ = range(6)
    numbers = {
        "name": [rules.NAMES.index(name) for name in ("find", "open", "fetch", "list", "send", "push", "set", "post")],
        "takes": [person, order, parcel, flight, order, parcel, room, parcel],
        "gives": [order, parcel, room, order, -1, -1, -1, -1],
        "does": [-1] * 4 + [rules.PURPOSES.index(name) for name in ("refund", "ship", "renew", "delay")],
        "dated": [0, 0, 0, 0, 0, 1, 0, 1],
        "shown": list(range(8)),
        "spare": rules.PURPOSES.index("cancel"),
        "app": 0,
        "act": 4 + ("refund", "ship", "renew", "delay").index(act),
        "first": first,
        "value": rules.VALUES.index("elm"),
        "day": rules.DAYS.index("friday"),
        # Look-ups turn a value into the next one.
        "results": [[(value + 1) % 10 for value in range(10)]] * 4,
        "level": 0,
    }
    shares = {"hidden": False, "careful": False, "impossible": False} | changes
    integers = {name: jnp.asarray(value, jnp.int32) for name, value in numbers.items()}
    return integers | {name: jnp.asarray(value) for name, value in shares.items()}


def metrics(timestep):
    return {name: round(float(value), 4) for name, value in timestep.info["metrics"].items()}


def test_the_prompt_documents_the_tools(hand):
    assert hand.prompt(make(), task()) == (
        "find takes person gives order open takes order gives parcel fetch takes parcel gives room "
        "list takes flight gives order send takes order does refund push takes parcel day does ship "
        "set takes room does renew post takes parcel day does delay user wants ship for person elm day friday"
    )
    assert hand.prompt(make(), task(careful=True, hidden=True)).endswith(
        "does delay rule confirm user wants ship for person"
    )
    assert hand.prompt(make(), task(impossible=True)).endswith("user wants cancel for person elm day friday")


def test_a_chain_of_calls_by_hand(hand):
    environment = make(reward="dense")
    spoken = ["call find person elm", "call open order fern", "call push parcel gold day friday"]
    texts, timesteps, state = hand.play(environment, task(), spoken)
    assert texts == ["ready", "order fern", "parcel gold", "done"]
    np.testing.assert_allclose([t.reward for t in timesteps], [0.0, 1 / 3, 1 / 3, 1 / 3], atol=1e-6)
    assert bool(timesteps[-1].info["success"]) and bool(timesteps[-1].terminated)
    expected = {"name": 1.0, "keys": 1.0, "values": 1.0, "format": 1.0, "error": 0.0, "state": 1.0}
    assert metrics(timesteps[-1]) == expected


def test_errors_are_told_and_counted(hand):
    spoken = [
        "call find elm person",  # What is a key, what a value?
        "call track person elm",  # Not in this app.
        "call find order elm",  # It takes persons.
        "call find person gold",  # Nobody spoke of gold.
        "call find person elm day friday",  # It takes no day.
        "call find person elm",
        "call push parcel gold",
    ]
    texts, timesteps, _ = hand.play(make(), task(), spoken)
    assert texts[1:] == [
        "error malformed",
        "error no such tool",
        "error wrong keys",
        "error unknown value",
        "error wrong keys",
        "order fern",
        "error wrong keys",
    ]
    # Of seven calls: find was right in five, `person` alone in three, `elm` alone in three; at last, open was needed.
    expected = {"name": 5, "keys": 3, "values": 3, "format": 6, "error": 6, "state": 0}
    assert metrics(timesteps[-1]) == {name: round(count / 7, 4) for name, count in expected.items()}
    assert not any(bool(t.terminated) for t in timesteps)


def test_a_wrong_act_fails(hand):
    spoken = ["call find person elm", "call open order fern", "call post parcel gold day friday"]
    _, timesteps, state = hand.play(make(), task(), spoken)
    assert bool(timesteps[-1].terminated) and not bool(timesteps[-1].info["success"])
    assert float(make().text.distance(state)) == np.inf


def test_a_user_tells_what_it_is_asked_for(hand):
    spoken = ["ask room", "ask parcel", "ask day", "call push parcel elm day friday"]
    texts, timesteps, _ = hand.play(make(hidden=0.5), task(first=2, hidden=True), spoken)
    assert texts == ["ready", "ready", "parcel elm", "day friday", "done"]
    assert bool(timesteps[-1].info["success"])


def test_a_rule_asks_for_confirmation(hand):
    act = "call push parcel elm day friday"
    one = task(first=2, careful=True)
    _, timesteps, _ = hand.play(make(), one, [act])
    assert bool(timesteps[-1].terminated) and not bool(timesteps[-1].info["success"])
    texts, timesteps, _ = hand.play(make(), one, ["confirm", act])
    assert texts[1] == "yes" and bool(timesteps[-1].info["success"])


def test_what_no_tool_does_is_refused(hand):
    for impossible in (True, False):
        _, timesteps, _ = hand.play(make(), task(impossible=impossible), ["refuse"])
        assert bool(timesteps[-1].terminated) and bool(timesteps[-1].info["success"]) == impossible


def test_what_is_known_is_recalled(hand):
    texts, _, _ = hand.play(make(recall=True), task(), ["call find person elm"])
    wants = "user wants ship for person elm day friday"
    assert texts == [f"{wants} person elm day friday ready", f"{wants} person elm order fern day friday order fern"]


def test_calls_fail_as_often_as_said():
    state = rules.start(KEY, task())
    verb, args, _ = rules.plan(state)
    play = jax.jit(jax.vmap(lambda key: rules.play(key, state, verb, args, failure_rate=0.3).error))
    errors = np.asarray(play(jax.random.split(KEY, 2000)))
    assert set(errors.tolist()) == {rules.FINE, rules.BUSY}
    np.testing.assert_allclose((errors == rules.BUSY).mean(), 0.3, atol=0.04)


@pytest.mark.exhaustive
def test_the_distance_is_that_of_a_search(hand):
    environment = make(hidden=0.5, policy=0.5, impossible=0.2, max_steps=50)
    distance = jax.jit(environment.text.distance)
    for level, index in [(0, 0), (1, 0), (1, 1), (2, 1), (3, 0)]:
        one = hand.row_of(hand.drawn_tasks(environment, 2, level), index)
        day, values = rules.DAYS[int(one["day"])], {int(value) for value in rules.truth(one)}
        spoken = [
            f"call {rules.NAMES[name]} {rules.TYPES[takes]} {rules.VALUES[value]}" + f" day {day}" * int(dated)
            for name, takes, dated in zip(one["name"], one["takes"], one["dated"], strict=True)
            for value in values
        ]
        spoken += [*(f"ask {key}" for key in rules.KEYS), "confirm", "refuse"]
        actions = jnp.stack([hand.action_ids(environment, words) for words in spoken])
        for state in hand.wander(environment, one, 6, jax.random.key(index))[::3]:
            assert float(distance(state)) == hand.fewest_actions(environment, state, actions, 8)


@pytest.mark.exhaustive
def test_levels_are_numbers_of_calls(hand):
    environment = make()
    reset = jax.jit(jax.vmap(environment.reset, in_axes=(None, 0)))
    for level in range(4):
        state = reset(KEY, hand.drawn_tasks(environment, 32, level))[0]
        assert set(jax.jit(jax.vmap(environment.text.distance))(state).tolist()) == {level + 1.0}


@pytest.mark.exhaustive
def test_held_out_apps_are_never_trained_on(hand):
    environment = make(num_apps=64, split="apps")
    trained, held_out = (set(hand.drawn_tasks(environment, 256, 0, held_out=h)["app"].tolist()) for h in (False, True))
    assert len(trained) > 20 and len(held_out) > 5 and not trained & held_out


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_calls": (5,)}, "from 1 to 4"),
        ({"hidden": 1.5}, r"in \[0, 1\]"),
        ({"split": "apps", "num_apps": 4}, "at least 16"),
        ({"hidden": 0.5, "policy": 0.5, "max_steps": 6}, "at least 7"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        tools.make_environment(**options)


def graded_rewards(hand, grade, spoken, **options):
    wrap = functools.partial(with_call_grades, grade=grade, **options)
    environment = tools.make_environment(num_apps=16, wrappers={"call_grades": wrap}, reward="dense")
    _, timesteps, _ = hand.play(environment, task(), spoken)
    return [float(t.reward) for t in timesteps[1:]], timesteps[-1]


def test_calls_are_graded_beside_those_of_the_expert(hand):
    spoken = [
        "call find person elm",  # Right.
        "call find person elm",  # Now open is: another tool.
        "call open order gold",  # Nobody spoke of gold: a wrong value.
        "call track order fern",  # Not in this app.
        "find order",  # Not read.
        "call open order fern",
        "call push parcel gold",  # The day is missing.
        "call push parcel gold day friday",
    ]
    earned, last = graded_rewards(hand, errors, spoken, average=False, exists=rules.documented)
    np.testing.assert_allclose(earned, [1, -1.5, -0.25, -2, -2, 1, -0.5, 1], atol=1e-5)
    np.testing.assert_allclose(last.info["metrics"]["grade"], -3.25 / 8, rtol=1e-5)
    earned, _ = graded_rewards(hand, errors, spoken[:4], average=False)
    np.testing.assert_allclose(earned[3], -1.5, atol=1e-5)  # Nobody says which tools there are.


def test_an_episode_earns_the_mean_grade(hand):
    spoken = ["call find person elm", "call open order gold", "find order", "call send order elm"]
    # 1 + 6 - 3; name and key, and not the value, of three: 1 + 4 - 3; nothing: -3; another name: 1 - 3.
    means = np.cumsum([4, 2, -3, -2]) / [1, 2, 3, 4]
    earned, last = graded_rewards(hand, toolrl, spoken)
    np.testing.assert_allclose(earned, np.diff([0, *means]), rtol=1e-5)
    np.testing.assert_allclose(last.info["metrics"]["grade"], 0.25, rtol=1e-5)


def test_games_are_not_graded_call_by_call():
    with pytest.raises(ValueError, match="`world` must have one seat to be graded, got 2 in 'kuhn"):
        with_call_grades(kuhn.make_environment().text.rules, grade=toolrl)
