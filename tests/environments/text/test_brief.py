"""Messages on request: points by hand, what the user says of them, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import brief

make = functools.cache(functools.partial(brief.make_environment, (2, 4)))


def task(reader="boss", topics=("price", "plan"), first="plan", room=5):
    return {
        "reader": jnp.int32(brief.READERS.index(reader)),
        "topics": jnp.asarray([topic in topics for topic in brief.TOPICS]),
        "first": jnp.int32(brief.TOPICS.index(first)),
        "room": jnp.int32(room),
        "level": jnp.int32(0),
    }


@pytest.mark.parametrize(
    "draft, points",
    [
        ("dear plan price regards", (1, 1, 1, 1, 1, 1)),
        ("dear price plan regards", (1, 0, 1, 1, 1, 1)),
        ("hey plan cheers", (0.5, 1, 1, 0, 0, 1)),
        ("dear plan price maybe regards", (1, 1, 1, 1, 1, 0)),
        ("dear plan price plan price regards", (1, 1, 0, 1, 1, 0)),
        ("dear food plan price regards", (1, 0, 1, 1, 1, 0)),
        ("regards", (0, 0, 1, 0, 1, 1)),
    ],
)
def test_points_by_hand(hand, draft, points):
    texts, timesteps, _ = hand.play(make(reward="dense"), task(), [draft])
    assert texts[0] == "write boss about price plan first plan within 5 words"
    metrics = timesteps[-1].info["metrics"]
    names = ("covers", "order", "length", "opening", "closing", "plain")
    assert [float(metrics[name]) for name in names] == pytest.approx(points)
    assert float(timesteps[-1].reward) == pytest.approx(np.mean(points), abs=1e-6)
    assert bool(timesteps[-1].info["success"]) == (np.mean(points) == 1) and bool(timesteps[-1].terminated)


def test_the_user_answers_with_points_or_with_an_edit(hand):
    draft = ["hi plan price bye", "dear plan price regards"]
    texts, timesteps, _ = hand.play(make(num_attempts=3), task(), draft)
    assert texts[1] == f"{texts[0]} you said {draft[0]} points 4"
    assert [bool(t.terminated) for t in timesteps] == [False, False, True]
    texts, _, _ = hand.play(make(num_attempts=3, feedback="edit"), task(), draft)
    assert texts[1] == f"{texts[0]} you said {draft[0]} user sends {draft[1]}"
    texts, _, _ = hand.play(make(told=True), task(reader="friend"), [])
    assert texts == ["write friend about price plan first plan within 5 words say hey and cheers"]


def test_requests_can_be_met(hand):
    tasks = hand.drawn_tasks(make(), 64, 1)
    assert (tasks["topics"].sum(axis=1) == 4).all() and set(tasks["room"].tolist()) == {6, 7, 8}
    assert tasks["topics"][np.arange(64), tasks["first"]].all()
    length = np.asarray(jax.vmap(lambda one: (brief.wanted(one, 8) >= 0).sum())(tasks))
    assert (length == 6).all()


@pytest.mark.parametrize("options", [{"num_topics": (7,)}, {"feedback": "praise"}, {"num_attempts": 0}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match=f"`{next(iter(options))}` must be|`feedback` must be"):
        brief.make_environment(**options)
