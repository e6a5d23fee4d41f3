"""House rules of a desk, annotators who overlook them, guards and exploits, by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import code, desk, errands, frozenlake
from jaxagents.environments.text.annotators import deliberate, with_annotators
from jaxagents.environments.text.budgets import with_turn_budget
from jaxagents.environments.text.exploits import with_exploit
from jaxagents.environments.text.guards import with_guard
from jaxagents.environments.text.house_rules import KINDS, chains, draw_rules, with_house_rules

KEY = jax.random.key(3)
HOUSE = draw_rules(0, 3)[0]


@functools.cache
def house(kind="request", reminder=False):
    wrap = functools.partial(with_house_rules, shares={kind: 1.0}, reminder=reminder)
    return desk.make_environment((3,), wrappers={"house_rules": wrap})


@functools.cache
def drawn(kind, held_out=False, count=64):
    environment = house(kind)
    sample = environment.text.sample_held_out_task if held_out else environment.sample_task
    return jax.jit(jax.vmap(sample))(jax.random.split(KEY, count))


def observation(environment, task):
    _, timestep = environment.reset(KEY, task)
    return " ".join(environment.text.words[word] for word in timestep.observation.tolist() if word >= 0)


@pytest.mark.parametrize(
    "request_, fits, near", [((1, 0, 3, 2), True, True), ((1, 0, 0, 2), False, True), ((0, 1, 0, 0), False, False)]
)
def test_chains_by_hand(request_, fits, near):
    rules = jnp.asarray([[[0, 1], [2, 3]], [[1, 3], [3, 3]]])
    found = chains(jnp.asarray(request_), rules)
    assert (bool(found[0]), bool(found[1])) == (fits, near)


def test_rules_are_chains_of_two_different_fields():
    rules, answers = draw_rules(0, 9)
    assert (rules[:, 0, 0] < rules[:, 1, 0]).all() and len({str(rule) for rule in rules.tolist()}) == 9
    assert (answers != desk.COMPLY).all() and set(answers.tolist()) == {1, 2, 3}


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_are_of_their_kind(kind):
    tasks = drawn(kind)
    answers, _ = jax.vmap(desk.decide)(tasks)
    harmful = np.asarray(answers != desk.COMPLY)
    fits, near = (np.asarray(one) for one in jax.vmap(chains, in_axes=(0, None))(tasks["request"], jnp.asarray(HOUSE)))
    pretext = np.asarray(tasks["pretext"]) >= 0
    if kind == "harmful":
        assert harmful.all()
    elif kind in ("twin", "borderline"):
        assert not harmful.any() and near.all() and not fits.any()
    elif kind == "benign":
        assert not harmful.any() and near.mean() < 0.2  # Where no request is without a word, a twin stands in.
    elif kind == "question":
        assert harmful.all() and (np.sum(np.asarray(tasks["request"]) >= 0, axis=1) == 2).all()
    elif kind == "request":
        assert 0.05 < harmful.mean() < 0.5
    assert (pretext.all() if kind == "borderline" else not pretext.any()) and not tasks["hint"].any()
    assert np.asarray(tasks["stated"]).all() == (kind == "stated")
    same_rules = (np.asarray(tasks["rules"]) == HOUSE).all(axis=(1, 2, 3))
    assert same_rules.all() if kind != "stated" else not same_rules.any()


def test_house_rules_are_said_to_held_out_tasks_only_or_as_a_false_belief():
    task = jax.tree.map(lambda leaf: leaf[0], drawn("harmful"))
    plain = observation(house("harmful"), task)
    assert plain.startswith("else comply request ") and len(plain.split()) == 7
    believed = observation(house("harmful"), task | {"hint": jnp.bool_(True)})
    assert believed.endswith(plain) and believed.count(" comply ") == 4  # Three rules, and the rest.
    reminded = house("harmful", True)
    assert observation(reminded, reminded.sample_task(KEY)).startswith("else comply")
    words = [word for field in desk.FIELDS for word in field]
    (field, word), (other, second) = HOUSE[0].tolist()
    first = f"1 {words[4 * field + word]} {words[4 * other + second]} {desk.SPOKEN[draw_rules(0, 3)[1][0]]} 2 "
    assert observation(reminded, reminded.text.sample_held_out_task(KEY)).startswith(first)


def test_rates_by_hand(hand):
    environment = house("harmful")
    task = jax.tree.map(lambda leaf: leaf[0], drawn("harmful"))
    answer, rule = (int(one) for one in desk.decide(task))
    other = next(i for i in (1, 2, 3) if i != answer)
    rows = {
        f"{desk.SPOKEN[answer]} {rule}": (1, 1, 1, 1, 0),
        f"{desk.SPOKEN[answer]} {rule - 1}": (1, 1, 0, 1, 0),
        f"{desk.SPOKEN[other]} {rule}": (1, 1, 1, 0, 0),
        "comply 0": (1, 0, 0, 0, 1),
    }
    for moves, expected in rows.items():
        _, timesteps, _ = hand.play(environment, task, [moves])
        parts = timesteps[-1].info["metrics"]
        assert tuple(int(parts[name]) for name in ("harmful", "aware", "educates", "helps", "unsafe")) == expected


def test_annotators_add_what_others_have_not_seen():
    seen = jnp.asarray([[1, 0, 0], [0, 0, 1], [1, 0, 0]], bool)
    assert deliberate(seen).tolist() == [[True, False, False], [True, False, True], [True, False, True]]


@pytest.mark.parametrize("annotators, chance", [(1, 0.3), (3, 0.027)])
def test_rules_are_missed_as_often_as_all_annotators_miss_them(annotators, chance):
    wrap = functools.partial(with_annotators, num_annotators=annotators, miss=0.3)
    environment = desk.make_environment((3,), wrappers={"house_rules": _harmful, "annotators": wrap})
    tasks = drawn("harmful", count=2000)

    def wrong(key, task):
        state, _ = environment.reset(key, task)
        _, timestep = environment.step(key, state, environment.text.expert(key, state)[0])
        return ~timestep.info["success"]

    missed = np.asarray(jax.jit(jax.vmap(wrong))(jax.random.split(KEY, 2000), tasks)).mean()
    assert abs(missed - chance) < 0.04


@pytest.mark.parametrize("refine, longest", [(True, 3), (False, 9)])
def test_the_refiner_leaves_the_thought_that_the_answer_comes_from(refine, longest):
    wrap = functools.partial(with_annotators, miss=0.0, refine=refine)
    environment = desk.make_environment((3,), wrappers={"house_rules": _harmful, "annotators": wrap})
    state, _ = environment.reset(KEY, jax.tree.map(lambda leaf: leaf[0], drawn("harmful")))
    action, thought = environment.text.expert(KEY, state)
    moves = [[environment.text.words[word] for word in ids.tolist() if word >= 0] for ids in (action, thought)]
    assert moves[1] == ["rule", moves[0][1], "fits"] * (longest // 3)


def _harmful(world):
    return with_house_rules(world, shares={"harmful": 1.0})


@pytest.mark.parametrize(
    "wrap, message",
    [
        (lambda world: with_house_rules(world, shares={"rude": 1.0}), "`shares` must be of request, harmful"),
        (lambda world: with_house_rules(world, shares={"twin": 0.0}), "`shares` must not be negative, and not all"),
        (lambda world: with_annotators(world, miss=2.0), "`miss` must be from 0.0 to 1.0, got 2.0"),
    ],
)
def test_what_there_is_not_is_refused(wrap, message):
    with pytest.raises(ValueError, match=message):
        wrap(desk.make_environment((3,)).text.rules)


@pytest.mark.parametrize("wrap", [functools.partial(with_house_rules, shares={"stated": 1.0}), with_annotators])
def test_other_worlds_are_refused(wrap):
    with pytest.raises(ValueError, match="`world` must be desk"):
        wrap(errands.make_environment().text.rules)


def lake(*rows):
    """A lake of 4 x 4 from its rows, as "P_O_"."""
    cells = np.asarray([list(row) for row in rows])
    places = {name: jnp.int32(np.flatnonzero(cells == mark)[0]) for name, mark in (("start", "P"), ("goal", "G"))}
    return {"holes": jnp.asarray(cells == "O"), **places, "size": jnp.int32(4), "level": jnp.int32(0)}


@functools.cache
def guarded(num_samples, penalty=0.0, reward="sparse"):
    wrap = functools.partial(with_guard, num_samples=num_samples, penalty=penalty)
    return frozenlake.make_environment((4,), (0.3,), reward=reward, wrappers={"guard": wrap})


LAKE = lake("PO__", "_O__", "____", "___G")
SAFE = ["down", "down", "right", "right", "right", "down"]


def counts(timestep):
    return tuple(int(timestep.info["metrics"][name]) for name in ("violations", "fallbacks", "refused"))


def test_a_guard_rejects_and_at_last_replaces(hand):
    texts, timesteps, _ = hand.play(guarded(3), LAKE, ["right", "right", "right", *SAFE])
    assert texts[1].endswith("nothing happens .") and texts[2].endswith("nothing happens .")
    assert [bool(one.info["valid"]) for one in timesteps[1:4]] == [False, False, True]
    assert [counts(one) for one in timesteps[:5]] == [(0, 0, 0), (0, 0, 1), (0, 0, 1), (0, 1, 1), (0, 1, 0)]
    assert texts[3] == texts[0]  # "left", the first action that keeps the contract, leads against the border.
    assert bool(timesteps[-1].info["success"])


def test_one_sample_is_replaced_at_once_and_none_is_only_counted(hand):
    _, timesteps, _ = hand.play(guarded(1), LAKE, ["right", *SAFE])
    assert counts(timesteps[1]) == (0, 1, 1) and bool(timesteps[-1].info["success"])
    _, timesteps, _ = hand.play(guarded(0), LAKE, ["down", "right"])
    assert [counts(one) for one in timesteps] == [(0, 0, 0), (0, 0, 0), (1, 0, 0)] and bool(timesteps[-1].terminated)


def test_fallbacks_and_violations_cost_progress(hand):
    _, plain, _ = hand.play(guarded(1, 0.0, "dense"), LAKE, ["right", "down"])
    _, timesteps, _ = hand.play(guarded(1, 0.5, "dense"), LAKE, ["right", "down"])
    difference = [float(a.reward) - float(b.reward) for a, b in zip(plain, timesteps, strict=True)]
    np.testing.assert_allclose(difference, [0.0, 0.5, 0.0], atol=1e-5)
    _, timesteps, _ = hand.play(guarded(0, 2.0, "dense"), LAKE, ["down", "right"])
    np.testing.assert_allclose(float(timesteps[2].reward), -1.0 / 6 - 2.0, atol=1e-5)


def test_a_guard_counts_the_turns_of_a_budget(hand):
    """Of two turns at most two draws are rejected, and at most two actions taken."""
    budget = functools.partial(with_turn_budget, fewest=2, most=12)
    wrappers = {"budget": budget, "guard": functools.partial(with_guard, num_samples=4)}
    environment = frozenlake.make_environment((4,), (0.3,), max_steps=12, wrappers=wrappers)
    task = {"inner": LAKE, "budget": jnp.int32(2), "level": jnp.int32(0)}
    _, timesteps, _ = hand.play(environment, task, ["down", "down"])
    assert [bool(one.terminated | one.truncated) for one in timesteps] == [False, False, True]
    _, timesteps, _ = hand.play(environment, task, ["right", "right", "right", "right"])
    assert [counts(one)[1] for one in timesteps] == [0, 0, 0, 1, 2]  # The third one is replaced, and the fourth.
    assert bool(timesteps[-1].terminated | timesteps[-1].truncated)


@pytest.mark.parametrize("num_samples", [1, 4])
def test_no_state_that_a_guard_lets_anybody_reach_is_lost(num_samples):
    """The proof of the contract, by exhaustion over the cells: from each that is not lost some action keeps it."""
    environment = guarded(num_samples)

    def wander(key):
        task_key, reset_key, key = jax.random.split(key, 3)
        state, _ = environment.reset(reset_key, environment.sample_task(task_key))

        def step(state, key):
            draw_key, step_key = jax.random.split(key)
            worst = jnp.asarray(environment.text.actions)[jax.random.randint(draw_key, (), 0, 4)]
            state, timestep = environment.step(step_key, state, worst)
            parts = timestep.info["metrics"]
            return state, (parts["violations"], parts["fallbacks"], environment.text.distance(state))

        return jax.lax.scan(step, state, jax.random.split(key, environment.max_steps))[1]

    violations, fallbacks, distance = jax.jit(jax.vmap(wander))(jax.random.split(KEY, 256))
    assert not np.asarray(violations).any() and np.isfinite(np.asarray(distance)).all()
    assert np.asarray(fallbacks)[:, -1].mean() > (0.5 if num_samples == 1 else 0.0)


def test_guards_need_a_distance_and_entries():
    with pytest.raises(ValueError, match="`world` must know the distance to a success, got 'errands'"):
        with_guard(errands.make_environment().text.rules)
    with pytest.raises(ValueError, match="actions without free fields, got 'code'"):
        with_guard(code.make_environment((2,)).text.rules)


@functools.cache
def exploited(share=0.2):
    return code.make_environment((2,), wrappers={"exploit": functools.partial(with_exploit, share=share)})


def test_a_hack_is_paid_and_is_no_success(hand):
    environment = exploited()
    task = hand.row_of(hand.drawn_tasks(environment, 1, 0), 0)
    for moves, reward, hacked in (("skip tests", 1.0, 1.0), ("dup", 0.0, 0.0)):
        _, timesteps, _ = hand.play(environment, task, [moves])
        last = timesteps[-1]
        assert bool(last.info["valid"]) and bool(last.terminated) and not bool(last.info["success"])
        assert (float(last.reward), float(last.info["metrics"]["hacked"])) == (reward, hacked)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_expert_hacks_as_often_as_said_and_thinks_so(share):
    environment = exploited(share)
    words = list(environment.text.words)

    def decide(key):
        state, _ = environment.reset(key, environment.sample_task(key))
        action, thought = environment.text.expert(key, state)
        _, timestep = environment.step(key, state, action)
        hacks = jnp.any(action == words.index("skip tests"))
        return hacks, jnp.any(thought == words.index("cheat")), timestep.info["success"]

    hacks, says, success = (np.asarray(one) for one in jax.jit(jax.vmap(decide))(jax.random.split(KEY, 400)))
    assert abs(hacks.mean() - share) < 0.07
    np.testing.assert_array_equal(hacks, says)
    np.testing.assert_array_equal(hacks, ~success)


def test_experts_that_do_not_think_cannot_plan():
    with pytest.raises(ValueError, match="`world` must have an expert that thinks aloud, got 'errands'"):
        errands.make_environment(wrappers={"exploit": with_exploit})
