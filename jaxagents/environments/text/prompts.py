"""A user's own prompts, one turn each: answers are graded by the rows, or by a function that reads text."""

import collections
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.texts import Text, pick
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, Task

_SINGLE_SPACE = re.compile(r"(?<=\S) (?=\S)")


@struct.dataclass
class PromptState:
    """A prompt and its answer.

    Attributes:
        task: the task of the episode.
        answer: int32 `[most_words]`, answer in words of the grammar's field, -1 after its end; all -1 without an
            answer.
        over: bool, whether the turn is over, even without a valid answer.
    """

    task: Task
    answer: Array
    over: Array


class Row(NamedTuple):
    """A prompt and its right answer; None if a function judges the answer."""

    prompt: tuple[str, ...]
    answer: tuple[str, ...] | None


def make_environment(
    path: str | Path | None = None,
    *,
    rows: Sequence[Mapping[str, Any]] = (),
    words: Sequence[str] = (),
    most_words: int = 8,
    **options: Any,
) -> Environment:
    """Makes a world with one turn per episode: the observation is a prompt, the answer ends the episode.

    A row with an answer is a success if the action is that answer. A row without one is always a success: it is for
    `collector=rewarded`, whose function receives the index of the row as the column `row`. The policy can use the words
    of the prompts, of the answers, and of `words`; texts are split at single spaces. Other white space, such as a line
    end, is part of a word; white space around a text is removed. Numbers count as texts.

    Args:
        path: JSONL file of rows, `{"prompt": "...", "answer": "..."}`; further fields are free to use.
        rows: rows given directly; they are ignored if there is a `path`.
        words: further words for answers.
        most_words: maximum words of an answer.
        **options: arguments of `make_text_world`.

    Returns:
        The environment; its tasks are `{"row", "level"}`, of which the share `held_out_fraction` is never used in
        training.

    Raises:
        ValueError: there are no rows, a row is damaged (with file and line), a prompt is repeated, or an answer is too
            long.
    """
    if path is None and not rows:
        raise ValueError("`path` must name a file of rows, or `rows` hold some, got neither; try environment.path.")
    if strange := [word for word in words if not isinstance(word, str)]:
        raise ValueError(
            f"`words` must be texts, got {strange[0]!r}; try quotes around it, as yes and no need in YAML."
        )
    found = [_read_row(row, f"row {number}") for number, row in enumerate(rows)] if path is None else read_rows(path)
    prompts = [row.prompt for row in found]
    counts = collections.Counter(" ".join(" ".join(prompt).split()) for prompt in prompts)
    text, count = counts.most_common(1)[0]
    if count > 1:
        raise ValueError(f"`prompt` must stand in one row only, got {text!r} in {count}; leave all but one out.")
    answers = [row.answer or () for row in found]
    if (longest := max(map(len, answers))) > most_words:
        raise ValueError(f"`most_words` must be at least those of an answer, got {most_words} for {longest}.")
    vocabulary = tuple(dict.fromkeys(word for text in (*answers, tuple(words), *prompts) for word in text))
    number_of = {word: number for number, word in enumerate(vocabulary)}
    right = np.full((len(found), most_words), -1, np.int32)
    for number, answer in enumerate(answers):
        right[number, : len(answer)] = [number_of[word] for word in answer]
    judged = np.array([row.answer is not None for row in found])
    grammar = make_grammar(f"{{word:1-{most_words}}}", word=vocabulary)

    def sample(key: Array, level: Array) -> Task:
        return {"row": jax.random.randint(key, (), 0, len(found)), "level": level}

    def start(key: Array, task: Task) -> PromptState:
        del key
        return PromptState(task=task, answer=jnp.full(most_words, -1, jnp.int32), over=jnp.zeros((), bool))

    def play(key: Array, state: PromptState, verb: Array, args: Array) -> PromptState:
        del key, verb
        return state.replace(answer=args[0], over=jnp.ones((), bool))

    def status(state: PromptState) -> Status:
        row, answered = state.task["row"], state.answer[0] >= 0
        fits = jnp.all(state.answer == jnp.asarray(right)[row])
        return Status(success=answered & (fits | ~jnp.asarray(judged)[row]), over=state.over)

    def tell(state: PromptState, seat: Array) -> Text:
        del seat
        return pick(prompts, state.task["row"])

    def expert(key: Array, state: PromptState) -> tuple[Array, Array, None]:
        row = state.task["row"]
        any_word = jnp.full(most_words, -1, jnp.int32).at[0].set(jax.random.randint(key, (), 0, len(vocabulary)))
        return jnp.int32(0), jnp.where(jnp.asarray(judged)[row], jnp.asarray(right)[row], any_word)[None], None

    world = World(
        name="prompts",
        grammar=grammar,
        max_steps=1,
        sample=sample,
        start=start,
        play=play,
        status=status,
        tell=tell,
        expert=expert,
        situation=lambda state: state.answer,
        skip=lambda state: state.replace(over=jnp.ones((), bool)),  # By the rules, not by a limit: nothing comes after.
    )
    return make_text_world(world, **options)


def read_rows(path: str | Path) -> list[Row]:
    """Reads the rows of a JSONL file, see `make_environment`.

    Raises:
        ValueError: the file does not exist or is empty, or a line is damaged.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"`environment.path` must be a file of rows, got {path}: there is none at {file.absolute()}.")
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
        if line.strip():
            try:
                rows.append(_read_row(json.loads(line), f"{path}, line {number}"))
            except json.JSONDecodeError as error:
                raise ValueError(f"`environment.path` must hold JSON, got {path}, line {number}: {error}.") from error
    if not rows:
        raise ValueError(f"`environment.path` must hold at least one row, got the empty file {path}.")
    return rows


def _read_row(row: Any, place: str) -> Row:
    row = {name: _as_text(value) for name, value in row.items()} if isinstance(row, Mapping) else row
    if not isinstance(row, Mapping) or not isinstance(row.get("prompt"), str) or not row["prompt"].split():
        raise ValueError(f'`prompt` must be a text in every row, got {row!r} in {place}; try {{"prompt": "..."}}.')
    answer = row.get("answer")
    if answer is not None and (not isinstance(answer, str) or not answer.split()):
        raise ValueError(f"`answer` must be a text, or be left out, got {answer!r} in {place}.")
    return Row(_words_of(row["prompt"]), None if answer is None else _words_of(answer))


def _as_text(value: Any) -> Any:
    """Returns a number as a text, and other values as they are."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _words_of(text: str) -> tuple[str, ...]:
    """Splits a text at single spaces, so that joining the words with single spaces gives the text again."""
    return tuple(_SINGLE_SPACE.split(text.strip()))
