"""Sums, differences and products of small numbers, as formulas and as stories; numbers are one word per digit."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.faces import absorbing_world
from jaxagents.environments.text.splits import draw_distinct, hash_integers, split_tasks
from jaxagents.environments.text.words import (
    DIGITS,
    NOTHING_HAPPENS,
    compact,
    make_words,
    number_pattern,
    number_words,
    one_of,
    pad_all,
    read_number,
)
from jaxagents.environments.timesteps import first_timestep
from jaxagents.types import Array, Box, Environment, Patterns, Task, TextFace, TimeStep

OPERATIONS = PLUS, MINUS, TIMES = ("+", "-", "*")
PEOPLE = ("ann", "bob", "eve", "sam")
OBJECTS = ("apples", "books", "coins", "pens")
STORY = ("has", "bags of", "gives", "how many", ".", "?")
PROMPT = ("answer with digits", ".")


@struct.dataclass
class ArithmeticState:
    """What was answered.

    Attributes:
        task: the task of the episode.
        problem: int32 `[P]`, the words of the question.
        answer: int32, the right one.
        wrong: bool, the last well-formed answer was wrong.
        valid: bool, the last action was a number.
        num_steps: int32, answers given.
    """

    task: Task
    problem: Array
    answer: Array
    wrong: Array
    valid: Array
    num_steps: Array


def make_environment(
    num_digits: Sequence[int] = (1, 1, 2, 2),
    num_terms: Sequence[int] = (2, 3, 2, 3),
    *,
    operations: Sequence[str] = OPERATIONS,
    story_fraction: float = 0.5,
    num_attempts: int = 1,
    feedback: bool = True,
    reward: str = "sparse",
    held_out_fraction: float = 0.25,
) -> Environment:
    """Makes arithmetic problems.

    A formula reads `1 2 + 3 4 - 5 = ?`. A story reads `ann has 1 2 apples . bob gives ann 3 4 . ann gives bob 5 .
    how many apples has ann ?`; its products are bags: `ann has 3 bags of 1 2 apples .` Products come first, their
    second factor has one digit, and no intermediate result is negative. The action is the answer, most significant
    digit first, without leading zeros. After a wrong one, the problem is repeated with "wrong ." at its end, and with
    "nothing happens ." after what is no number, which uses up an attempt as well. `info["success"]` is set in the
    step of the right answer, with which the episode ends. Without feedback, an episode has all of its attempts, every
    one earns its own reward, and the problem is repeated with "wrong ?" whatever was answered.

    The expert's thought is the running result after each digit that it has worked in, most significant first:
    `1 2 + 3 4` is `4 2 , 4 6 ,`, since 12 + 30 = 42 and 42 + 4 = 46; `1 2 * 3` is `3 0 , 3 6 ,`, by the digits of the
    first factor.

    Held-out tasks are combinations of numbers and operations that training never shows in any wording.

    The task is `{"numbers": int32 [T], "operations": int32 [T - 1]` (both -1 where there are fewer)`, "people":
    int32 [2], "object", "level": int32, "story": bool}`.

    Args:
        num_digits: most digits of a number, one per level.
        num_terms: numbers of a problem, one per level, at least 2.
        operations: of "+", "-" and "*", equally likely.
        story_fraction: of the problems are stories.
        num_attempts: answers before the episode ends.
        feedback: tells after an answer whether it was right; False asks for all attempts in any case.
        reward: "sparse" is 1 for the right answer; "dense" also gives the last wrong answer its share of right digits,
            those that agree from the first on, divided by the length of the longer number.
        held_out_fraction: of the tasks.

    Returns:
        The environment.

    Raises:
        ValueError: levels of different lengths or of too few terms, answers of more than five digits, unknown
            operations or rewards, a fraction outside of [0, 1], or no attempt.
    """
    num_digits, num_terms, operations = tuple(num_digits), tuple(num_terms), tuple(operations)
    _check(num_digits, num_terms, operations, story_fraction, num_attempts, reward)
    words, ids = make_words(DIGITS, OPERATIONS, ("=", ",", "wrong"), PEOPLE, OBJECTS, STORY, NOTHING_HAPPENS, PROMPT)
    digit_ids, answer_digits = ids(*DIGITS), max_answer_digits(num_digits, num_terms, operations)
    write_problem, num_words = _make_write_problem(max(num_digits), max(num_terms), ids)
    messages = jnp.asarray(pad_all([ids(), ids("wrong", "."), ids(*NOTHING_HAPPENS), ids("wrong", "?")]))
    think = _make_thought(max(num_digits), answer_digits, ids)
    sample = _make_sample(num_digits, num_terms, operations, story_fraction)
    sample_task, sample_held_out_task = split_tasks(
        sample, identify, num_levels=len(num_digits), held_out_fraction=held_out_fraction
    )

    def observe(state: ArithmeticState) -> Array:
        told = jnp.where(state.valid, state.wrong.astype(jnp.int32), 2)
        message = messages[told if feedback else jnp.where(state.num_steps > 0, 3, 0)]
        return compact(jnp.concatenate([state.problem, message]))

    def reset(key: Array, task: Task) -> tuple[ArithmeticState, TimeStep]:
        del key
        state = ArithmeticState(
            task=task,
            problem=write_problem(task),
            answer=running_results(task, max(num_digits))[-1],
            wrong=jnp.zeros((), bool),
            valid=jnp.ones((), bool),
            num_steps=jnp.zeros((), jnp.int32),
        )
        return state, first_timestep(observe(state), info={"success": jnp.zeros((), bool), "valid": state.valid})

    def step(key: Array, state: ArithmeticState, action: Array) -> tuple[ArithmeticState, TimeStep]:
        del key
        number, well_formed = read_number(action, digit_ids)
        valid = well_formed & jnp.all(action == number_words(number, digit_ids, answer_digits))
        success = valid & (number == state.answer)
        wrong = jnp.where(valid, ~success, state.wrong)
        state = state.replace(wrong=wrong, valid=valid, num_steps=state.num_steps + 1)
        terminated = (success & feedback) | (state.num_steps >= num_attempts)
        share = digit_share(action, number_words(state.answer, digit_ids, answer_digits))
        gain = jnp.where(valid & (terminated | (not feedback)), share, 0.0) if reward == "dense" else success
        timestep = TimeStep(
            observation=observe(state),
            reward=gain.astype(jnp.float32),
            terminated=terminated,
            truncated=jnp.zeros((), bool),
            info={"success": success, "valid": valid},
        )
        return state, timestep

    face = TextFace(
        words=words,
        actions=np.asarray(pad_all([ids(*str(number)) for number in range(10**answer_digits)])),
        expert=lambda key, state: (number_words(state.answer, digit_ids, answer_digits), think(state)),
        fingerprint=partial(_fingerprint, feedback=feedback),
        sample_held_out_task=sample_held_out_task,
        num_levels=len(num_digits),
        prompt=lambda task: jnp.asarray(ids(*PROMPT)),
        patterns=_patterns(num_digits, num_terms, operations, ids),
    )
    environment = Environment(
        name="arithmetic",
        sample_task=sample_task,
        reset=reset,
        step=step,
        observation_space=Box((num_words + messages.shape[1],), -1, len(words) - 1, np.int32),
        action_space=Box((answer_digits,), -1, len(words) - 1, np.int32),
        max_steps=num_attempts,
        render=render,
        text=face,
    )
    return absorbing_world(environment)


def _fingerprint(state: ArithmeticState, *, feedback: bool) -> Array:
    """Computes a hash of the problem and of what was said about the last answer: uint32 `[]`."""
    task, told = state.task, state.wrong if feedback else state.num_steps
    return hash_integers(identify(task), task["people"], task["object"], task["story"], told)


def _check(
    num_digits: Sequence[int],
    num_terms: Sequence[int],
    operations: Sequence[str],
    story_fraction: float,
    num_attempts: int,
    reward: str,
) -> None:
    if not num_digits or min(num_digits) < 1:
        raise ValueError(f"`num_digits` must be at least 1, got {num_digits}; try (1,).")
    if len(num_terms) != len(num_digits) or min(num_terms) < 2:
        raise ValueError(f"`num_terms` must be at least 2, one per level, got {num_terms} for {num_digits}.")
    if not operations or not set(operations) <= set(OPERATIONS):
        raise ValueError(f"`operations` must be of {OPERATIONS}, got {operations}.")
    if max(num_terms) > 2 and set(operations) == {TIMES}:
        raise ValueError(f'`operations` must have "+" or "-" for more than two terms, got {operations}.')
    if max_answer_digits(num_digits, num_terms, operations) > 5:
        raise ValueError(f"`num_digits` must keep answers below 100000, got {num_digits}; try at most 3.")
    if not 0.0 <= story_fraction <= 1.0:
        raise ValueError(f"`story_fraction` must be in [0, 1], got {story_fraction}; try 0.5.")
    if num_attempts < 1:
        raise ValueError(f"`num_attempts` must be at least 1, got {num_attempts}.")
    if reward not in ("sparse", "dense"):
        raise ValueError(f'`reward` must be "sparse" or "dense", got {reward!r}.')


def max_answer_digits(num_digits: Sequence[int], num_terms: Sequence[int], operations: Sequence[str]) -> int:
    """Returns the number of digits of the largest answer of all levels."""
    first = 9 if TIMES in operations else 1 + (PLUS in operations)
    further = int(PLUS in operations)
    largest = [
        (10**digits - 1) * (first + further * (terms - 2)) for digits, terms in zip(num_digits, num_terms, strict=True)
    ]
    return len(str(max(largest)))


def identify(task: Task) -> Array:
    """Computes the hash of the numbers and operations, uint32 `[]`; level, wording and names do not count."""
    return hash_integers(task["numbers"], task["operations"])


def digit_share(given: Array, right: Array) -> Array:
    """Computes the share of the words of two numbers that agree, both from the first digit on; float32 `[]`."""
    agree = jnp.sum((given == right) & (right >= 0), dtype=jnp.float32)
    return agree / jnp.maximum(jnp.sum((given >= 0) | (right >= 0), dtype=jnp.float32), 1.0)


def running_results(task: Task, num_digits: int) -> Array:
    """Computes the result after each digit of each further number, most significant digit first.

    In a product, the digits are those of the first factor. Terms that are not there repeat the result.

    Args:
        task: numbers and operations, the latter as indices into `OPERATIONS`.
        num_digits: D, most digits of a number.

    Returns:
        Int32 `[(T - 1) * D]`; the last one is the answer.
    """
    total, results = task["numbers"][0], []
    for term in range(1, task["numbers"].shape[0]):
        operation, number = task["operations"][term - 1], task["numbers"][term]
        product = operation == OPERATIONS.index(TIMES)
        sign = jnp.where(operation == OPERATIONS.index(PLUS), 1, jnp.where(operation < 0, 0, -1))
        worked_in, first = jnp.where(product, 0, total), total
        for place in reversed(range(num_digits)):
            part = jnp.where(product, first, number) // 10**place % 10 * 10**place
            worked_in = worked_in + jnp.where(product, part * number, sign * part)
            results.append(worked_in)
        total = worked_in
    return jnp.stack(results).astype(jnp.int32)


def _make_sample(
    num_digits: Sequence[int], num_terms: Sequence[int], operations: Sequence[str], story_fraction: float
) -> Callable[[Array, Array], Task]:
    """Makes `(key, level) -> task`."""
    most_terms = max(num_terms)
    minus, times = OPERATIONS.index(MINUS), OPERATIONS.index(TIMES)
    at_first = np.asarray([OPERATIONS.index(operation) for operation in operations], np.int32)
    later = at_first[at_first != times] if most_terms > 2 else at_first

    def sample(key: Array, level: Array) -> Task:
        number_key, operation_key, wording_key = jax.random.split(key, 3)
        largest = 10 ** jnp.asarray(num_digits, jnp.int32)[level] - 1
        uniform = jax.random.uniform(number_key, (most_terms,))
        drawn = jax.random.randint(operation_key, (most_terms - 1,), 0, 1 << 16)
        # Zero is only drawn where nothing else can be taken away.
        total = 1 + jnp.floor(uniform[0] * largest).astype(jnp.int32)
        numbers, chosen = [total], []
        for term in range(1, most_terms):
            choices = at_first if term == 1 else later
            operation = jnp.asarray(choices)[drawn[term - 1] % len(choices)]
            high = jnp.where(operation == minus, jnp.minimum(total, largest), jnp.where(operation == times, 9, largest))
            number = jnp.minimum(1 + jnp.floor(uniform[term] * high).astype(jnp.int32), high)
            exists = term < jnp.asarray(num_terms, jnp.int32)[level]
            result = jnp.where(operation == minus, total - number, total + number)
            total = jnp.where(exists, jnp.where(operation == times, total * number, result), total)
            numbers.append(jnp.where(exists, number, -1))
            chosen.append(jnp.where(exists, operation, -1))
        story_key, people_key, object_key = jax.random.split(wording_key, 3)
        return {
            "numbers": jnp.stack(numbers),
            "operations": jnp.stack(chosen),
            "story": jax.random.uniform(story_key) < story_fraction,
            "people": draw_distinct(people_key, jnp.ones(len(PEOPLE), bool), 2),
            "object": jax.random.randint(object_key, (), 0, len(OBJECTS)),
            "level": level,
        }

    return sample


def _make_write_problem(
    num_digits: int, num_terms: int, ids: Callable[..., np.ndarray]
) -> tuple[Callable[[Task], Array], int]:
    """Makes `task -> int32 [P]`, and P."""
    digit_ids = ids(*DIGITS)

    def formula(task: Task) -> list[Array]:
        operation_ids = jnp.asarray(np.append(ids(*OPERATIONS), np.int32(-1)))
        parts = [number_words(task["numbers"][0], digit_ids, num_digits)]
        for term in range(1, num_terms):
            number = number_words(task["numbers"][term], digit_ids, num_digits)
            exists = task["numbers"][term] >= 0
            parts += [operation_ids[task["operations"][term - 1]][None], jnp.where(exists, number, -1)]
        return [*parts, ids("=", "?")]

    def story(task: Task) -> list[Array]:
        hero, friend = (jnp.asarray(ids(*PEOPLE))[task["people"][i]][None] for i in range(2))
        thing = jnp.asarray(ids(*OBJECTS))[task["object"]][None]
        bags = number_words(task["numbers"][1], digit_ids, 1)
        bags = jnp.where(task["operations"][0] == OPERATIONS.index(TIMES), jnp.append(bags, ids("bags of")), -1)
        parts = [hero, ids("has"), bags, number_words(task["numbers"][0], digit_ids, num_digits), thing, ids(".")]
        for term in range(1, num_terms):
            gets = task["operations"][term - 1] == OPERATIONS.index(PLUS)
            gives = task["operations"][term - 1] == OPERATIONS.index(MINUS)
            giver, taker = jnp.where(gets, friend, hero), jnp.where(gets, hero, friend)
            number = number_words(task["numbers"][term], digit_ids, num_digits)
            sentence = jnp.concatenate([giver, ids("gives"), taker, number, ids(".")])
            parts.append(jnp.where(gets | gives, sentence, -1))
        return [*parts, ids("how many"), thing, ids("has"), hero, ids("?")]

    # The most words that are there at once: bags take the place of a longer sentence.
    num_words = 4 + num_digits + (num_terms - 1) * (4 + num_digits) + 5

    def write(task: Task) -> Array:
        told, plain = jnp.concatenate(story(task)), jnp.concatenate(formula(task))
        plain = jnp.pad(plain, (0, told.shape[0] - plain.shape[0]), constant_values=-1)
        return compact(jnp.where(task["story"], told, plain))[:num_words]

    return write, num_words


def _make_thought(
    num_digits: int, answer_digits: int, ids: Callable[..., np.ndarray]
) -> Callable[[ArithmeticState], Array]:
    """Makes `state -> int32 [H]`, the running results without those of leading zeros."""
    digit_ids, comma = ids(*DIGITS), ids(",")

    def thought(state: ArithmeticState) -> Array:
        numbers, operations = state.task["numbers"], state.task["operations"]
        worked_in = jnp.where(operations == OPERATIONS.index(TIMES), numbers[0], numbers[1:])
        powers = 10 ** np.arange(num_digits - 1, -1, -1, dtype=np.int32)
        counts = (worked_in[:, None] >= powers[None, :]) | ((worked_in[:, None] == 0) & (powers[None, :] == 1))
        written = [
            jnp.where(said, jnp.append(number_words(result, digit_ids, answer_digits), comma), -1)
            for said, result in zip(counts.reshape(-1), running_results(state.task, num_digits))
        ]
        return compact(jnp.concatenate(written))

    return thought


def _patterns(
    num_digits: Sequence[int], num_terms: Sequence[int], operations: Sequence[str], ids: Callable[..., np.ndarray]
) -> Patterns:
    """Returns what can be said, for every level with a product in front and without one."""
    one, number = partial(one_of, ids), partial(number_pattern, ids)
    sums = [operation for operation in operations if operation != TIMES]
    answer = one(None, ("wrong", "."), NOTHING_HAPPENS, ("wrong", "?"))
    person, thing, stop = one(*PEOPLE), one(*OBJECTS), one(".")
    observations, thoughts = [], []
    for digits, terms in sorted(set(zip(num_digits, num_terms, strict=True))):
        for product in ([True] if TIMES in operations else []) + ([False] if sums else []):
            later = terms - 1 - product
            if later and not sums:
                continue
            formula = (*number(digits), *(one(TIMES), *number(1)) * product)
            formula += (one(*sums), *number(digits)) * later if sums else ()
            story = (person, one("has"), *(*number(1), one("bags of")) * product, *number(digits), thing, stop)
            story += (person, one("gives"), person, *number(digits), stop) * later
            question = (one("how many"), thing, one("has"), person, one("?"))
            observations += [(*formula, one(("=", "?")), answer), (*story, *question, answer)]
            totals = [(10**digits - 1) * (9 if product else 1 + (PLUS in sums))]
            totals += [totals[0] + index * (10**digits - 1) * (PLUS in sums) for index in range(1, terms - 1)]
            results = [len(str(total)) for total in totals for _ in range(digits)]
            # The result of a digit that is not there is left out.
            thoughts.append(
                tuple(place for size in results for place in (*[one(*DIGITS, None)] * size, one(",", None)))
            )
    return Patterns(observation=tuple(observations), prompt=((one(PROMPT),),), thought=tuple(thoughts))


def render(state: ArithmeticState) -> str:
    """Writes the problem as a formula, and its answer.

    Args:
        state: of one instance, on the host.

    Returns:
        One line.
    """
    first, *others = np.asarray(state.task["numbers"]).tolist()
    operations = np.asarray(state.task["operations"]).tolist()
    rest = "".join(f" {OPERATIONS[operation]} {number}" for operation, number in zip(operations, others) if number >= 0)
    return f"{first}{rest} = {int(state.answer)}"
