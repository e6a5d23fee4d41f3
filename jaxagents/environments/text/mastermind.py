"""Mastermind: find a hidden row of colours; answers to guesses count right places and misplaced colours."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.experts import choose
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.splits import draw_distinct
from jaxagents.environments.text.texts import Text, each, number, pick, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, Task

COLOURS = ("red", "green", "blue", "yellow", "white", "black")


@struct.dataclass
class MastermindState:
    """State of knowledge.

    Attributes:
        task: the task of the episode.
        possible: bool `[C ** L]`, codes that agree with all answers; the last place changes first.
        guess: int32 `[L]`, last guess; -1s at first.
        feedback: int32 `[2]`, number of its right places, and of its misplaced colours.
    """

    task: Task
    possible: Array
    guess: Array
    feedback: Array


def make_environment(
    num_colours: tuple[int, ...] = (4, 6),
    *,
    length: int = 3,
    max_steps: int = 10,
    **options: Any,
) -> Environment:
    """Makes a world of mastermind.

    A guess is a row of colours, `red red blue`; the answer `1 right 1 misplaced` counts the right places, and then the
    colours that occur at other places. Tasks draw their colours, so that no code occurs only in held-out tasks. The
    expert guesses a random code among those that agree with all answers. `progress` is `1 - log(codes left) /
    log(codes)`.

    Args:
        num_colours: number of colours of codes, one per level, from 2 to 6; which colours is part of the task.
        length: L, number of places, from 2 to 4.
        max_steps: maximum turns.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: numbers of colours or places are out of their range.

    References:
        Knuth (1976), "The Computer as Master Mind"; Tajwar et al. (2025), PAPRIKA, appendix.
    """
    num_colours = tuple(num_colours)
    if not num_colours or not 2 <= min(num_colours) <= max(num_colours) <= len(COLOURS):
        raise ValueError(f"`num_colours` must be from 2 to {len(COLOURS)}, got {num_colours}; try (4, 6).")
    if not 2 <= length <= 4:
        raise ValueError(f"`length` must be from 2 to 4, got {length}; try 3.")
    codes = np.indices((len(COLOURS),) * length).reshape(length, -1).T.astype(np.int32)

    def sample(key: Array, level: Array) -> Task:
        code_key, colour_key = jax.random.split(key)
        count = jnp.asarray(num_colours, jnp.int32)[level]
        drawn = draw_distinct(colour_key, jnp.ones(len(COLOURS), bool), len(COLOURS))
        code = drawn[jax.random.randint(code_key, (length,), 0, count)]
        colours = jnp.zeros(len(COLOURS), bool).at[drawn].set(np.arange(len(COLOURS)) < count)
        return {"code": code, "colours": colours, "level": level}

    def start(key: Array, task: Task) -> MastermindState:
        del key
        possible = jnp.all(task["colours"][codes], axis=1)
        nothing = jnp.full(length, -1, jnp.int32)
        return MastermindState(task=task, possible=possible, guess=nothing, feedback=nothing[:2])

    def play(key: Array, state: MastermindState, verb: Array, args: Array) -> MastermindState:
        del key, verb
        guess = args[0]
        feedback = compare(guess, state.task["code"])
        agrees = jnp.all(jax.vmap(partial(compare, guess))(jnp.asarray(codes)) == feedback[None], axis=1)
        return state.replace(possible=state.possible & agrees, guess=guess, feedback=feedback)

    def status(state: MastermindState) -> Status:
        success = jnp.all(state.guess == state.task["code"])
        left = jnp.sum(state.possible).astype(jnp.float32)
        gone = 1.0 - jnp.log(left) / (length * jnp.log(jnp.sum(state.task["colours"], dtype=jnp.float32)))
        gone = jnp.where(success, 1.0, gone)
        return Status(success=success, over=success, progress=gone, parts={"certainty": gone})

    def tell(state: MastermindState, seat: Array) -> Text:
        del seat
        right, misplaced = state.feedback
        answer = text(number(right, 1), "right", number(misplaced, 1), "misplaced")
        listed = text("guess", each(COLOURS, state.task["colours"], most=max(num_colours)))
        return when(state.guess[0] < 0, listed, text(pick(COLOURS, state.guess), answer))

    def expert(key: Array, state: MastermindState) -> tuple[Array, Array, None]:
        return jnp.int32(0), jnp.asarray(codes)[choose(key, state.possible)][None], None

    world = World(
        name="mastermind",
        grammar=make_grammar(f"{{colour:{length}-{length}}}", colour=COLOURS),
        max_steps=max_steps,
        num_levels=len(num_colours),
        sample=sample,
        identity=lambda task: (task["code"], task["colours"]),
        start=start,
        play=play,
        status=status,
        tell=tell,
        expert=expert,
    )
    return make_text_world(world, **options)


def compare(guess: Array, code: Array) -> Array:
    """Counts the right places of a guess, and its other colours that the code has: int32 `[2]`."""
    right = jnp.sum(guess == code)
    of_guess, of_code = (jnp.sum(row[:, None] == np.arange(len(COLOURS))[None], axis=0) for row in (guess, code))
    return jnp.stack([right, jnp.sum(jnp.minimum(of_guess, of_code)) - right]).astype(jnp.int32)
