"""Pictures: what is shown, what tools undo, and how answers are graded."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import detection, scene
from jaxagents.environments.text.words import sentence

make = functools.cache(scene.make_environment)
find = functools.cache(detection.make_environment)
CAT = list(scene.PATTERNS).index("cat")


def task(*, finds=False, turned=False, inverted=False):
    """A cat in column 2 of row 0."""
    numbers = {"objects": [[CAT, 2, 0]], "side": 4, "level": 0}
    flags = {"finds": finds, "turned": turned, "inverted": inverted}
    return {name: jnp.asarray(value, jnp.int32) for name, value in numbers.items()} | {
        name: jnp.bool_(value) for name, value in flags.items()
    }


@pytest.mark.exhaustive
def test_pictures_by_hand(hand):
    environment = make((1,), reward="dense")
    clean = "+ . x o / . . o o / . . . . / . . . ."
    texts, timesteps, _ = hand.play(environment, task(), ["box 2 0", "say cat"])
    assert texts[:2] == [f"{clean} name 2 0", f"{clean} name 2 0 nothing happens ."]
    assert bool(timesteps[2].info["success"]) and float(timesteps[2].reward) == 1.0
    texts, timesteps, _ = hand.play(environment, task(turned=True, inverted=True), ["rotate", "invert", "say dog"])
    assert texts[:3] == [
        "% % % % / % % % % / x x % % / x o % + name 2 0",
        "+ % o x / % % x x / % % % % / % % % % name 2 0",
        f"{clean} name 2 0",
    ]
    assert bool(timesteps[3].terminated) and not bool(timesteps[3].info["success"])
    assert float(timesteps[3].info["metrics"]["tools"]) == 2.0
    # Two by two cells: one column beside, 2 of 6; one corner, 1 of 7.
    for answer, iou in (("box 2 0", 1.0), ("box 1 0", 2 / 6), ("box 3 1", 1 / 7), ("box 0 0", 0.0)):
        texts, timesteps, _ = hand.play(environment, task(finds=True), [answer])
        assert texts[0] == f"{clean} find cat"
        np.testing.assert_allclose([float(timesteps[1].reward), float(timesteps[1].info["metrics"]["iou"])], iou)
        assert bool(timesteps[1].info["success"]) == (iou == 1.0)


def test_what_is_turned_or_inverted_looks_like_another_class():
    patterns = {tuple(row) for row in scene.INK.tolist()}
    assert len(patterns) == len(scene.PATTERNS)
    for pattern in patterns:
        inverted = tuple(scene.INVERTED[list(pattern)].tolist())
        others = {pattern, pattern[::-1], inverted, inverted[::-1]}
        assert len(others) == 4 and others <= patterns


@pytest.mark.exhaustive
def test_objects_lie_apart_and_leave_the_corners_free(hand):
    for level, (count, side) in enumerate(((1, 4), (3, 6))):
        tasks = hand.drawn_tasks(make(), 128, level)
        for objects in tasks["objects"][:, :count]:
            places = {(int(column), int(row)) for _, column, row in objects}
            assert len(places) == len({int(name) for name, _, _ in objects}) == count
            assert not places & {(0, 0), (side - 2, side - 2)}
            assert objects[:, 1:].min() >= 0 and objects[:, 1:].max() <= side - 2
        assert (tasks["objects"][:, count:] == -1).all()
        for name in ("finds", "turned", "inverted"):
            assert 0.3 < tasks[name].mean() < 0.7  # Four standard errors of 128.


def test_without_tools_answers_are_given_to_pictures_as_they_are(hand):
    environment = make((1,), tools=False)
    state, _ = environment.reset(jax.random.key(0), task(turned=True))
    answer = sentence(environment.text.words, environment.text.expert(jax.random.key(0), state)[0])
    assert answer == "say cat"
    _, timesteps, _ = hand.play(environment, task(turned=True), ["rotate", "say cat"])
    assert not bool(timesteps[1].info["valid"]) and bool(timesteps[2].info["success"])


@pytest.mark.parametrize("turned, thought", [(False, "x o o o"), (True, "")])
def test_the_expert_thinks_of_the_pattern_before_it_answers(turned, thought):
    environment = make((1,))
    state, _ = environment.reset(jax.random.key(0), task(turned=turned))
    assert sentence(environment.text.words, environment.text.expert(jax.random.key(0), state)[1]) == thought


TWO = {**task(finds=True), "objects": jnp.asarray([[CAT, 2, 0], [CAT, 0, 2]]), "side": jnp.int32(6)}
ONE = {**TWO, "objects": TWO["objects"].at[1, 0].set((CAT + 1) % 8)}


@pytest.mark.parametrize(
    "pictured, answer, success, iou, confidence",
    [
        (TWO, "boxes 2 0 high 0 2 high", True, 1.0, 0.9),
        (TWO, "boxes 0 2 even 2 0 high", True, 1.0, 0.7),
        (TWO, "boxes 2 0 high", False, 0.5, 0.9),
        (ONE, "boxes 2 0 low", True, 1.0, 0.1),
        (ONE, "boxes 2 0 high 0 2 low", False, 0.5, 0.9),  # Another class: it was not sure.
        (ONE, "boxes 3 0 high", False, 0.0, 0.1),  # A third of the union.
        (ONE, "boxes", False, 0.0, 0.0),
    ],
)
def test_boxes_by_hand(hand, pictured, answer, success, iou, confidence):
    texts, timesteps, _ = hand.play(find(), pictured, [answer])
    result = timesteps[1].info["metrics"]
    assert texts[0].endswith("find cat") and bool(timesteps[1].info["success"]) == success
    np.testing.assert_allclose([float(result["iou"]), float(result["confidence"])], [iou, confidence], rtol=1e-6)


@pytest.mark.slow
def test_boxes_of_the_expert_are_right():
    environment = find()
    counts = set()
    for number in range(8):
        key = jax.random.key(number)
        state, _ = environment.reset(key, environment.sample_task(key))
        answer = environment.text.expert(key, state)[0]
        counts.add(int((np.asarray(answer) >= 0).sum()))
        assert bool(environment.step(key, state, answer)[1].info["success"])
    assert counts == {4, 7}


@pytest.mark.parametrize("options", [{"num_objects": (4,)}, {"corrupted": 1.5}, {"max_steps": 2}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match="must be"):
        make(**options)
