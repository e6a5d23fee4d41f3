"""Programs: what they return, how they are graded, and the three modes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import code, code_calls

KEY = jax.random.key(0)
make = functools.cache(functools.partial(code.make_environment, (2, 4)))


def program(spoken, length=4):
    ids = [code.OPERATIONS.index(word) for word in spoken.split()]
    return jnp.asarray(ids + [-1] * (length - len(ids)), jnp.int32)


def task(spoken, inputs=(1, 5, 9, 2, 3, 10), **more):
    ids, given = program(spoken), jnp.asarray(inputs, jnp.int32)
    outputs = jnp.stack([code.run(ids, value)[1] for value in given])
    return {"program": ids, "inputs": given, "outputs": outputs, "level": jnp.int32(1)} | more


def metrics(timestep):
    return {name: round(float(value), 4) for name, value in timestep.info["metrics"].items()}


@pytest.mark.parametrize(
    "spoken, value, tops, fine",
    [
        ("two mul dup add", 7, [2, 14, 14, 28], True),
        ("three sub", 1, [3, 98], True),  # 1 - 3 modulo 100.
        ("three swap sub", 7, [3, 7, 96], True),  # 3 - 7 modulo 100.
        ("dup dup mul mul", 5, [5, 5, 25, 25], True),  # 125 modulo 100.
        ("add", 5, [5], False),
        ("swap", 5, [5], False),
        ("one one one one", 5, [1, 1, 1, 1], False),  # Five numbers.
    ],
)
def test_programs_by_hand(spoken, value, tops, fine):
    found = jax.jit(code.run)(program(spoken, len(spoken.split())), jnp.int32(value))
    assert (found[0].tolist(), int(found[1]), bool(found[2])) == (tops, tops[-1], fine)


@pytest.mark.slow
def test_a_program_is_graded_by_its_tests(hand):
    environment = make(reward="dense")
    one = task("two mul dup add")
    texts, timesteps, _ = hand.play(environment, one, ["dup add dup add"])
    assert texts[0] == "1 to 4 , 5 to 2 0 , 9 to 3 6 ,"
    # As good as the program that the tests were made with.
    assert metrics(timesteps[1]) == {"runs": 1.0, "tests": 1.0, "hidden_tests": 1.0, "short": 1.0}
    assert bool(timesteps[1].info["success"]) and float(timesteps[1].reward) == 1.0
    # 3 + x is right for 1 alone, and the other one fails to run.
    problems = [
        metrics(hand.play(environment, one, [action])[1][1])
        for action in ("three add", "add", "one one mul mul two mul")
    ]
    assert problems[0] == {"runs": 1.0, "tests": 0.3333, "hidden_tests": 0.0, "short": 1.0}
    assert problems[1] == {"runs": 0.0, "tests": 0.0, "hidden_tests": 0.0, "short": 1.0}
    assert problems[2] == {"runs": 1.0, "tests": 0.0, "hidden_tests": 0.0, "short": 0.0}


def test_hidden_tests_count(hand):
    # x * x is 2 x for 2 and for 0 (modulo 100), and not for 3.
    one = task("dup add", (2, 0, 2, 3, 3, 3))
    _, timesteps, _ = hand.play(make(), one, ["dup mul"])
    assert metrics(timesteps[1])["tests"] == 1.0 and not bool(timesteps[1].info["success"])


def test_attempts_are_told(hand):
    environment = make(num_attempts=3)
    texts, timesteps, _ = hand.play(environment, task("two mul dup add"), ["three add", "you said", "dup add dup add"])
    tests = "1 to 4 , 5 to 2 0 , 9 to 3 6 ,"
    assert texts[:3] == [
        tests,
        f"{tests} you said three add passes 1",
        f"{tests} you said three add passes 1 nothing happens .",
    ]
    assert [bool(t.terminated) for t in timesteps] == [False, False, False, True]


@pytest.mark.exhaustive
def test_a_program_is_repaired(hand):
    one = task("two mul dup add", shown=program("two mul dup mul"))
    texts, timesteps, _ = hand.play(make(mode="repair"), one, ["two mul dup add"])
    assert texts[0] == "fix two mul dup mul 1 to 4 , 5 to 2 0 , 9 to 3 6 ,"
    assert bool(timesteps[1].info["success"])
    tasks = hand.drawn_tasks(make(mode="repair"), 64, 0)
    assert ((tasks["shown"] != tasks["program"]).sum(axis=1) == 1).all()


@pytest.mark.exhaustive
def test_a_program_is_made_shorter(hand):
    one = task("dup add", shown=program("dup one mul add"))
    for action, success in (("two mul", True), ("dup one mul add", False), ("two add", False)):
        texts, timesteps, _ = hand.play(make(mode="speed"), one, [action])
        assert texts[0].startswith("speed dup one mul add 1 to 2 ,")
        assert bool(timesteps[1].info["success"]) == success
    tasks = hand.drawn_tasks(make(mode="speed"), 256, 1)
    assert ((tasks["shown"] >= 0).sum(axis=1) == 6).all()
    _, values, fine = jax.jit(jax.vmap(jax.vmap(code.run, in_axes=(None, 0))))(tasks["shown"], tasks["inputs"])
    np.testing.assert_array_equal(values, tasks["outputs"])
    assert np.asarray(fine).all()


@pytest.mark.exhaustive
def test_calls_on_an_input_that_is_not_shown(hand):
    environment = code_calls.make_environment((2, 4), reward="dense")
    spoken = ["call add", "call two", "call mul", "call dup", "call add", "answer 2 8"]
    texts, timesteps, _ = hand.play(environment, task("two mul dup add", (7, 1, 2, 3, 4, 5)), spoken)
    assert texts == [
        "run two mul dup add",
        "run two mul dup add error",
        "run two mul dup add called two top 2",
        "run two mul dup add called two mul top 1 4",
        "run two mul dup add called two mul dup top 1 4",
        "run two mul dup add called two mul dup add top 2 8",
        "run two mul dup add called two mul dup add top 2 8",
    ]
    assert [float(t.reward) for t in timesteps] == [0, 0, 0.125, 0.125, 0.125, 0.125, 0.5]
    assert bool(timesteps[-1].info["success"])
    _, timesteps, _ = hand.play(environment, task("two mul dup add"), ["call dup", "answer 2 8"])
    assert metrics(timesteps[-1]) == {"calls": 1.0, "errors": 0.0, "prefix": 0.0}
    assert bool(timesteps[-1].terminated) and not bool(timesteps[-1].info["success"])


@pytest.mark.parametrize("action, success", [("2 0", True), ("2", False), ("two mul", False)])
def test_a_result_is_predicted(hand, action, success):
    texts, timesteps, _ = hand.play(make(mode="predict"), task("two mul dup add", (5, 1, 9, 2, 3, 10)), [action])
    assert texts[0].startswith("two mul dup add of 5")
    assert bool(timesteps[1].info["success"]) == success


@pytest.mark.exhaustive
def test_drawn_programs_run_and_use_up_their_numbers(hand):
    for level, length in enumerate((2, 4)):
        tasks = hand.drawn_tasks(make(), 256, level)
        assert ((tasks["program"] >= 0).sum(axis=1) == length).all()
        run = jax.jit(jax.vmap(jax.vmap(code.run, in_axes=(None, 0))))
        _, values, fine = run(tasks["program"], tasks["inputs"])
        np.testing.assert_array_equal(values, tasks["outputs"])
        assert np.asarray(fine).all()
        grows = np.where(tasks["program"] >= 0, code.GROWS[tasks["program"]], 0)
        assert (grows.sum(axis=1) == 0).all()
        assert all(len(set(row)) == code.NUM_TESTS for row in tasks["inputs"].tolist())


def test_the_thought_is_a_trace(hand):
    environment = make()
    state = hand.play(environment, task("two mul dup add", (7, 1, 2, 3, 4, 5)), [])[2]
    thought = environment.text.expert(KEY, state)[1]
    assert " ".join(environment.text.words[i] for i in thought.tolist() if i >= 0) == "2 , 1 4 , 1 4 , 2 8 ,"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"lengths": (1,)}, "from 2 to 8"),
        ({"mode": "tools"}, "`mode` must be"),
        ({"num_attempts": 0}, "at least 1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        code.make_environment(**options)
