"""Arithmetic: how problems are told, what thoughts say, and what answers earn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import arithmetic
from jaxagents.environments.text.words import sentence
from tests.fakes import play_actions

KEY = jax.random.key(0)


def make_task(numbers, operations, story=False):
    """A task of up to three terms, of ann, sam and coins."""
    numbers, operations = [*numbers, -1][:3], [*map(arithmetic.OPERATIONS.index, operations), -1][:2]
    return {
        "numbers": jnp.asarray(numbers, jnp.int32),
        "operations": jnp.asarray(operations, jnp.int32),
        "people": jnp.asarray([0, 3], jnp.int32),
        "object": jnp.asarray(2, jnp.int32),
        "story": jnp.asarray(story),
        "level": jnp.asarray(0, jnp.int32),
    }


def problem(task):
    return tuple(np.concatenate(arithmetic.identify(task)).tolist())


@functools.cache
def functions(**options):
    environment = arithmetic.make_environment(num_digits=(2,), num_terms=(3,), **options)
    return environment, jax.jit(environment.reset), jax.jit(environment.step)


def answer(task, texts, **options):
    """Plays answers given as digits with spaces, and returns the observations as text."""
    environment, reset, step = functions(**options)
    rows = [[*[environment.text.words.index(word) for word in text.split()], -1, -1, -1][:3] for text in texts]
    state, timesteps = play_actions(reset, step, task, rows, KEY)
    return state, timesteps, [sentence(environment.text.words, t.observation) for t in timesteps]


PROBLEMS = [
    ((12, 34), "+", "1 2 + 3 4 = ?", "ann has 1 2 coins . sam gives ann 3 4 . how many coins has ann ?", 46),
    ((12, 4), "-", "1 2 - 4 = ?", "ann has 1 2 coins . ann gives sam 4 . how many coins has ann ?", 8),
    ((12, 3), "*", "1 2 * 3 = ?", "ann has 3 bags of 1 2 coins . how many coins has ann ?", 36),
    (
        (50, 7, 57),
        "+-",
        "5 0 + 7 - 5 7 = ?",
        "ann has 5 0 coins . sam gives ann 7 . ann gives sam 5 7 . how many coins has ann ?",
        0,
    ),
    (
        (99, 9, 99),
        "*+",
        "9 9 * 9 + 9 9 = ?",
        "ann has 9 bags of 9 9 coins . sam gives ann 9 9 . how many coins has ann ?",
        990,
    ),
]


@pytest.mark.parametrize(("numbers", "operations", "formula", "story", "result"), PROBLEMS)
def test_problems_are_told_and_answered(numbers, operations, formula, story, result):
    for is_story, text in ((False, formula), (True, story)):
        state, timesteps, texts = answer(make_task(numbers, operations, is_story), [" ".join(str(result))])
        assert texts[0] == text
        assert bool(timesteps[1].info["success"]) and bool(timesteps[1].terminated) and float(timesteps[1].reward) == 1
    environment = functions()[0]
    expert, _ = environment.text.expert(KEY, state)
    assert sentence(environment.text.words, expert) == " ".join(str(result))
    assert environment.render(state).endswith(f"= {result}")


@pytest.mark.parametrize(
    ("numbers", "operations", "thought"),
    [
        ((12, 34), "+", "4 2 , 4 6 ,"),
        ((12, 4), "-", "8 ,"),
        ((12, 3), "*", "3 0 , 3 6 ,"),
        ((50, 7, 57), "+-", "5 7 , 7 , 0 ,"),
        ((3, 3, 0), "--", "0 , 0 ,"),
    ],
)
def test_thoughts_are_the_running_results(numbers, operations, thought):
    environment, reset, _ = functions()
    state, _ = reset(KEY, make_task(numbers, operations))
    assert sentence(environment.text.words, environment.text.expert(KEY, state)[1]) == thought


@pytest.mark.parametrize(
    ("operations", "same", "others"),
    [
        ("+", [(3, 4), (4, 3)], [(3, 5), (7, 0)]),
        ("*", [(3, 4), (4, 3)], [(2, 6)]),
        ("-", [(4, 3)], [(3, 4), (8, 7)]),
        ("++", [(1, 2, 3), (3, 1, 2), (2, 1, 3)], [(1, 2, 4)]),
        ("--", [(9, 2, 3), (9, 3, 2)], [(3, 2, 9), (9, 1, 4)]),
        ("*+", [(2, 3, 5), (3, 2, 5)], [(2, 5, 3)]),
    ],
)
def test_the_order_of_what_commutes_is_not_part_of_a_problem(operations, same, others):
    problems = {problem(make_task(numbers, operations)) for numbers in same}
    assert len(problems) == 1
    assert problems.isdisjoint(problem(make_task(numbers, operations)) for numbers in others)
    assert problem(make_task((3, 4), "+")) != problem(make_task((3, 4), "*"))


@pytest.mark.exhaustive
def test_no_sum_is_held_out_whose_swapped_twin_is_trained_on():
    environment = arithmetic.make_environment((1, 2), (2, 2), operations=("+", "*"))
    keys = jax.random.split(KEY, 2000)

    def problems(sample):
        tasks = jax.device_get(jax.jit(jax.vmap(sample))(keys))
        return {(*sorted(row.tolist()), int(op[0])) for row, op in zip(tasks["numbers"], tasks["operations"])}

    ours, theirs = problems(environment.sample_task), problems(environment.text.sample_held_out_task)
    assert len(theirs) > 100 and not ours & theirs


def test_wrong_and_ill_formed_answers_use_up_attempts():
    state, timesteps, texts = answer(make_task((12, 34), "+"), ["4 5", "wrong", "4 6"], num_attempts=3)
    assert texts[1:3] == ["1 2 + 3 4 = ? wrong .", "1 2 + 3 4 = ? nothing happens ."]
    assert [bool(t.info["valid"]) for t in timesteps] == [True, True, False, True]
    assert [bool(t.terminated) for t in timesteps] == [False, False, False, True]
    assert [float(t.reward) for t in timesteps] == [0, 0, 0, 1]
    _, timesteps, _ = answer(make_task((12, 34), "+"), ["4 5", "4 7", "4 8"], num_attempts=3)
    assert bool(timesteps[3].terminated) and not bool(timesteps[3].info["success"])


@pytest.mark.parametrize("first", ["4 6", "4 5", "wrong"])
def test_without_feedback_nothing_tells_what_an_answer_was_worth(first):
    state, timesteps, texts = answer(make_task((12, 34), "+"), [first, "4 6"], num_attempts=2, feedback=False)
    assert texts[:2] == ["1 2 + 3 4 = ?", "1 2 + 3 4 = ? wrong ?"]
    assert [bool(t.terminated) for t in timesteps] == [False, False, True]
    assert [float(t.reward) for t in timesteps] == [0.0, float(first == "4 6"), 1.0]
    assert bool(timesteps[2].info["success"])
    environment, reset, step = functions(num_attempts=2, feedback=False)
    start, _ = reset(KEY, make_task((12, 34), "+"))
    after, _ = step(KEY, start, jnp.asarray([environment.text.words.index("4"), -1, -1], jnp.int32))
    again, _ = step(KEY, start, environment.text.expert(KEY, start)[0])
    assert int(environment.text.fingerprint(after)) == int(environment.text.fingerprint(again))
    assert int(environment.text.fingerprint(after)) != int(environment.text.fingerprint(start))


def test_without_feedback_the_last_answer_is_the_success_and_all_earn_their_share():
    task = make_task((12, 34), "+")
    _, timesteps, _ = answer(task, ["4 6", "4 5"], num_attempts=2, feedback=False, reward="dense")
    assert [float(t.reward) for t in timesteps] == [0.0, 1.0, 0.5] and not bool(timesteps[2].info["success"])


@pytest.mark.parametrize(
    ("text", "share"), [("4 5", 0.5), ("4 6", 1.0), ("6 4", 0.0), ("4", 0.5), ("4 6 0", 2 / 3), ("0 4 6", 0.0)]
)
def test_dense_rewards_are_the_share_of_right_digits(text, share):
    _, timesteps, _ = answer(make_task((12, 34), "+"), [text], reward="dense")
    np.testing.assert_allclose(timesteps[1].reward, share, rtol=1e-6)


@pytest.mark.parametrize("text", ["0 4 6", "+", "= 4 6", "4 + 6", ""])
def test_leading_zeros_and_other_words_are_no_answers(text):
    _, timesteps, texts = answer(make_task((12, 34), "+"), [text])
    assert not bool(timesteps[1].info["valid"]) and not bool(timesteps[1].info["success"])
    assert texts[1].endswith("nothing happens .")


def test_sparse_rewards_are_all_or_nothing():
    _, timesteps, _ = answer(make_task((12, 34), "+"), ["4 5"])
    assert float(timesteps[1].reward) == 0.0 and bool(timesteps[1].terminated)


@pytest.mark.exhaustive
def test_tasks_are_as_asked_for():
    environment = arithmetic.make_environment((1, 2), (2, 3))
    levels = jnp.arange(512, dtype=jnp.int32) % 2
    task = jax.device_get(jax.jit(jax.vmap(environment.sample_task))(jax.random.split(KEY, 512), levels))
    easy, hard = (jax.tree.map(lambda leaf, level=level: leaf[task["level"] == level], task) for level in (0, 1))
    assert easy["numbers"].max() == 9 and (easy["numbers"][:, 2] == -1).all() and (easy["operations"][:, 1] == -1).all()
    assert hard["numbers"].max() == 99 and (hard["numbers"] >= 0).all()
    assert set(hard["operations"][:, 0].tolist()) == {0, 1, 2} and set(hard["operations"][:, 1].tolist()) == {0, 1}
    assert hard["numbers"][:, 1][hard["operations"][:, 0] == 2].max() == 9
    np.testing.assert_allclose(task["story"].mean(), 0.5, atol=5 * 0.5 / 512**0.5)
    assert (task["people"][:, 0] != task["people"][:, 1]).all()
    results = jax.jit(jax.vmap(lambda one: arithmetic.running_results(one, 2)))(task)
    assert results.min() == 0 and results.max() < 1000
    for numbers, operations, result in zip(task["numbers"], task["operations"], np.asarray(results)[:, -1]):
        terms = [str(n) for n in numbers.tolist() if n >= 0]
        signs = [arithmetic.OPERATIONS[o] for o in operations.tolist() if o >= 0]
        assert eval("".join(a + b for a, b in zip(terms, [*signs, ""]))) == result


@pytest.mark.parametrize(
    ("num_digits", "num_terms", "operations", "expected"),
    [
        ((1,), (2,), "+", 2),
        ((1,), (2,), "-", 1),
        ((2,), (2,), "*", 3),
        ((2,), (3,), "+-*", 3),
        ((3, 1), (2, 9), "+", 4),
    ],
)
def test_answers_have_room_for_the_largest(num_digits, num_terms, operations, expected):
    assert arithmetic.max_answer_digits(num_digits, num_terms, operations) == expected


def test_splits_know_numbers_and_not_wordings():
    plain, in_story = make_task((12, 34), "+"), make_task((12, 34), "+", story=True)
    assert problem(plain) == problem(in_story)
    fingerprint = functions()[0].text.fingerprint
    states = [functions()[1](KEY, task)[0] for task in (plain, in_story)]
    assert int(fingerprint(states[0])) != int(fingerprint(states[1]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_digits": (0,)}, "`num_digits` must be at least 1"),
        ({"num_digits": (1,), "num_terms": (1,)}, "`num_terms` must be at least 2"),
        ({"num_digits": (1,)}, "`num_terms` must be at least 2, one per level"),
        ({"num_digits": (5,), "num_terms": (2,)}, "`num_digits` must keep answers below 100000"),
        ({"operations": ("/",)}, "`operations` must be of"),
        ({"operations": ("*",)}, '`operations` must have "\\+" or "-" for more than two terms'),
        ({"story_fraction": 1.5}, "`story_fraction` must be in"),
        ({"num_attempts": 0}, "`num_attempts` must be at least 1"),
        ({"reward": "partial"}, '`reward` must be "sparse" or "dense"'),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(ValueError, match=message):
        arithmetic.make_environment(**options)


def test_every_level_may_have_operations_of_its_own():
    environment = arithmetic.make_environment((1, 1), (2, 2), operations=[["+", "-"], ["*"]])
    for level, allowed in ((0, {0, 1}), (1, {2})):
        tasks = jax.jit(jax.vmap(lambda key, level=level: environment.sample_task(key, level)))(
            jax.random.split(KEY, 64)
        )
        assert set(np.asarray(tasks["operations"])[:, 0].tolist()) == allowed
    with pytest.raises(ValueError, match=r"`operations` must be one list, or one per level, 2, got \[\['\+'\]\]"):
        arithmetic.make_environment((1, 1), (2, 2), operations=[["+"]])


@pytest.mark.parametrize(("repeats", "expected"), [(0.0, 46), (1.0, 17)])
def test_an_expert_that_repeats_gives_its_last_answer_again(repeats, expected):
    options = {"num_attempts": 2, "feedback": False, "expert_repeats": repeats}
    environment = arithmetic.make_environment((2,), (2,), **options)
    task = make_task((12, 34), "+")
    task = {**task, "numbers": task["numbers"][:2], "operations": task["operations"][:1]}
    state, _ = environment.reset(KEY, task)

    def say(state):
        action, _ = environment.text.expert(KEY, state)
        return action, int(sentence(environment.text.words, action).replace(" ", ""))

    action, first = say(state)
    assert first == 46  # Nothing to repeat yet.
    wrong = jnp.asarray([environment.text.words.index(word) for word in "17"] + [-1] * (len(action) - 2), jnp.int32)
    state, _ = environment.step(KEY, state, wrong)
    assert say(state)[1] == expected
