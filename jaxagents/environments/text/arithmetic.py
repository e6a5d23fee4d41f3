"""Sums, differences and products of small numbers, as formulas and as stories, with one word per digit."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.splits import draw_distinct
from jaxagents.environments.text.texts import Text, cases, number, pick, refusal, text, when
from jaxagents.environments.text.words import DIGITS, number_words
from jaxagents.environments.text.world import Status, World
from jaxagents.ops.checks import check_counts
from jaxagents.types import Array, Environment, Task

OPERATIONS = PLUS, MINUS, TIMES = ("+", "-", "*")
PEOPLE = ("ann", "bob", "eve", "sam")
OBJECTS = ("apples", "books", "coins", "pens")
STORY = ("has", "bags of", "gives", "how many", ".", "?")
PROMPT = ("answer with digits", ".")


@struct.dataclass
class ArithmeticState:
    """State of the answers.

    Attributes:
        task: the task of the episode.
        answer: int32, right answer.
        given: int32, last answer that was given; -1 for none.
        answered: bool, whether the last turn gave an answer.
        attempts: int32, number of turns taken.
        earned: float32, total worth of the answers.
    """

    task: Task
    answer: Array
    given: Array
    answered: Array
    attempts: Array
    earned: Array


def make_environment(
    num_digits: Sequence[int] = (1, 1, 2, 2),
    num_terms: Sequence[int] = (2, 3, 2, 3),
    *,
    operations: Sequence[str] | Sequence[Sequence[str]] = OPERATIONS,
    story_fraction: float = 0.5,
    num_attempts: int = 1,
    feedback: bool = True,
    expert_repeats: float = 0.0,
    reward: str = "sparse",
    **options: Any,
) -> Environment:
    """Makes arithmetic problems.

    A formula reads `1 2 + 3 4 - 5 = ?`. A story reads `ann has 1 2 apples . bob gives ann 3 4 . ann gives bob 5 . how
    many apples has ann ?`; its products are bags: `ann has 3 bags of 1 2 apples .` Products come first, their second
    factor has one digit, and no intermediate result is negative. The action is the answer, most significant digit
    first, without leading zeros. After a wrong answer, the problem is repeated with "wrong ." at its end, and with
    "nothing happens ." after an action that is not a number, which uses up an attempt as well. `info["success"]` is set
    in the step of the right answer, with which the episode ends. Without feedback, an episode has all of its attempts,
    every answer earns its own reward, and the problem is repeated with "wrong ?" whatever the answer was.

    The expert's thought is the running result after each further digit, most significant digit first: `1 2 + 3 4` is `4
    2 , 4 6 ,`, since 12 + 30 = 42 and 42 + 4 = 46; `1 2 * 3` is `3 0 , 3 6 ,`, by the digits of the first factor.

    Held-out tasks are problems that training never shows in any wording or order: 3 + 4 and 4 + 3 count as one.

    The task is `{"numbers": int32 [T], "operations": int32 [T - 1]` (both -1 where there are fewer)`, "people":
    int32 [2], "object", "level": int32, "story": bool}`.

    Args:
        num_digits: maximum digits of a number, one per level.
        num_terms: number of terms of a problem, one per level, at least 2.
        operations: some of "+", "-" and "*", equally likely; or one such list per level.
        story_fraction: fraction of the problems that are stories.
        num_attempts: number of answers before the episode ends.
        feedback: whether an answer is followed by a message if it was wrong; False: all attempts are used in any case.
        expert_repeats: probability that the expert, if asked again, repeats the last answer, right or wrong.
        reward: "sparse" is 1 for the right answer; "dense" also pays for the last wrong answer its share of right
            digits, the number of leading digits that agree, divided by the length of the longer number.
        **options: further arguments of `make_text_world`, such as `held_out_fraction`.

    Returns:
        The environment.

    Raises:
        ValueError: levels have different lengths or too few terms, answers have more than five digits, operations or
            rewards are unknown, a fraction or probability is outside of [0, 1], or there is no attempt.
    """
    num_digits, num_terms = tuple(num_digits), tuple(num_terms)
    of_level = _operations_of_levels(operations, len(num_digits))
    operations = tuple(name for name in OPERATIONS if any(name in names for names in of_level))
    _check(num_digits, num_terms, of_level, story_fraction, num_attempts, expert_repeats)
    size = max_answer_digits(num_digits, num_terms, operations)
    words = (*DIGITS, *OPERATIONS, "=", ",", "wrong", *PEOPLE, *OBJECTS, *STORY)
    grammar = make_grammar(f"{{int:{size}}}", words=words)
    say_problem, say_thought = make_wording(num_digits, num_terms, operations)

    def start(key: Array, task: Task) -> ArithmeticState:
        del key
        zero = jnp.zeros((), jnp.int32)
        return ArithmeticState(
            task=task,
            answer=running_results(task, max(num_digits))[-1],
            given=zero - 1,
            answered=jnp.zeros((), bool),
            attempts=zero,
            earned=jnp.zeros(()),
        )

    def play(key: Array, state: ArithmeticState, verb: Array, args: Array) -> ArithmeticState:
        given = args[0, 0]
        worth = digit_share(given, state.answer, size) if reward == "dense" else (given == state.answer) * 1.0
        state = state.replace(given=given, answered=jnp.ones((), bool), attempts=state.attempts + 1)
        return state.replace(earned=state.earned + worth)

    def status(state: ArithmeticState) -> Status:
        success = state.answered & (state.given == state.answer)
        if not feedback:
            return Status(success=success, over=state.attempts >= num_attempts, payoff=state.earned[None])
        over = success | (state.attempts >= num_attempts)
        share = jnp.where(over & state.answered, digit_share(state.given, state.answer, size), 0.0)
        return Status(success=success, over=over, progress=share)

    def wrong(state: ArithmeticState) -> Array:
        return (state.given >= 0) & (state.given != state.answer)

    def tell(state: ArithmeticState, seat: Array) -> Text:
        asked_again = jnp.where(state.attempts > 0, 2, -1)
        outcome = jnp.where(state.answered & wrong(state), 0, 1) if feedback else asked_again
        return text(say_problem(state.task), cases(outcome, text("wrong", "."), refusal(), text("wrong", "?")))

    def expert(key: Array, state: ArithmeticState) -> tuple[Array, Array, Text]:
        repeats = (state.given >= 0) & jax.random.bernoulli(key, expert_repeats)
        answer = jnp.where(repeats, state.given, state.answer)
        return jnp.int32(0), grammar.args(answer), say_thought(state.task)

    def situation(state: ArithmeticState) -> tuple[Array, ...]:
        task = state.task
        return task["people"], task["object"], task["story"], wrong(state) if feedback else state.attempts

    world = World(
        name="arithmetic",
        grammar=grammar,
        max_steps=num_attempts,
        num_levels=len(num_digits),
        sample=_make_sample(num_digits, num_terms, of_level, story_fraction),
        identity=identify,
        start=start,
        situation=lambda state: (state.task["numbers"], state.task["operations"], *situation(state)),
        play=play,
        skip=lambda state: state.replace(answered=jnp.zeros((), bool), attempts=state.attempts + 1),
        status=status,
        tell=tell,
        prompt=lambda task: text(*PROMPT),
        expert=expert,
        render=render,
    )
    return make_text_world(world, reward=reward, **options)


def _operations_of_levels(
    operations: Sequence[str] | Sequence[Sequence[str]], num_levels: int
) -> tuple[tuple[str, ...], ...]:
    """Returns the operations of every level, in order: the same ones if only one list is given."""
    if all(isinstance(name, str) for name in operations):
        return (tuple(operations),) * num_levels  # type: ignore[return-value]
    if len(operations) != num_levels or any(isinstance(names, str) for names in operations):
        raise ValueError(f"`operations` must be one list, or one per level, {num_levels}, got {list(operations)}.")
    return tuple(map(tuple, operations))


def _check(
    num_digits: Sequence[int],
    num_terms: Sequence[int],
    operations: Sequence[Sequence[str]],
    story_fraction: float,
    num_attempts: int,
    expert_repeats: float,
) -> None:
    if not num_digits or min(num_digits) < 1:
        raise ValueError(f"`num_digits` must be at least 1, got {num_digits}; try (1,).")
    if len(num_terms) != len(num_digits) or min(num_terms) < 2:
        raise ValueError(f"`num_terms` must be at least 2, one per level, got {num_terms} for {num_digits}.")
    for names, terms in zip(operations, num_terms):
        if not names or not set(names) <= set(OPERATIONS):
            raise ValueError(f"`operations` must be of {OPERATIONS}, got {names}.")
        if terms > 2 and set(names) == {TIMES}:
            raise ValueError(f'`operations` must have "+" or "-" for more than two terms, got {names}.')
    if max_answer_digits(num_digits, num_terms, [name for names in operations for name in names]) > 5:
        raise ValueError(f"`num_digits` must keep answers below 100000, got {num_digits}; try at most 3.")
    if not 0.0 <= story_fraction <= 1.0:
        raise ValueError(f"`story_fraction` must be in [0, 1], got {story_fraction}; try 0.5.")
    check_counts(num_attempts=num_attempts)
    if not 0.0 <= expert_repeats <= 1.0:
        raise ValueError(f"`expert_repeats` must be in [0, 1], got {expert_repeats}; try 0.8.")


def max_answer_digits(num_digits: Sequence[int], num_terms: Sequence[int], operations: Sequence[str]) -> int:
    """Returns the number of digits of the largest answer of all levels."""
    first = 9 if TIMES in operations else 1 + (PLUS in operations)
    further = int(PLUS in operations)
    largest = [
        (10**digits - 1) * (first + further * (terms - 2)) for digits, terms in zip(num_digits, num_terms, strict=True)
    ]
    return len(str(max(largest)))


def identify(task: Task) -> tuple[Array, Array]:
    """Returns what identifies a problem, without level, wording, names, and the order of what commutes.

    A problem is the product of two numbers, or none, and a set of numbers that are added or subtracted.
    """
    numbers, operations = task["numbers"], task["operations"]
    product, absent = operations[0] == OPERATIONS.index(TIMES), jnp.int32(1 << 30)
    signs = jnp.where(operations == OPERATIONS.index(MINUS), -1, 1)
    terms = jnp.append(numbers[:1], jnp.where(operations >= 0, signs * numbers[1:], absent))
    factors = jnp.where(product, jnp.sort(numbers[:2]), absent)
    terms = jnp.where(product & (jnp.arange(terms.shape[0]) < 2), absent, terms)
    return factors, jnp.sort(terms)


def digit_share(given: Array, right: Array, size: int) -> Array:
    """Computes the share of leading digits in which two numbers agree, float32 `[]`.

    Args:
        given: int32 `[]`, at least 0.
        right: int32 `[]`.
        size: maximum number of digits.
    """
    given, right = (number_words(number, np.arange(10, dtype=np.int32), size) for number in (given, right))
    agree = jnp.sum((given == right) & (right >= 0), dtype=jnp.float32)
    return agree / jnp.maximum(jnp.sum((given >= 0) | (right >= 0), dtype=jnp.float32), 1.0)


def running_results(task: Task, num_digits: int) -> Array:
    """Computes the result after each digit of each further number, most significant digit first.

    In a product, the digits are those of the first factor. Missing terms repeat the result.

    Returns int32 `[(T - 1) * D]` for numbers of at most D digits; the last one is the answer.
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
    num_digits: Sequence[int], num_terms: Sequence[int], operations: Sequence[Sequence[str]], story_fraction: float
) -> Callable[[Array, Array], Task]:
    """Makes `(key, level) -> task`."""
    most_terms = max(num_terms)
    minus, times = OPERATIONS.index(MINUS), OPERATIONS.index(TIMES)
    at_first = [[OPERATIONS.index(name) for name in names] for names in operations]
    # Draws for further terms that a level does not have are not used.
    later = [[index for index in indices if index != times] or indices for indices in at_first]

    def choose(choices: Sequence[Sequence[int]], level: Array, drawn: Array) -> Array:
        """Selects one of the choices of the level."""
        counts = np.asarray(list(map(len, choices)), np.int32)
        padded = np.asarray([[*row, *[-1] * (counts.max() - len(row))] for row in choices], np.int32)
        return jnp.asarray(padded)[level, drawn % jnp.asarray(counts)[level]]

    def sample(key: Array, level: Array) -> Task:
        number_key, operation_key, wording_key = jax.random.split(key, 3)
        largest = 10 ** jnp.asarray(num_digits, jnp.int32)[level] - 1
        uniform = jax.random.uniform(number_key, (most_terms,))
        drawn = jax.random.randint(operation_key, (most_terms - 1,), 0, 1 << 16)
        # Zero is only drawn if nothing else can be subtracted.
        total = 1 + jnp.floor(uniform[0] * largest).astype(jnp.int32)
        numbers, chosen = [total], []
        for term in range(1, most_terms):
            operation = choose(at_first if term == 1 else later, level, drawn[term - 1])
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


def make_wording(
    num_digits: Sequence[int], num_terms: Sequence[int], operations: Sequence[str]
) -> tuple[Callable[[Task], Text], Callable[[Task], Text]]:
    """Makes the texts of a task: the problem, and the thought that solves it.

    The thought has the running results without those of leading zeros. Parts that depend on the level or on whether
    there is a product are named choices, so that the maximum length of texts is exact.
    """
    kinds = sorted(set(zip(num_digits, num_terms, strict=True)))
    kind_of = np.asarray([kinds.index(kind) for kind in zip(num_digits, num_terms, strict=True)], np.int32)
    symbols = [operation if operation in operations else None for operation in (PLUS, MINUS)]
    signs = any(symbols)

    def of_level(task: Task, say: Callable[[int, int], Text]) -> Text:
        """Makes the text of `(digits, terms)` at the level of a task."""
        return cases(jnp.asarray(kind_of)[task["level"]], *(say(*kind) for kind in kinds), name="level")

    def is_product(task: Task) -> Array:
        return task["operations"][0] == OPERATIONS.index(TIMES)

    def by_product(task: Task, product: Text | None, plain: Text | None) -> Text:
        """Selects one of two texts, or returns the only one that the operations allow."""
        if not signs or TIMES not in operations:
            return text(product if TIMES in operations else plain)
        return when(is_product(task), product, plain, name="product")

    def formula(task: Task) -> Text:
        numbers, chosen = task["numbers"], task["operations"]

        def say(digits: int, terms: int) -> Text:
            plain = [text(pick(symbols, chosen[i - 1]), number(numbers[i], digits)) for i in range(1, terms)]
            first = by_product(task, text(TIMES, number(numbers[1], 1)), plain[0])
            return text(number(numbers[0], digits), first, *plain[1:], "=", "?")

        return of_level(task, say)

    def story(task: Task) -> Text:
        numbers, chosen = task["numbers"], task["operations"]
        hero, friend = (pick(PEOPLE, task["people"][i]) for i in range(2))
        thing = pick(OBJECTS, task["object"])

        def sentence(term: int, digits: int) -> Text:
            gets = chosen[term - 1] == OPERATIONS.index(PLUS)
            giver, taker = (pick(PEOPLE, jnp.where(gets, *pair)) for pair in (task["people"][::-1], task["people"]))
            phrase = text(giver, "gives", taker, number(numbers[term], digits), ".")
            return when(numbers[term] >= 0, phrase)

        def say(digits: int, terms: int) -> Text:
            bags = by_product(task, text(number(numbers[1], 1), "bags of"), None)
            plain = [sentence(term, digits) for term in range(1, terms)]
            given = by_product(task, None, plain[0])
            return text(hero, "has", bags, number(numbers[0], digits), thing, ".", given, *plain[1:])

        return text(of_level(task, say), "how many", thing, "has", hero, "?")

    def think(task: Task) -> Text:
        results = running_results(task, max(num_digits)).reshape(-1, max(num_digits))
        worked_in = jnp.where(task["operations"] == OPERATIONS.index(TIMES), task["numbers"][0], task["numbers"][1:])

        def say(product: bool, digits: int, terms: int) -> Text:
            largest, parts = (10**digits - 1) * (9 if product else 1 + (PLUS in operations)), []
            for term in range(terms - 1):
                room = len(str(largest + term * (10**digits - 1) * (PLUS in operations)))
                for place in range(digits):
                    power = 10 ** (digits - 1 - place)
                    is_due = (worked_in[term] >= power) | ((worked_in[term] == 0) & (power == 1))
                    result = results[term, max(num_digits) - digits + place]
                    parts.append(when(is_due, text(number(result, room), ",")))
            return text(*parts)

        return of_level(task, lambda *kind: by_product(task, say(True, *kind), say(False, *kind)))

    return lambda task: when(task["story"], story(task), formula(task)), think


def render(state: ArithmeticState) -> str:
    """Writes the problem as a formula, and its answer, on the host."""
    first, *others = np.asarray(state.task["numbers"]).tolist()
    operations = np.asarray(state.task["operations"]).tolist()
    rest = "".join(f" {OPERATIONS[operation]} {number}" for operation, number in zip(operations, others) if number >= 0)
    return f"{first}{rest} = {int(state.answer)}"
