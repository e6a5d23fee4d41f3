"""Short messages on request: the required points are stated, the reader's preferences are not; all are graded."""

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
from jaxagents.environments.text.texts import Text, each, number, pick, text, when
from jaxagents.environments.text.words import compact
from jaxagents.environments.text.world import Status, World
from jaxagents.ops.checks import require_between, require_one_of
from jaxagents.types import Array, Environment, Task

READERS = ("boss", "friend", "client", "child")
TOPICS = ("price", "date", "place", "team", "plan", "risk", "food", "music")
OPENINGS, CLOSINGS = ("dear", "hey", "hello", "hi"), ("regards", "cheers", "thanks", "bye")
"""As every reader expects them; nobody says so."""
HEDGES = ("maybe", "perhaps")
WORDS = (*TOPICS, *OPENINGS, *CLOSINGS, *HEDGES)
OPENING, CLOSING = len(TOPICS), len(TOPICS) + len(OPENINGS)
SLACK = 2


@struct.dataclass
class BriefState:
    """Words of the last message, int32 `[L]`, -1 after its end; and number of attempts so far, int32."""

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

    The observation reads `write boss about price plan first plan within 5 words`; a message that meets all of it is
    `dear plan price regards`. Six points are graded, each from 0 to 1, in `info["metrics"]`: `covers`, the share of the
    topics that the message has; `order`, whether the requested topic comes first; `length`; `opening` and `closing`,
    which the reader expects without saying so; and `plain`, no repeated word, no other topic and no hedge. `score` is
    their mean, success means all of them.

    Args:
        num_topics: number of requested topics, one per level, from 1 to 6.
        num_attempts: number of messages of an episode; with several, the last one is shown with the user's feedback.
        feedback: "none"; "score": how many points are met in full; or "edit": the message as the user would send it.
        told: whether the observation states what the reader expects.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: numbers of topics, feedback or attempts are invalid.

    References:
        Gao et al. (2024), Aligning LLM Agents by Learning Latent Preference from User Edits, section 3.
    """
    require_between("num_topics", num_topics, 1, 6)
    require_between("num_attempts", num_attempts, 1)
    require_one_of("feedback", feedback, ("none", "score", "edit"))
    most = max(num_topics) + 2 + SLACK

    def status(state: BriefState) -> Status:
        points: dict[str, Any] = dict(grade(state))
        score = sum(points.values()) / len(points)
        success = score > 1.0 - 1e-4
        over = success | (state.turns >= num_attempts)
        return Status(success=success, over=over, progress=score, parts=points | {"score": score})

    world = World(
        name="brief",
        grammar=make_grammar(f"{{word:1-{most}}}", word=WORDS),
        max_steps=num_attempts,
        num_levels=len(num_topics),
        sample=partial(sample, tuple(num_topics)),
        start=lambda key, task: BriefState(task=task, draft=jnp.full(most, -1, jnp.int32), turns=jnp.int32(0)),
        situation=lambda state: state.draft,
        play=lambda key, state, verb, args: state.replace(draft=args[0], turns=state.turns + 1),
        skip=lambda state: state.replace(turns=state.turns + 1),
        status=status,
        tell=partial(tell, feedback=feedback if num_attempts > 1 else None, told=told),
        expert=lambda key, state: (jnp.int32(0), wanted(state.task, most)[None], None),
    )
    return make_text_world(world, **options)


def sample(num_topics: tuple[int, ...], key: Array, level: Array) -> Task:
    """Draws a reader, topics as bool `[8]`, which of them comes first, and the maximum number of words."""
    reader_key, topic_key, first_key, room_key = jax.random.split(key, 4)
    count = jnp.asarray(num_topics, jnp.int32)[level]
    topics = jax.random.permutation(topic_key, jnp.arange(len(TOPICS)) < count)
    return {
        "reader": jax.random.randint(reader_key, (), 0, len(READERS)),
        "topics": topics,
        "first": choose(first_key, topics),
        "room": count + 2 + jax.random.randint(room_key, (), 0, SLACK + 1),
        "level": level,
    }


def wanted(task: Task, length: int) -> Array:
    """Returns a message that meets all points, int32 `[length]`, -1 after its last word."""
    reader, first, places = task["reader"], task["first"], np.arange(len(TOPICS))
    others = jnp.where(task["topics"] & (places != first), places, -1)
    row = jnp.concatenate([jnp.stack([OPENING + reader, first]), others, (CLOSING + reader)[None]])
    return compact(row.astype(jnp.int32))[:length]


def grade(state: BriefState) -> dict[str, Array]:
    """Grades the last message, float32 `[]` by point; an empty message scores no points."""
    task, draft = state.task, state.draft
    counts = jnp.sum(draft[:, None] == np.arange(len(WORDS))[None], axis=0)
    count, topics = jnp.sum(draft >= 0), counts[:OPENING] > 0
    plain = jnp.all(counts < 2) & ~jnp.any(topics & ~task["topics"]) & jnp.all(counts[len(WORDS) - len(HEDGES) :] == 0)
    points = {
        "covers": jnp.sum(topics & task["topics"]) / jnp.sum(task["topics"]),
        "order": draft[jnp.argmax((draft >= 0) & (draft < OPENING))] == task["first"],
        "length": count <= task["room"],
        "opening": draft[0] == OPENING + task["reader"],
        "closing": draft[jnp.maximum(count - 1, 0)] == CLOSING + task["reader"],
        "plain": plain,
    }
    return {name: jnp.where(count > 0, value, 0.0).astype(jnp.float32) for name, value in points.items()}


def tell(state: BriefState, seat: Array, *, feedback: str | None, told: bool) -> Text:
    """Describes the request, and the feedback on the last message."""
    task, met = state.task, sum(value == 1.0 for value in grade(state).values())
    asked = text("write", pick(READERS, task["reader"]), "about", each(TOPICS, task["topics"], most=6))
    expects = text("say", pick(OPENINGS, task["reader"]), "and", pick(CLOSINGS, task["reader"])) if told else None
    request = text(asked, "first", pick(TOPICS, task["first"]), "within", number(task["room"], 2), "words", expects)
    if feedback is None:
        return request
    edited = pick(WORDS, wanted(task, len(state.draft)))
    answer = {"none": None, "score": text("points", number(met, 1)), "edit": text("user sends", edited)}[feedback]
    return text(request, when(state.draft[0] >= 0, text("you said", pick(WORDS, state.draft), answer)))
