"""Search for sets of names: masked facts, tables, and how answers are matched."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import search, search_sets

make = functools.cache(functools.partial(search_sets.make_environment, num_pages=8))
NAMES = search.NAMES[:8]
PAGES = {
    "amber": "founder birch rival cedar port elm",
    "birch": "founder dune mentor amber heir cedar",
    "cedar": "rival amber twin elm port fern",
    "dune": "founder gold twin hazel heir elm",
    "elm": "mentor dune port hazel heir birch",
    "fern": "founder elm rival gold twin amber",
    "gold": "mentor amber port amber twin dune",
    "hazel": "founder cedar rival fern heir gold",
}


def task(asked, answer, sources, query, page=-1):
    facts = np.full((8, 6), -1)
    for name, line in PAGES.items():
        pages = line.split()
        for relation, other in zip(pages[::2], pages[1::2], strict=True):
            facts[NAMES.index(name), search.RELATIONS.index(relation)] = NAMES.index(other)
    words = (*NAMES, *search.RELATIONS)
    pages = asked.split()
    numbers = {
        "facts": facts,
        "graph": 0,
        "page": page,
        "relations": [search.RELATIONS.index(one) for one in pages[::2]] + [-1] * (3 - len(pages) // 2),
        "asked": [(*NAMES, "?").index(one) for one in pages[1::2]] + [-1] * (3 - len(pages) // 2),
        "query": [words.index(one) for one in query.split()] + [-1] * (3 - len(query.split())),
        "level": 0,
    }
    sets = {"answer": answer, "sources": sources}
    return {name: jnp.asarray(value, jnp.int32) for name, value in numbers.items()} | {
        name: jnp.asarray([one in names.split() for one in NAMES]) for name, names in sets.items()
    }


def metrics(timestep):
    return {name: round(float(value), 3) for name, value in timestep.info["metrics"].items()}


@pytest.mark.exhaustive
def test_a_masked_page_by_hand(hand):
    environment = make(reward="dense")
    one = task("founder ? rival cedar port elm", "birch", "amber", "cedar rival elm")
    assert hand.prompt(environment, one) == "fill founder ? rival cedar port elm"
    texts, timesteps, _ = hand.play(environment, one, ["search cedar rival elm", "open 1", "answer birch"])
    assert texts[:3] == ["search", "1 amber 2 cedar 3 fern", "amber founder birch rival cedar port elm"]
    assert [float(t.reward) for t in timesteps] == [0.0, 0.0, 0.5, 0.5] and bool(timesteps[-1].info["success"])
    # Names too many lower the match, and not the recall.
    _, timesteps, _ = hand.play(environment, one, ["answer birch elm"])
    assert metrics(timesteps[1]) == {"match": 0.667, "recall": 1.0, "length": 2.0, "evidence": 0.0}
    assert bool(timesteps[1].terminated) and not bool(timesteps[1].info["success"])
    assert hand.prompt(environment, one | {"page": jnp.int32(0)}) == "fill amber founder ? rival cedar port elm"


@pytest.mark.exhaustive
def test_a_table_by_hand(hand):
    environment = make("table")
    one = task("mentor amber", "birch gold", "birch gold", "amber mentor")
    assert hand.prompt(environment, one) == "list mentor amber"
    spoken = ["search amber mentor", "open 1", "open 2", "answer gold birch"]
    texts, timesteps, _ = hand.play(environment, one, spoken)
    # A fact counts more than its words on another page.
    assert texts[1] == "1 birch 2 gold 3 amber"
    assert bool(timesteps[-1].info["success"]) and metrics(timesteps[3])["evidence"] == 1.0
    _, timesteps, _ = hand.play(environment, one, ["answer gold"])
    assert metrics(timesteps[1])["match"] == 0.667 and not bool(timesteps[1].info["success"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["masked", "table"])
def test_questions_have_the_answers_that_the_facts_give(hand, mode):
    for level in range(3):
        tasks = hand.drawn_tasks(make(mode), 128, level)
        for row in range(128):
            facts, relations, asked = (tasks[name][row] for name in ("facts", "relations", "asked"))
            if mode == "table":
                right = facts[:, relations[0]] == asked[0]
                assert 1 <= right.sum() <= level + 1
                np.testing.assert_array_equal(tasks["sources"][row], right)
            else:
                (page,), masked = np.flatnonzero(tasks["sources"][row]), asked == 8
                right = np.isin(np.arange(8), facts[page, relations[masked]])
                assert masked.sum() == level + 1
                fitting = ((facts[:, relations] == asked) | masked).all(axis=1)
                assert fitting[page] and (tasks["page"][row] == -1) == (fitting.sum() == 1)
            np.testing.assert_array_equal(tasks["answer"][row], right)


@pytest.mark.parametrize("options", [{"mode": "spans"}, {"num_pages": 4}, {"max_steps": 4}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match="must be"):
        search_sets.make_environment(**options)
