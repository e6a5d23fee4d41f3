"""Twenty questions: ask which words describe a hidden one of the candidates in the prompt, then name it."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.experts import choose
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.texts import Text, cases, each, pick, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, Task

VALUES = (
    *("red", "green", "blue"),
    *("small", "middle", "large"),
    *("round", "square", "flat"),
)
"""Words that describe, three of each kind; a candidate has one of each."""
KINDS = 3
NAMES = tuple("abcdefghijklmnop")
ASK, GUESS = range(2)


@struct.dataclass
class QuestionsState:
    """State of the questions.

    Attributes:
        task: the task of the episode.
        asked: bool `[9]`, words that were asked about.
        last: int32, word that was asked about last, -1 at first.
        guess: int32, candidate that was named; -1 before that.
    """

    task: Task
    asked: Array
    last: Array
    guess: Array


def make_environment(
    num_candidates: tuple[int, ...] = (6, 8, 16),
    *,
    recall: bool = False,
    max_steps: int = 8,
    **options: Any,
) -> Environment:
    """Makes a world of twenty questions.

    The prompt lists candidates, `a red small flat b blue large flat ...`, each with a colour, a size and a shape; all
    are different. `ask red` is answered with yes or no; `guess b` ends the episode. Every question may be asked once.
    The thought of the expert lists the remaining candidates. `progress` is the share of the other candidates that
    answers have ruled out, and 1 with the right guess.

    Args:
        num_candidates: number of candidates, one per level, from 2 to 16.
        recall: whether the observation repeats all answers, `yes red no small`, instead of the last one, `no`.
        max_steps: maximum turns.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: there are no names for the numbers of candidates, or there is no turn for a guess.

    References:
        Abdulhai et al. (2023), LMRL Gym, Twenty Questions; Tajwar et al. (2025), PAPRIKA, appendix.
    """
    num_candidates = tuple(num_candidates)
    if not num_candidates or not 2 <= min(num_candidates) <= max(num_candidates) <= len(NAMES):
        raise ValueError(f"`num_candidates` must be from 2 to {len(NAMES)}, got {num_candidates}; try (6, 8).")
    if max_steps < 2:
        raise ValueError(f"`max_steps` must leave time for a question and a guess, got {max_steps}; try 8.")
    names = NAMES[: max(num_candidates)]
    world = World(
        name="twentyq",
        grammar=make_grammar("ask {value}", "guess {name}", value=VALUES, name=names),
        max_steps=max_steps,
        num_levels=len(num_candidates),
        sample=partial(sample, num_candidates),
        identity=lambda task: (task["candidates"], task["target"]),
        start=start,
        situation=(lambda state: (state.asked, state.guess)) if recall else None,
        allowed=lambda state: jnp.concatenate([~state.asked, state.task["candidates"][:, 0] >= 0]),
        play=play,
        status=status,
        tell=partial(tell, recall=recall),
        prompt=partial(prompt, names),
        expert=partial(expert, names),
    )
    return make_text_world(world, **options)


def sample(num_candidates: tuple[int, ...], key: Array, level: Array) -> Task:
    """Draws different candidates, int32 `[C, 3]` words, -1 where there are fewer, and the hidden one."""
    candidate_key, target_key = jax.random.split(key)
    count = jnp.asarray(num_candidates, jnp.int32)[level]
    combination = jax.random.permutation(candidate_key, 3**KINDS)[: max(num_candidates)]
    words = combination[:, None] // (3 ** np.arange(KINDS))[None] % 3 + 3 * np.arange(KINDS)[None]
    there = np.arange(max(num_candidates)) < count
    target = jax.random.randint(target_key, (), 0, count)
    return {"candidates": jnp.where(there[:, None], words, -1), "target": target, "level": level}


def start(key: Array, task: Task) -> QuestionsState:
    """Returns the state before the first question."""
    del key
    nothing = jnp.asarray(-1, jnp.int32)
    return QuestionsState(task=task, asked=jnp.zeros(len(VALUES), bool), last=nothing, guess=nothing)


def describes(task: Task) -> Array:
    """Returns which words describe which candidates, bool `[C, 9]`."""
    return jnp.any(task["candidates"][:, :, None] == np.arange(len(VALUES))[None, None], axis=1)


def left(state: QuestionsState) -> Array:
    """Returns which candidates agree with all answers, bool `[C]`."""
    described = describes(state.task)
    agrees = described == described[state.task["target"]][None]
    return jnp.all(agrees | ~state.asked[None], axis=1) & (state.task["candidates"][:, 0] >= 0)


def play(key: Array, state: QuestionsState, verb: Array, args: Array) -> QuestionsState:
    """Records the question or the guess."""
    del key
    asks, chosen = verb == ASK, args[0, 0]
    return state.replace(
        asked=state.asked | (asks & (np.arange(len(VALUES)) == chosen)),
        last=jnp.where(asks, chosen, state.last),
        guess=jnp.where(asks, state.guess, chosen),
    )


def status(state: QuestionsState) -> Status:
    """Returns success, and the share of the other candidates that are ruled out."""
    success = state.guess == state.task["target"]
    others = jnp.sum(state.task["candidates"][:, 0] >= 0) - 1
    ruled_out = 1.0 - (jnp.sum(left(state)) - 1) / others
    over = state.guess >= 0
    return Status(
        success=success,
        over=over,
        progress=jnp.where(over, success, ruled_out).astype(jnp.float32),
        parts={"ruled_out": ruled_out},
    )


def tell(state: QuestionsState, seat: Array, *, recall: bool) -> Text:
    """Describes the last answer or all of them, or "ask" before the first."""
    del seat
    yes = describes(state.task)[state.task["target"]]
    if not recall:
        return cases(jnp.where(state.last < 0, 2, yes[state.last]), "no", "yes", "ask")
    known = [
        when(state.asked[value], text(when(yes[value], "yes", "no"), VALUES[value])) for value in range(len(VALUES))
    ]
    return text("ask", *known)


def prompt(names: tuple[str, ...], task: Task) -> Text:
    """Lists the candidates."""
    rows = zip(names, task["candidates"], strict=True)
    return text(*(when(words[0] >= 0, text(name, pick(VALUES, words))) for name, words in rows))


def expert(names: tuple[str, ...], key: Array, state: QuestionsState) -> tuple[Array, Array, Text]:
    """Asks a question that halves the candidates best, at random among the best, and guesses when one is left."""
    remaining = left(state)
    count = jnp.sum(remaining)
    uneven = jnp.abs(2 * jnp.sum(describes(state.task) & remaining[:, None], axis=0) - count)
    uneven = jnp.where(state.asked, len(NAMES) + 1, uneven)
    question = choose(key, uneven == jnp.min(uneven))
    guesses = count == 1
    chosen = jnp.where(guesses, jnp.argmax(remaining), question).astype(jnp.int32)
    return guesses.astype(jnp.int32), chosen[None, None], each(names, remaining)
