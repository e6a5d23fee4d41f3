"""Search: pages found by their words, questions of several hops, and those without an answer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import search

KEY = jax.random.key(0)
make = functools.cache(functools.partial(search.make_environment, num_pages=8))
NAMES = search.NAMES[:8]
PAGES = {
    "amber": "founder birch rival cedar port elm",
    "birch": "founder dune mentor amber heir cedar",
    "cedar": "rival amber twin elm port fern",
    "dune": "founder gold twin hazel heir elm",
    "elm": "mentor dune port hazel heir birch",
    "fern": "founder elm rival gold twin amber",
    "gold": "mentor fern port amber twin dune",
    "hazel": "founder cedar rival fern heir gold",
}


def task(first, *relations):
    facts = np.full((8, 6), -1)
    for page, line in PAGES.items():
        asked_words = line.split()
        for relation, name in zip(asked_words[::2], asked_words[1::2], strict=True):
            facts[NAMES.index(page), search.RELATIONS.index(relation)] = NAMES.index(name)
    numbers = {
        "facts": facts,
        "graph": 0,
        "first": NAMES.index(first),
        "relations": [search.RELATIONS.index(name) for name in relations] + [-1] * (4 - len(relations)),
        "level": len(relations) - 1,
    }
    return {name: jnp.asarray(value, jnp.int32) for name, value in numbers.items()}


def test_a_question_of_two_hops_by_hand(hand):
    environment, one = make(), task("amber", "founder", "heir")
    assert hand.prompt(environment, one) == "what is heir of founder of amber"
    spoken = ["open 1", "search founder amber", "open 1", "search birch", "open 1", "answer cedar"]
    texts, timesteps, _ = hand.play(environment, one, spoken)
    assert texts == [
        "search",
        "search nothing happens .",
        "1 amber 2 birch 3 fern",
        "amber founder birch rival cedar port elm",
        "1 birch 2 amber 3 elm",
        "birch founder dune mentor amber heir cedar",
        "birch founder dune mentor amber heir cedar",
    ]
    assert [float(t.info["metrics"]["evidence"]) for t in timesteps] == [0.0, 0.0, 0.0, 0.5, 0.5, 1.0, 1.0]
    assert bool(timesteps[-1].info["success"]) and float(timesteps[-1].reward) == 1.0


def test_a_guess_may_be_right_and_a_wrong_one_ends(hand):
    _, timesteps, _ = hand.play(make(reward="dense"), task("amber", "founder"), ["answer birch"])
    assert bool(timesteps[-1].info["success"]) and float(timesteps[-1].reward) == 1.0
    _, timesteps, _ = hand.play(
        make(reward="dense"), task("amber", "founder"), ["search amber", "open 1", "answer elm"]
    )
    assert bool(timesteps[-1].terminated) and not bool(timesteps[-1].info["success"])
    assert [float(t.reward) for t in timesteps] == [0.0, 0.0, 0.5, -0.5]


def test_what_is_missing_is_unknown(hand):
    for first, success in [("elm", True), ("amber", False)]:
        _, timesteps, _ = hand.play(make(), task(first, "founder"), ["answer unknown"])
        assert bool(timesteps[-1].terminated) and bool(timesteps[-1].info["success"]) == success


def test_pages_are_ranked_by_their_words():
    facts = task("amber", "port")["facts"]

    def found(query):
        words = (*NAMES, *search.RELATIONS)
        ids = jnp.asarray([words.index(word) for word in query.split()] + [-1] * (3 - len(query.split())), jnp.int32)
        return [NAMES[page] if page >= 0 else None for page in jax.jit(search.rank)(facts, ids).tolist()]

    assert found("heir") == ["birch", "dune", "elm"]
    assert found("hazel") == ["hazel", "dune", "elm"]
    # Its own name and two words; three words; two, of which the first page wins.
    assert found("fern rival twin") == ["fern", "cedar", "gold"]
    assert found("mentor mentor fern") == ["gold", "fern", "birch"]


def test_nothing_is_found_without_matches(hand):
    environment = make(num_graphs=1)
    one = task("amber", "port")
    one["facts"] = jnp.where(one["facts"] >= 0, one["facts"], -1).at[:, search.RELATIONS.index("twin")].set(-1)
    assert hand.play(environment, one, ["search twin"])[0][1] == "nothing found"


@pytest.mark.exhaustive
@pytest.mark.parametrize("unanswerable", [0.0, 1.0])
def test_drawn_questions_can_be_answered_where_they_should(hand, unanswerable):
    environment = make(num_graphs=4, unanswerable=unanswerable)
    for level in range(4):
        tasks = hand.drawn_tasks(environment, 64, level)
        pages, answer = jax.jit(jax.vmap(search.walk))(tasks)
        assert ((pages >= 0).sum(axis=1) == level + 1).all()
        assert ((answer == 8) == (unanswerable == 1.0)).all()
        assert ((tasks["facts"] >= 0).sum(axis=2) == search.FACTS).all()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"hops": (5,)}, "from 1 to 4"),
        ({"num_pages": 4}, "from 8 to"),
        ({"max_steps": 8}, "at least 9"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        search.make_environment(**options)
