"""Countdown: reach a number from given ones, combining two at a time; every solution is counted."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.experts import choose
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.texts import Text, number, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, Task

OPERATIONS = ("+", "-", "*", "/")
DIGITS = 3
"""Most digits of a number; a step to a larger one is not possible."""


@struct.dataclass
class CountdownState:
    """Remaining numbers.

    Attributes:
        task: the task of the episode.
        numbers: int32 `[N]`, in descending order, -1 after the last.
    """

    task: Task
    numbers: Array


def make_environment(
    num_numbers: tuple[int, ...] = (3, 3, 4),
    largest: tuple[int, ...] = (9, 20, 20),
    *,
    max_steps: int = 6,
    **options: Any,
) -> Environment:
    """Makes a world of countdown.

    The observation reads `reach 2 4 from 8 , 6 , 2 .`; a step such as `6 / 2` replaces the two numbers by the result.
    It is possible if both numbers exist and the result is a whole number from 0 to 999; other steps change nothing. All
    numbers must be used: the episode ends with the last one. The thought of the expert is the result of its step.

    Args:
        num_numbers: number of given numbers, one per level, from 2 to 4; the number of steps is one less.
        largest: largest given number, one per level, from 2 to 99.
        max_steps: maximum turns, including steps that are not possible.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: a value is out of its range, or the lists have different lengths.

    References:
        Gandhi et al. (2024), Stream of Search, section 3; Zhai et al. (2024), points 24, appendix.
    """
    num_numbers, largest = tuple(num_numbers), tuple(largest)
    if not num_numbers or not 2 <= min(num_numbers) <= max(num_numbers) <= 4:
        raise ValueError(f"`num_numbers` must be from 2 to 4, got {num_numbers}; try (3, 4).")
    if len(largest) != len(num_numbers) or not 2 <= min(largest) <= max(largest) <= 99:
        raise ValueError(f"`largest` must be from 2 to 99, one per level, got {largest} for {num_numbers}.")
    if max_steps < max(num_numbers) - 1:
        raise ValueError(f"`max_steps` must be at least {max(num_numbers) - 1} for {num_numbers}, got {max_steps}.")
    world = World(
        name="countdown",
        grammar=make_grammar("{int:3} {operation} {int:3}", operation=OPERATIONS),
        max_steps=max_steps,
        num_levels=len(num_numbers),
        sample=partial(sample, num_numbers, largest),
        identity=lambda task: (task["numbers"], task["target"]),
        start=lambda key, task: CountdownState(task=task, numbers=task["numbers"]),
        play=play,
        status=status,
        tell=tell,
        expert=expert,
        distance=distance,
    )
    return make_text_world(world, **options)


def steps(numbers: Array) -> tuple[Array, Array, Array]:
    """Computes the result of every step, with the larger number first.

    Args:
        numbers: int32 `[N]` in any order, -1 for none.

    Returns:
        Which steps are possible, bool `[M]` for M = 4 N (N - 1) / 2; the steps, int32 `[M, 4]`: number, operation,
        number and result; and the numbers after them, int32 `[M, N - 1]`.
    """
    first, second = np.triu_indices(len(numbers), 1)
    others = np.asarray([[k for k in range(len(numbers)) if k not in pair] for pair in zip(first, second)], np.int32)
    large, small = jnp.maximum(numbers[first], numbers[second]), jnp.minimum(numbers[first], numbers[second])
    taken = jnp.stack([calculate(large, jnp.int32(operation), small) for operation in range(len(OPERATIONS))], axis=1)
    possible = (small >= 0)[:, None] & (taken >= 0)
    operation = jnp.broadcast_to(jnp.arange(len(OPERATIONS))[None], taken.shape)
    large, small = (jnp.broadcast_to(x[:, None], taken.shape) for x in (large, small))
    rest = jnp.broadcast_to(numbers[others][:, None], (*taken.shape, len(numbers) - 2))
    after = jnp.concatenate([rest, taken[:, :, None]], axis=2)
    rows = jnp.stack([large, operation, small, taken], axis=2)
    return possible.reshape(-1), rows.reshape(-1, 4), after.reshape(-1, len(numbers) - 1)


def calculate(first: Array, operation: Array, second: Array) -> Array:
    """Computes `first operation second`, int32; -1 if that is not a whole number from 0 to 999."""
    whole = (second > 0) & (first % jnp.maximum(second, 1) == 0)
    quotient = jnp.where(whole, first // jnp.maximum(second, 1), -1)
    result = jnp.select(
        [operation == 0, operation == 1, operation == 2], [first + second, first - second, first * second], quotient
    )
    return jnp.where((result >= 0) & (result < 10**DIGITS), result, -1)


def solutions(numbers: Array, target: Array) -> Array:
    """Counts the ways to the target: different lists of steps that use all numbers, int32 `[]`."""
    found = jnp.max(numbers) == target
    if len(numbers) == 1:
        return found.astype(jnp.int32)
    possible, _, after = steps(numbers)
    ways = jax.vmap(solutions, in_axes=(0, None))(after, target)
    return jnp.where(jnp.sum(numbers >= 0) == 1, found, jnp.sum(jnp.where(possible, ways, 0))).astype(jnp.int32)


def sample(num_numbers: tuple[int, ...], largest: tuple[int, ...], key: Array, level: Array) -> Task:
    """Draws numbers, and as the target the result of random steps."""
    key, *step_keys = jax.random.split(key, max(num_numbers))
    drawn = jax.random.randint(key, (max(num_numbers),), 1, jnp.asarray(largest, jnp.int32)[level] + 1)
    there = jnp.arange(max(num_numbers)) < jnp.asarray(num_numbers, jnp.int32)[level]
    given = left = jnp.where(there, drawn, -1)
    target = left[0]
    for step_key in step_keys:
        possible, rows, after = steps(left)
        chosen, more = choose(step_key, possible), jnp.any(possible)
        target, left = jnp.where(more, rows[chosen, 3], target), jnp.where(more, after[chosen], left[:-1])
    return {"numbers": falling(given), "target": target, "level": level}


def falling(numbers: Array) -> Array:
    """Sorts numbers in descending order."""
    return -jnp.sort(-numbers)


def play(key: Array, state: CountdownState, verb: Array, args: Array) -> CountdownState:
    """Replaces the two numbers of a possible step by its result."""
    del key, verb
    numbers, (first, operation, second) = state.numbers, args[:, 0]
    one = jnp.argmax(numbers == first)
    rest = numbers.at[one].set(-1)
    other = jnp.argmax(rest == second)
    result = calculate(first, operation, second)
    possible = (numbers[one] == first) & (rest[other] == second) & (result >= 0) & (jnp.minimum(first, second) >= 0)
    return state.replace(numbers=jnp.where(possible, falling(rest.at[other].set(result)), numbers))


def distance(state: CountdownState) -> Array:
    """Counts the steps to the target, float32 `[]`; inf if it can no longer be reached."""
    left = jnp.sum(state.numbers >= 0) - 1.0
    return jnp.where(solutions(state.numbers, state.task["target"]) > 0, left, jnp.inf)


def status(state: CountdownState) -> Status:
    """Returns success; progress is the share of the steps that are done, 0 if the target is out of reach."""
    over = state.numbers[1] < 0
    total = jnp.sum(state.task["numbers"] >= 0) - 1.0
    reachable = jnp.isfinite(distance(state))
    progress = jnp.where(reachable, 1.0 - distance(state) / total, 0.0)
    success = over & (state.numbers[0] == state.task["target"])
    return Status(success=success, over=over, progress=progress, parts={"reachable": reachable.astype(jnp.float32)})


def tell(state: CountdownState, seat: Array) -> Text:
    """Describes the target and the numbers."""
    del seat
    first, *others = state.numbers
    listed = [text(when(other >= 0, ","), number(other, DIGITS)) for other in others]
    return text("reach", number(state.task["target"], DIGITS), "from", number(first, DIGITS), *listed, ".")


def expert(key: Array, state: CountdownState) -> tuple[Array, Array, Text]:
    """Takes one of the steps from which the target can be reached, at random."""
    possible, rows, after = steps(state.numbers)
    ways = jax.vmap(solutions, in_axes=(0, None))(after, state.task["target"])
    good = possible & (ways > 0)
    row = jnp.maximum(rows[choose(key, jnp.where(jnp.any(good), good, possible))], 0)
    return jnp.zeros((), jnp.int32), row[:3, None], text(number(row[3], DIGITS))
