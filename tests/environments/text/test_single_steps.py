"""Steps that are graded by the expert's, and questions about what lies between two observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import crafting, scene
from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.expert_steps import GRADES, field_f1, with_expert_steps
from jaxagents.environments.text.transitions import with_transitions
from tests.fakes import jitted

CAT = list(scene.PATTERNS).index("cat")
KEY = jax.random.key(3)


def picture(*, finds=False, turned=False, ahead=0):
    flags = {"finds": finds, "turned": turned, "inverted": False}
    inner = {"objects": jnp.asarray([[CAT, 2, 0]]), "side": jnp.int32(4), "level": jnp.int32(0)}
    inner |= {name: jnp.bool_(value) for name, value in flags.items()}
    return {"inner": inner, "ahead": jnp.int32(ahead), "level": jnp.int32(0)}


@pytest.fixture(scope="module")
def pictures():
    rules = scene.make_environment((1,)).text.rules
    return make_text_world(with_expert_steps(rules, num_steps=2), reward="sparse")


@pytest.mark.parametrize(
    "task, move, expected",
    [
        (picture(turned=True), "rotate", [1, 1, 1, 1, 0]),
        (picture(turned=True), "invert", [1, 0, 0, 1, 0]),  # Another tool is as good for its kind.
        (picture(turned=True), "say cat", [1, 0, 0, 0, 0]),  # An answer where a tool was due.
        (picture(), "rotate", [1, 0, 0, 0, 0]),
        (picture(), "say cat", [1, 1, 1, 0, 1]),
        (picture(), "say dog", [1, 1, 0, 0, 0]),
        (picture(finds=True), "box 2 0", [1, 1, 1, 0, 1]),
        (picture(finds=True), "box 2 1", [1, 1, 0, 0, 0.5]),  # One of two words on both sides.
        (picture(finds=True), "box 0 0", [1, 1, 0, 0, 2 / 3]),  # One word said of one, of two that are right.
        (picture(finds=True), "say cat", [0, 0, 0, 0, 0]),  # Not allowed.
        (picture(turned=True, ahead=1), "say cat", [1, 1, 1, 0, 1]),  # The expert has turned it.
        (picture(turned=True, ahead=2), "say cat", [1, 1, 1, 0, 1]),  # And does not answer.
    ],
)
def test_a_step_by_hand(hand, pictures, task, move, expected):
    result = hand.play(pictures, task, [move])[1][1].info["metrics"]
    np.testing.assert_allclose([float(result[name]) for name in GRADES], expected, rtol=1e-6)


def test_grades_add_up(hand, pictures):
    result = hand.play(pictures, picture(turned=True), ["invert", "invert", "rotate", "say cat"])[1][4].info["metrics"]
    # The expert turns first: two other tools, its own, and its answer.
    np.testing.assert_allclose([float(result[name]) for name in GRADES], [4, 2, 2, 3, 1])


def test_words_that_nobody_says_agree():
    nothing, one = jnp.zeros(3, bool), jnp.asarray([True, False, False])
    assert [float(field_f1(a, b)) for a, b in ((nothing, nothing), (nothing, one), (one, one))] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("wrap", [with_expert_steps, with_transitions])
def test_held_out_tasks_are_the_worlds(wrap):
    rules = crafting.make_environment((2,)).text.rules
    world, plain = jitted(make_text_world(wrap(rules))), jitted(make_text_world(rules))
    task = world.text.sample_held_out_task(KEY)
    (_, timestep), (_, other) = world.reset(KEY, task), plain.reset(KEY, task["inner"])
    assert int(task["ahead"]) == 0
    assert sentence(world, timestep.observation) == sentence(plain, other.observation)
    ahead = {int(world.sample_task(jax.random.fold_in(KEY, number))["ahead"]) for number in range(24)}
    assert ahead == {0, 1, 2, 3, 4}


def sentence(world, ids):
    return " ".join(world.text.words[word] for word in np.asarray(ids).tolist() if word >= 0)


@pytest.mark.slow
@pytest.mark.parametrize("gap", [1, 2])
def test_what_lies_between_is_the_experts(gap):
    rules = crafting.make_environment((2,)).text.rules
    world, plain = make_text_world(with_transitions(rules, num_steps=2, gap=gap)), make_text_world(rules)
    expert, step = jax.jit(plain.text.expert), jax.jit(plain.step)
    for number in range(6):
        key = jax.random.fold_in(KEY, number)
        task = world.sample_task(key)
        state, timestep = world.reset(key, task)
        now, seen = plain.reset(key, task["inner"])
        for _ in range(int(task["ahead"])):
            later, after = step(key, now, expert(key, now)[0])
            now, seen = (now, seen) if after.terminated else (later, after)
        right = expert(key, now)[0]
        later, then = step(key, now, right)
        for _ in range(gap - 1):
            later, then = step(key, later, expert(key, later)[0])
        both = f"{sentence(plain, seen.observation)} then {sentence(plain, then.observation)}"
        assert sentence(world, timestep.observation) == both
        assert sentence(world, world.text.expert(key, state)[0]) == sentence(plain, right)
        _, timestep = world.step(key, state, world.text.expert(key, state)[0])
        assert timestep.terminated and timestep.info["success"] and float(timestep.reward) == 1.0
        other = next(row for row in world.text.actions if (row != np.asarray(right)).any())
        _, timestep = world.step(key, state, jnp.asarray(other))
        assert not timestep.info["success"]


def test_refused():
    rules = crafting.make_environment((2,)).text.rules
    with pytest.raises(ValueError, match="`num_steps` must not be negative, got -1"):
        with_expert_steps(rules, num_steps=-1)
    with pytest.raises(ValueError, match=r"`share` must be"):
        with_transitions(rules, share=2.0)
