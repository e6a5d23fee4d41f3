"""Guess a number: every guess is answered with higher or lower."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.texts import Text, cases, number, text
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, Task


@struct.dataclass
class NumberState:
    """State of knowledge.

    Attributes:
        task: the task of the episode.
        low: int32, the smallest number that agrees with the answers.
        high: int32, the largest such number.
        guess: int32, last guess; -1 at first.
    """

    task: Task
    low: Array
    high: Array
    guess: Array


def make_environment(
    largest: tuple[int, ...] = (31, 99),
    *,
    num_starts: int = 1,
    recall: bool = False,
    max_steps: int = 8,
    **options: Any,
) -> Environment:
    """Makes a world in which one of `largest` consecutive numbers is guessed, which start at 1 or elsewhere.

    A guess is a number; the answer is `higher`, `lower`, or the end. The expert halves the remaining numbers; its
    thought is their range: `1 6 to 2 3`. `progress` is `1 - log(numbers left) / log(numbers)`.

    Args:
        largest: largest number when counting from 1, one per level, from 3 to 999.
        num_starts: number of lowest numbers, 1 to `num_starts`, one of which starts the range of a task; the largest
            number is shifted with it. With one, a policy can memorise which secrets are held out: they never win in
            training.
        recall: whether the observation shows the remaining range, `1 6 to 2 3`, and not only the last answer.
        max_steps: maximum turns, enough for halving.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: the largest numbers are out of their range, or there are too few turns for halving.

    References:
        Tajwar et al. (2025), PAPRIKA, appendix; Abdulhai et al. (2023), LMRL Gym.
    """
    largest = tuple(largest)
    if not largest or not 3 <= min(largest) <= max(largest) <= 999:
        raise ValueError(f"`largest` must be from 3 to 999, got {largest}; try (31,).")
    if 2**max_steps <= max(largest):
        raise ValueError(
            f"`max_steps` must be at least {max(largest).bit_length()} to find one of {max(largest)}, got {max_steps}."
        )
    if num_starts < 1 or max(largest) + num_starts - 1 > 999:
        raise ValueError(f"`num_starts` must be at least 1 and leave numbers below 1000, got {num_starts}; try 1.")
    digits = len(str(max(largest) + num_starts - 1))

    def sample(key: Array, level: Array) -> Task:
        high = jnp.asarray(largest, jnp.int32)[level]
        more = jax.random.randint(jax.random.fold_in(key, 1), (), 0, num_starts)
        secret = jax.random.randint(key, (), 1, high + 1) + more
        return {"secret": secret, "lowest": more + 1, "largest": high + more, "level": level}

    def start(key: Array, task: Task) -> NumberState:
        del key
        return NumberState(task=task, low=task["lowest"], high=task["largest"], guess=jnp.int32(-1))

    def tell(state: NumberState, seat: Array) -> Text:
        del seat
        if recall:
            return text("guess", number(state.low, digits), "to", number(state.high, digits))
        return cases(
            jnp.where(state.guess < 0, 0, jnp.where(state.guess < state.task["secret"], 1, 2)),
            text("guess", number(state.low, digits), "to", number(state.high, digits)),
            "higher",
            "lower",
        )

    def expert(key: Array, state: NumberState) -> tuple[Array, Array, Text]:
        del key
        middle = (state.low + state.high) // 2
        thought = text(number(state.low, digits), "to", number(state.high, digits))
        return jnp.int32(0), middle[None, None], thought

    world = World(
        name="guess_number",
        grammar=make_grammar(f"{{int:{digits}}}"),
        max_steps=max_steps,
        num_levels=len(largest),
        sample=sample,
        identity=lambda task: (task["secret"], task["lowest"], task["largest"]),
        start=start,
        situation=(lambda state: (state.low, state.high, state.guess == state.task["secret"])) if recall else None,
        play=play,
        status=status,
        tell=tell,
        expert=expert,
    )
    return make_text_world(world, **options)


def play(key: Array, state: NumberState, verb: Array, args: Array) -> NumberState:
    """Records a guess and the numbers that its answer leaves."""
    del key, verb
    guess, secret = args[0, 0], state.task["secret"]
    low = jnp.where(guess < secret, jnp.maximum(state.low, guess + 1), state.low)
    high = jnp.where(guess > secret, jnp.minimum(state.high, guess - 1), state.high)
    return state.replace(low=low, high=high, guess=guess)


def status(state: NumberState) -> Status:
    """Returns success, and the share of the uncertainty that is removed."""
    success = state.guess == state.task["secret"]
    left = (state.high - state.low + 1).astype(jnp.float32)
    numbers = (state.task["largest"] - state.task["lowest"] + 1).astype(jnp.float32)
    gone = jnp.where(success, 1.0, 1.0 - jnp.log(left) / jnp.log(numbers))
    return Status(success=success, over=success, progress=gone, parts={"certainty": gone})
