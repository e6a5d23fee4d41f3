"""Wrappers of the world of tools, by hand: programs of calls, and what is documented."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import codeact, crafting, fintoolbench, ml_bench, tools
from jaxagents.environments.text import tools_rules as rules
from tests.environments.text.test_tools import task
from tests.fakes import jitted

KEY = jax.random.key(0)
WANTS = "user wants ship for person elm day friday"


@functools.cache
def make(name, **options):
    wrap = {
        "programs": codeact.with_programs,
        "documentation": ml_bench.with_documentation,
        "attributes": fintoolbench.with_attributes,
    }[name]
    return jitted(tools.make_environment(num_apps=16, wrappers={name: functools.partial(wrap, **options)}))


def expert_says(environment, given, turns):
    """What the expert says, turn by turn, and whether it succeeds at the end."""
    state, timestep = environment.reset(KEY, given)
    moves = []
    for _ in range(turns):
        action = environment.text.expert(KEY, state)[0]
        moves.append(" ".join(environment.text.words[i] for i in np.asarray(action).tolist() if i >= 0))
        state, timestep = environment.step(KEY, state, action)
    return moves, bool(timestep.info["success"])


@pytest.mark.parametrize(
    "spoken, texts, success",
    [
        (["run find open push with person elm day friday"], ["done"], True),
        (["run find open with person elm", "call push parcel gold day friday"], ["parcel gold", "done"], True),
        # What was looked up before an error stays known.
        (
            ["run find push with person elm day friday", "run open push with order fern day friday"],
            ["error wrong keys", "done"],
            True,
        ),
        (
            ["run open push with order elm day friday", "call find person elm"],
            ["error unknown value", "order fern"],
            False,
        ),
        (["run send find with order elm"], ["error unknown value"], False),
        (["call find person elm", "run send find with order fern"], ["order fern", "done"], False),  # An act ends it.
    ],
)
def test_programs_hand_results_on(hand, spoken, texts, success):
    observed, timesteps, _ = hand.play(make("programs"), task(), spoken)
    assert observed[1:] == texts and bool(timesteps[-1].info["success"]) == success
    assert all(bool(t.info["valid"]) for t in timesteps[1:])


def test_the_expert_programs_where_more_than_one_call_is_left():
    environment = make("programs")
    assert expert_says(environment, task(), 1) == (["run find open push with person elm day friday"], True)
    assert expert_says(environment, task("refund"), 1) == (["run find send with person elm"], True)
    assert expert_says(environment, task(first=2), 1) == (["call push parcel elm day friday"], True)
    asked, success = expert_says(environment, task(hidden=True, careful=True), 4)
    assert asked == ["ask person", "ask day", "confirm", "run find open push with person elm day friday"] and success
    assert expert_says(environment, task(impossible=True), 1) == (["refuse"], True)


def test_programs_of_two_calls_leave_longer_ways_to_calls():
    assert expert_says(make("programs", max_calls=2), task(), 2) == (
        ["call find person elm", "run open push with order fern day friday"],
        True,
    )


@pytest.mark.parametrize(
    "options, expected",
    [
        (
            {"show": "needed"},
            "find takes person gives order open takes order gives parcel push takes parcel day does ship",
        ),
        # log 6 for ship, and for person; log 3.6 for day: push 3.07, find 1.79, post 1.28.
        (
            {"show": "retrieved"},
            "find takes person gives order push takes parcel day does ship post takes parcel day does delay",
        ),
        ({"show": "retrieved", "count": 1}, "push takes parcel day does ship"),
        ({"show": "search"}, ""),
    ],
)
def test_prompts_document_what_is_shown(hand, options, expected):
    assert hand.prompt(make("documentation", **options), task()) == f"{expected} {WANTS}".strip()


def test_all_is_what_the_world_documents(hand):
    assert hand.prompt(make("documentation", show="all"), task()) == hand.prompt(
        tools.make_environment(num_apps=16), task()
    )


def test_documentation_is_searched_for(hand):
    spoken = ["search ship", "search order", "search person", "call find person elm", "search cancel"]
    texts, _, _ = hand.play(make("documentation", show="search"), task(), spoken)
    assert texts == [
        "ready",
        "push takes parcel day does ship",
        "find takes person gives order list takes flight gives order",
        "error",
        "order fern",
        "error",
    ]


def test_the_expert_searches_backwards_for_what_it_needs():
    environment = make("documentation", show="search")
    calls = ["call find person elm", "call open order fern", "call push parcel gold day friday"]
    assert expert_says(environment, task(), 6) == (["search ship", "search parcel", "search order", *calls], True)
    assert expert_says(environment, task(impossible=True), 2) == (["search cancel", "refuse"], True)


def test_retrieval_under_vmap():
    tasks = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), task())
    shown = jax.vmap(lambda given: ml_bench.retrieved(given, 3))(tasks)
    assert [np.flatnonzero(row).tolist() for row in shown] == [[0, 5, 7]] * 2
    assert np.flatnonzero(ml_bench.needed(task())).tolist() == [0, 1, 5]


WRAPPERS = [codeact.with_programs, ml_bench.with_documentation, fintoolbench.with_attributes]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_other_worlds_are_refused(wrap):
    with pytest.raises(ValueError, match="`world` must be tools.*got 'crafting'"):
        wrap(crafting.make_environment((1,)).text.rules)


def test_programs_of_one_call_are_refused():
    with pytest.raises(ValueError, match="`max_calls` must be at least 2, got 1"):
        make("programs", max_calls=1)
    assert rules.CALL == 0  # As the template stands first.


def twins():
    """The last tool does what the user wants, too, and only informs."""
    given, others = task(), [2, 1, 2]
    kinds = [[0, 2, 1]] * 3 + [others, others, [0, 2, 1], others, [0, 0, 1]]
    ship = rules.PURPOSES.index("ship")
    return given | {"attributes": jnp.asarray(kinds, jnp.int32), "does": given["does"].at[7].set(ship)}


def test_cards_say_attributes(hand):
    wanted, any_other = "live trades bonds", "static advises funds"
    assert hand.prompt(make("attributes"), twins()) == (
        f"find takes person gives order {wanted} open takes order gives parcel {wanted} "
        f"fetch takes parcel gives room {wanted} list takes flight gives order {any_other} "
        f"send takes order does refund {any_other} push takes parcel day does ship {wanted} "
        f"set takes room does renew {any_other} post takes parcel day does ship live informs bonds "
        f"{WANTS} must be {wanted}"
    )
    blind = hand.prompt(make("attributes", cards=False), twins())
    assert blind == hand.prompt(tools.make_environment(num_apps=16), twins()) + f" must be {wanted}"


def test_calls_are_checked_before_they_are_executed(hand):
    spoken = ["call find person elm", "call open order fern", "call post parcel gold day friday"]
    texts, timesteps, _ = hand.play(make("attributes"), twins(), [*spoken, "call push parcel gold day friday"])
    assert texts == ["ready", "order fern", "parcel gold", "mismatch", "done"]
    assert bool(timesteps[-1].info["success"])

    def parts(timestep):
        names = ("called", "executed", "timeliness", "intent", "domain")
        return [float(timestep.info["metrics"][name]) for name in names]

    assert parts(timesteps[0]) == [0, 0, 0, 0, 0]
    assert parts(timesteps[3]) == [1, 0, 0, 0, 0] and parts(timesteps[4]) == [1, 1, 0, 0, 0]
    texts, timesteps, _ = hand.play(make("attributes", filters=False), twins(), spoken)
    assert texts[-1] == "done" and not bool(timesteps[-1].info["success"])
    assert parts(timesteps[-1]) == [1, 1, 0, 1, 0]  # Executed, and more than was wanted.
    _, timesteps, _ = hand.play(make("attributes", filters=False), twins(), ["call send order elm"])
    assert parts(timesteps[-1]) == [1, 0, 1, 1, 1]  # An error, of a tool of which nothing fits.


def test_one_other_act_differs_in_one_attribute(hand):
    tasks = jax.tree.map(np.asarray, hand.drawn_tasks(make("attributes"), 64, 1))
    rows = np.arange(64)
    act, kinds = tasks["act"], tasks["attributes"]
    alike = tasks["does"] == tasks["does"][rows, act][:, None]
    assert (alike.sum(1) == 2).all()
    twin = np.argmax(alike & (np.arange(8)[None] != act[:, None]), axis=1)
    assert ((kinds[rows, act] != kinds[rows, twin]).sum(1) == 1).all()
    for name in ("takes", "dated"):
        assert (tasks[name][rows, act] == tasks[name][rows, twin]).all()
    assert (kinds[:, :3] == kinds[rows, act][:, None]).all()
