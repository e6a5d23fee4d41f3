"""Countdown: steps, dead ends, and how many solutions there are."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import countdown

make = functools.cache(countdown.make_environment)


def task(target, *numbers):
    numbers = sorted(numbers, reverse=True)
    row = jnp.asarray(numbers + [-1] * (4 - len(numbers)), jnp.int32)
    return {"numbers": row, "target": jnp.int32(target), "level": jnp.int32(0)}


def count_solutions(numbers, target):
    """Counts lists of steps in plain Python."""
    if len(numbers) == 1:
        return int(numbers[0] == target)
    total = 0
    for i, j in itertools.combinations(range(len(numbers)), 2):
        a, b = max(numbers[i], numbers[j]), min(numbers[i], numbers[j])
        results = [a + b, a - b, a * b] + ([a // b] if b and a % b == 0 else [])
        rest = [numbers[k] for k in range(len(numbers)) if k not in (i, j)]
        total += sum(count_solutions([*rest, result], target) for result in results if result < 1000)
    return total


@pytest.mark.exhaustive
def test_a_solution_by_hand(hand):
    texts, timesteps, state = hand.play(make(), task(24, 2, 6, 8), ["6 / 2", "8 * 3"])
    assert texts == ["reach 2 4 from 8 , 6 , 2 .", "reach 2 4 from 8 , 3 .", "reach 2 4 from 2 4 ."]
    assert bool(timesteps[-1].info["success"]) and float(timesteps[-1].reward) == 1.0
    assert float(make().text.distance(state)) == 0.0


def test_steps_that_are_not_possible_change_nothing(hand):
    # A number that is not there, one twice, a negative and a broken result, one beyond three digits, and no step.
    spoken = ["6 + 5", "6 + 6", "2 - 6", "8 / 6", "6 +"]
    texts, timesteps, _ = hand.play(make(), task(24, 2, 6, 8), spoken)
    assert {text.removesuffix(" nothing happens .") for text in texts} == {"reach 2 4 from 8 , 6 , 2 ."}
    assert not any(bool(t.terminated) for t in timesteps)
    assert hand.play(make(), task(0, 99, 99), ["9 9 * 9 9"])[0][1] == "reach 0 from 9 9 , 9 9 ."


@pytest.mark.exhaustive
def test_a_dead_end_is_known(hand):
    environment = make()
    # 8 * 6 = 48 and 48 / 2 = 24; 8 + 6 = 14 leads nowhere.
    states = [hand.play(environment, task(24, 2, 6, 8), spoken)[2] for spoken in ([], ["8 * 6"], ["8 + 6"])]
    assert [float(environment.text.distance(state)) for state in states] == [2.0, 1.0, np.inf]
    _, timesteps, _ = hand.play(environment, task(24, 2, 6, 8), ["8 + 6", "1 4 + 2"])
    assert bool(timesteps[-1].terminated) and not bool(timesteps[-1].info["success"])
    assert float(timesteps[1].info["metrics"]["reachable"]) == 0.0


@pytest.mark.parametrize("numbers", [(2, 6, 8), (1, 1, 3), (5, 5, 5), (4, 7, 8, 8), (1, 2, 3, 4)])
def test_solutions_are_counted_as_in_plain_python(numbers):
    count = jax.jit(jax.vmap(countdown.solutions, in_axes=(None, 0)))
    row = jnp.asarray(list(numbers) + [-1] * (4 - len(numbers)), jnp.int32)
    targets = np.arange(0, 60, 4 if len(numbers) == 4 else 1)
    expected = [count_solutions(numbers, target) for target in targets.tolist()]
    assert sum(expected) > 0
    np.testing.assert_array_equal(count(row, jnp.asarray(targets)), expected)


@pytest.mark.exhaustive
def test_drawn_tasks_can_be_solved(hand):
    for level, count in enumerate((3, 3, 4)):
        tasks = hand.drawn_tasks(make(), 64, level)
        assert (np.asarray(tasks["numbers"] >= 0).sum(axis=1) == count).all()
        assert (jax.jit(jax.vmap(countdown.solutions))(tasks["numbers"], tasks["target"]) > 0).all()
        assert tasks["numbers"].max() <= (9, 20, 20)[level] and tasks["numbers"][:, :count].min() >= 1


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_numbers": (5,)}, "from 2 to 4"),
        ({"largest": (9,)}, "one per level"),
        ({"max_steps": 2}, "at least 3"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        countdown.make_environment(**options)
