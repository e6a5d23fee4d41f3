"""Styles in which an expert may think about arithmetic: notes, a program, or prose, with repeated steps."""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagents.environments.text.arithmetic import OPERATIONS
from jaxagents.environments.text.texts import Text, cases, number, pick, text, when
from jaxagents.environments.text.words import DIGITS
from jaxagents.environments.text.world import World
from jaxagents.types import Array, State, Task

FIRST_WORDS = {"notes": DIGITS, "program": ("let",), "prose": ("first",)}
"""By style, what its thoughts begin with, and no thought of another style does."""
STYLES = tuple(FIRST_WORDS)


def with_styles(world: World, *, styles: Sequence[str] = STYLES, verbosity: float = 0.0) -> World:
    """Lets the expert of arithmetic think in several styles, drawn for each decision; actions are unchanged.

    For `1 2 + 3 4 - 5`, notes are `1 2 , 4 6 , 4 1 ,`, a program is `let x = 1 2 ; x + 3 4 = 4 6 ; x - 5 = 4 1 ;`, and
    prose is `first 1 2 then plus 3 4 makes 4 6 then minus 5 makes 4 1`. A repeated step makes a thought longer and
    changes nothing else, so that thoughts can be longer than any answer needs.

    Args:
        world: rules of arithmetic.
        styles: some of `STYLES`.
        verbosity: probability that a step is repeated, for each step.

    Returns:
        The rules with this expert.

    Raises:
        ValueError: styles are unknown, the probability is not in [0, 1], or the world has no numbers.

    References:
        Zhao et al. (2025), Echo Chamber, section 3 (mixtures of formats of which training keeps one).
    """
    styles = tuple(styles)
    if not styles or not set(styles) <= set(STYLES):
        raise ValueError(f"`styles` must be of {STYLES}, got {styles}.")
    if not 0.0 <= verbosity <= 1.0:
        raise ValueError(f"`verbosity` must be in [0, 1], got {verbosity}; try 0.5.")
    task = jax.eval_shape(world.sample, jax.random.key(0), jnp.int32(0))
    if not isinstance(task, dict) or not {"numbers", "operations"} <= set(task):
        raise ValueError(f"`world` must be of arithmetic, got {world.name!r}; try world=arithmetic.")
    digits = world.grammar.max_words

    def expert(key: Array, state: State) -> tuple[Array, Array, Text]:
        verb, args, _ = world.expert(key, state)
        style_key, twice_key = jax.random.split(jax.random.fold_in(key, 1))
        style = jax.random.categorical(style_key, jnp.zeros(len(styles)))
        twice = jax.random.bernoulli(twice_key, verbosity, state.task["numbers"].shape)
        return verb, args, cases(style, *(think(name, state.task, twice, digits) for name in styles))

    return replace(world, expert=expert)


def think(style: str, task: Task, twice: Array, digits: int) -> Text:
    """Describes how a result is computed, step by step.

    Args:
        style: one of `STYLES`.
        task: task of arithmetic, with T numbers.
        twice: bool `[T]`, steps that are repeated.
        digits: maximum digits of a number.

    Returns:
        The thought.
    """
    numbers, operations = task["numbers"], task["operations"]
    total, steps = numbers[0], []
    head = {"notes": text(number(total, digits), ","), "program": text("let", "x", "=", number(total, digits), ";")}
    steps.append(head.get(style, text("first", number(total, digits))))
    for term in range(1, numbers.shape[0]):
        operation, value = operations[term - 1], jnp.maximum(numbers[term], 0)
        total = jnp.select(
            [operation == 0, operation == 1, operation == 2], [total + value, total - value, total * value], total
        )
        operand, result = number(value, digits), number(total, digits)
        step = {
            "notes": text(result, ","),
            "program": text("x", pick(OPERATIONS, operation), operand, "=", result, ";"),
            "prose": text("then", pick(("plus", "minus", "times"), operation), operand, "makes", result),
        }[style]
        steps.append(when(operation >= 0, step))
    return text(*(part for i, step in enumerate(steps) for part in (step, when(twice[i], step))))


def style_of(thought: Array, words: Sequence[str]) -> Array:
    """Recognises the style of thoughts by their first word.

    Args:
        thought: int32 `[..., L]`, word ids.
        words: word table of the world.

    Returns:
        int32 `[...]`, index into `STYLES`; -1 for none of them.
    """
    first = thought[..., 0]
    style = jnp.full(first.shape, -1, jnp.int32)
    for index, name in enumerate(STYLES):
        begins = jnp.asarray([word in FIRST_WORDS[name] for word in words])
        style = jnp.where((first >= 0) & begins[first], index, style)
    return style
