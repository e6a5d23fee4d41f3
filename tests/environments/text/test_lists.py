"""Lists: right answers, scores, what is told of an answer, peers and critiques."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import lists

KEY = jax.random.key(0)
make = functools.cache(functools.partial(lists.make_environment, (4, 8)))


def numbers(letters, size=8):
    return jnp.asarray([lists.LETTERS.index(letter) for letter in letters] + [-1] * (size - len(letters)), jnp.int32)


def letters(row):
    return "".join(lists.LETTERS[i] for i in np.asarray(row).tolist() if i >= 0)


def task(operation, given, **more):
    no_peers = {"peers": jnp.zeros((0, 8), jnp.int32)}
    operation = jnp.int32(lists.OPERATIONS.index(operation))
    return {"operation": operation, "letters": numbers(given), "level": jnp.int32(0)} | no_peers | more


@pytest.mark.parametrize(
    "operation, given, right",
    [
        ("sort", "dbfa", "abdf"),
        ("reverse", "dbfa", "afbd"),
        ("merge", "bdac", "abcd"),
        ("intersect", "gcaexagh", "ga"),
        ("intersect", "abba", "ab"),
        ("first half", "dbfazc", "abc"),
    ],
)
def test_right_answers_by_hand(operation, given, right):
    assert letters(jax.jit(lists.solve)(task(operation, given))) == right


def test_drawn_tasks_are_what_their_operation_needs(hand):
    for level, length in enumerate((4, 8)):
        tasks = hand.drawn_tasks(make(), 256, level)
        answers = jax.jit(jax.vmap(lists.solve))(tasks)
        for row in range(256):
            given, operation = letters(tasks["letters"][row]), lists.OPERATIONS[tasks["operation"][row]]
            first, second = given[: length // 2], given[length // 2 :]
            right = letters(answers[row])
            assert len(given) == length
            if operation == "merge":
                assert list(first) == sorted(first) and list(second) == sorted(second)
            if operation == "intersect":
                assert len(set(first)) == len(set(second)) == length // 2
                assert right == "".join(letter for letter in first if letter in second) != ""
            else:
                assert len(set(given)) == length
            expected = {
                "sort": sorted(given),
                "reverse": given[::-1],
                "merge": sorted(given),
                "first half": sorted(given)[: length // 2],
            }
            assert right == "".join(expected.get(operation, right))


def test_an_answer_by_hand(hand):
    texts, timesteps, _ = hand.play(make(reward="dense"), task("merge", "bdac"), ["a b d c"])
    assert texts[0] == "merge b d and a c ."
    assert bool(timesteps[1].terminated) and not bool(timesteps[1].info["success"])
    assert float(timesteps[1].reward) == float(timesteps[1].info["metrics"]["score"]) == 0.5
    assert float(timesteps[1].info["metrics"]["first_three"]) == 0.0
    _, timesteps, _ = hand.play(make(), task("merge", "bdac"), ["a b c d"])
    assert bool(timesteps[1].info["success"]) and float(timesteps[1].reward) == 1.0


@pytest.mark.parametrize(
    "feedback, graded",
    [("none", ""), ("wrong", " wrong"), ("place", " wrong at 3"), ("score", " score 2")],
)
def test_what_is_told_of_an_answer(hand, feedback, graded):
    environment = make(num_attempts=3, feedback=feedback)
    texts, timesteps, _ = hand.play(environment, task("sort", "dbfa"), ["a b f d", "a b d f"])
    assert texts[:2] == ["sort d b f a .", f"sort d b f a you said a b f d{graded} ."]
    assert [bool(t.terminated) for t in timesteps] == [False, False, True]


def test_attempts_go_on_where_they_do_not_end_with_the_right_answer(hand):
    environment = make(num_attempts=3, ends_when_right=False, feedback="wrong")
    texts, timesteps, _ = hand.play(environment, task("sort", "dbfa"), ["a b d f", "d", "a b d f"])
    assert texts[1] == "sort d b f a you said a b d f right ."
    assert [bool(t.info["success"]) for t in timesteps] == [False, True, False, True]
    assert [float(t.reward) for t in timesteps] == [0.0, 0.0, 0.0, 1.0]


def test_what_is_no_list_uses_up_an_attempt(hand):
    texts, timesteps, _ = hand.play(make(num_attempts=2), task("sort", "dbfa"), ["sort", "sort"])
    assert texts[1] == "sort d b f a . nothing happens ." and not bool(timesteps[1].info["valid"])
    assert bool(timesteps[2].terminated)


def test_peers_are_shown(hand):
    one = task("sort", "dbfa", peers=jnp.stack([numbers("abdf"), numbers("bad")]))
    texts, _, _ = hand.play(make(num_peers=2), one, [])
    assert texts == ["sort d b f a peer a b d f peer b a d ."]


def test_a_critique_by_hand(hand):
    environment = make(mode="critique")
    one = task("sort", "dbfa", criticised=numbers("bazf"))
    texts, timesteps, _ = hand.play(environment, one, ["1 misplaced 2 misplaced 3 wrong"])
    assert texts[0] == "sort d b f a answer b a z f ."
    assert bool(timesteps[1].info["success"])
    _, timesteps, _ = hand.play(environment, one, ["1 misplaced 4 wrong"])
    # One of two is right, and one of three is found: F1 = 2 * 1 / (2 + 3).
    graded = {name: round(float(value), 4) for name, value in timesteps[1].info["metrics"].items()}
    assert graded == {"score": 0.4, "precision": 0.5, "recall": 0.3333}
    perfect = task("sort", "dbfa", criticised=numbers("abdf"))
    assert bool(hand.play(environment, perfect, ["none"])[1][1].info["success"])
    assert float(hand.play(environment, perfect, ["1 wrong"])[1][1].info["metrics"]["score"]) == 0.0


def test_spoiled_answers_are_wrong_as_often_as_said():
    right = numbers("abcdefgh")
    spoil = jax.jit(jax.vmap(functools.partial(lists.spoil, rate=0.4), in_axes=(0, None)))
    answers = np.asarray(spoil(jax.random.split(KEY, 2000), right))
    # A letter is replaced with 0.2, by another in 25 of 26 cases.
    foreign = ~np.isin(answers, right)
    np.testing.assert_allclose(foreign.mean(), 0.2 * 18 / 26, atol=0.02)
    assert ((answers != np.asarray(right)).mean(axis=1) == 0.0).mean() < 0.2
    np.testing.assert_array_equal(functools.partial(lists.spoil, rate=0.0)(KEY, right), right)


def test_the_thought_says_where_letters_belong(hand):
    environment = make()
    words = environment.text.words
    for operation, given, thought in [("sort", "dbfa", "d 3 b 2 f 4 a 1"), ("intersect", "abcb", "a 0 b 1 c 0 b 1")]:
        state = hand.play(environment, task(operation, given), [])[2]
        answer = environment.text.expert(KEY, state)[1]
        assert " ".join(words[i] for i in answer.tolist() if i >= 0) == thought


@pytest.mark.parametrize(
    "options, message",
    [
        ({"lengths": (5,)}, "even and from 4 to 16"),
        ({"operations": ("shuffle",)}, "`operations` must be of"),
        ({"mode": "judge"}, "`mode` must be"),
        ({"num_attempts": 0}, "at least 1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        lists.make_environment(**options)
