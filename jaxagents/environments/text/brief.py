"""Short messages on request: what must be in them is said, how the reader likes them is not; every point is graded."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.experts import choose
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.splits import draw_distinct
from jaxagents.environments.text.texts import Text, each, number, pick, text, when
from jaxagents.environments.text.words import compact
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, Task

READERS = ("boss", "friend", "client", "child")
TOPICS = ("price", "date", "place", "team", "plan", "risk", "food", "music")
OPENINGS, CLOSINGS = ("dear", "hey", "hello", "hi"), ("regards", "cheers", "thanks", "bye")
"""As every reader expects them; nobody says so."""
HEDGES = ("maybe", "perhaps")
WORDS = (*TOPICS, *OPENINGS, *CLOSINGS, *HEDGES)
OPENING, CLOSING = len(TOPICS), len(TOPICS) + len(OPENINGS)
SLACK = 2
POINTS = ("covers", "order", "length", "opening", "closing", "plain")


@struct.dataclass
class BriefState:
    """What was written.

    Attributes:
        task: the task of the episode.
        draft: int32 `[L]`, words of the last message, -1 after it.
        turns: int32, attempts so far.
    """

    task: Task
    draft: Array
    turns: Array


def make_environment(
    num_topics: Sequence[int] = (2, 3, 4),
    *,
    num_attempts: int = 1,
    feedback: Literal["none", "score", "edit"] = "score",
    told: bool = False,
    **options: Any,
) -> Environment:
    """Makes a world of short messages.

    The observation reads `write boss about price plan first plan within 5 words`; a message that has all of it is `dear
    plan price regards`. Six points are graded, each from 0 to 1, in `info["metrics"]`: `covers`, the share of the
    topics that are there; `order`, that the one asked for is the first topic; `length`; `opening` and `closing`, which
    the reader expects and nobody tells; and `plain`, no word twice, no other topic and no hedge. `score` is their mean,
    success is all of them.

    Args:
        num_topics: that are asked for, one per level, from 1 to 6.
        num_attempts: messages of an episode; with several, the last one is shown with what the user says of it.
        feedback: "none"; "score", how many points are met in full; or "edit", the message as the user would send it.
        told: whether the observation says what the reader expects.
        **options: of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: numbers of topics, feedback or attempts that are not there.

    References:
        Gao et al. (2024), Aligning LLM Agents by Learning Latent Preference from User Edits, section 3.
    """
    num_topics = tuple(num_topics)
    if not num_topics or not 1 <= min(num_topics) <= max(num_topics) <= 6:
        raise ValueError(f"`num_topics` must be from 1 to 6, got {num_topics}; try (2, 3).")
    if feedback not in ("none", "score", "edit") or num_attempts < 1:
        raise ValueError(
            f"`feedback` must be none, score or edit, `num_attempts` at least 1, got {feedback!r} and {num_attempts}."
        )
    most = max(num_topics) + 2 + SLACK

    def start(key: Array, task: Task) -> BriefState:
        del key
        return BriefState(task=task, draft=jnp.full(most, -1, jnp.int32), turns=jnp.zeros((), jnp.int32))

    def status(state: BriefState) -> Status:
        points = {name: jnp.where(state.draft[0] < 0, 0.0, value) for name, value in grade(state).items()}
        score = sum(points.values()) / len(POINTS)
        success = score > 1.0 - 1e-4
        return Status(
            success=success,
            over=success | (state.turns >= num_attempts),
            progress=score,
            parts=points | {"score": score},
        )

    world = World(
        name="brief",
        grammar=make_grammar(f"{{word:1-{most}}}", word=WORDS),
        max_steps=num_attempts,
        num_levels=len(num_topics),
        sample=partial(sample, num_topics),
        start=start,
        situation=lambda state: state.draft,
        play=lambda key, state, verb, args: state.replace(draft=args[0], turns=state.turns + 1),
        skip=lambda state: state.replace(turns=state.turns + 1),
        status=status,
        tell=partial(tell, feedback=feedback if num_attempts > 1 else None, told=told),
        expert=lambda key, state: (jnp.int32(0), wanted(state.task, most)[None], None),
    )
    return make_text_world(world, **options)


def sample(num_topics: tuple[int, ...], key: Array, level: Array) -> Task:
    """Draws a reader, topics as bool `[8]`, which of them is the first, and how many words there may be."""
    reader_key, topic_key, first_key, room_key = jax.random.split(key, 4)
    count = jnp.asarray(num_topics, jnp.int32)[level]
    drawn = draw_distinct(topic_key, jnp.ones(len(TOPICS), bool), len(TOPICS))
    topics = jnp.zeros(len(TOPICS), bool).at[drawn].set(np.arange(len(TOPICS)) < count)
    return {
        "reader": jax.random.randint(reader_key, (), 0, len(READERS)),
        "topics": topics,
        "first": choose(first_key, topics),
        "room": count + 2 + jax.random.randint(room_key, (), 0, SLACK + 1),
        "level": level,
    }


def wanted(task: Task, length: int) -> Array:
    """Returns a message that has everything, int32 `[length]`, -1 after its last word."""
    topics, places = task["topics"], np.arange(len(TOPICS))
    others = jnp.where(topics & (places != task["first"]), places, -1)
    row = jnp.concatenate([jnp.stack([OPENING + task["reader"], task["first"]]), others])
    row = compact(jnp.append(row, CLOSING + task["reader"]).astype(jnp.int32))
    return jnp.pad(row, (0, max(length - len(row), 0)), constant_values=-1)[:length]


def grade(state: BriefState) -> dict[str, Array]:
    """Grades the last message, float32 `[]` by point."""
    task, draft = state.task, state.draft
    said = jnp.sum(draft[:, None] == np.arange(len(WORDS))[None], axis=0)
    count, topics = jnp.sum(draft >= 0), said[:OPENING] > 0
    is_topic = (draft >= 0) & (draft < OPENING)
    last = draft[jnp.maximum(count - 1, 0)]
    values = (
        jnp.sum(topics & task["topics"]) / jnp.sum(task["topics"]),
        draft[jnp.argmax(is_topic)] == task["first"],
        count <= task["room"],
        draft[0] == OPENING + task["reader"],
        last == CLOSING + task["reader"],
        jnp.all(said < 2) & ~jnp.any(topics & ~task["topics"]) & jnp.all(said[len(WORDS) - len(HEDGES) :] == 0),
    )
    return {name: jnp.asarray(value, jnp.float32) for name, value in zip(POINTS, values, strict=True)}


def tell(state: BriefState, seat: Array, *, feedback: str | None, told: bool) -> Text:
    """Says the request, and what became of the last message."""
    del seat
    task, met = state.task, sum(value == 1.0 for value in grade(state).values())
    asked = text("write", pick(READERS, task["reader"]), "about", each(TOPICS, task["topics"], most=6))
    expects = text("say", pick(OPENINGS, task["reader"]), "and", pick(CLOSINGS, task["reader"])) if told else None
    request = text(asked, "first", pick(TOPICS, task["first"]), "within", number(task["room"], 2), "words", expects)
    if feedback is None:
        return request
    edited = pick(WORDS, wanted(task, len(state.draft)))
    answer = {"none": None, "score": text("points", number(met, 1)), "edit": text("user sends", edited)}[feedback]
    return text(request, when(state.draft[0] >= 0, text("you said", pick(WORDS, state.draft), answer)))
