"""Worlds in several wordings: what is renamed, which wordings tasks have, and that answers stay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import lists
from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.union import join_worlds
from jaxagents.environments.text.wordings import FILLERS, draw_wordings, with_wordings
from tests.fakes import jitted

KEY = jax.random.key(4)


@pytest.fixture(scope="module")
def rules():
    return lists.make_environment((4,), operations=("sort", "reverse")).text.rules


@pytest.fixture(scope="module")
def plain(rules):
    return jitted(make_text_world(rules))


def texts(world, key, sample=None):
    task = (sample or world.sample_task)(key)
    _, timestep = world.reset(key, task)
    return [world.text.words[word] for word in timestep.observation.tolist() if word >= 0], task


@pytest.mark.parametrize("num_fillers", [0, 2])
def test_words_of_instructions_have_other_names_and_letters_do_not(rules, plain, num_fillers):
    world = jitted(make_text_world(with_wordings(rules, num_wordings=32, num_synonyms=3, num_fillers=num_fillers)))
    first, seen = set(), [texts(world, jax.random.fold_in(KEY, number)) for number in range(24)]
    for words, task in seen:
        _, timestep = plain.reset(KEY, task["inner"])
        expected = [plain.text.words[word] for word in timestep.observation.tolist() if word >= 0]
        assert set(words[:num_fillers]) <= set(FILLERS)
        own = words[num_fillers:]
        assert own[1:] == expected[1:] and own[0].rstrip("23") == expected[0]
        first.add(own[0])
        action, _ = world.text.expert(KEY, world.reset(KEY, task)[0])
        _, timestep = world.step(KEY, world.reset(KEY, task)[0], action)
        assert timestep.info["success"]
    assert first == {"sort", "sort2", "sort3", "reverse", "reverse2", "reverse3"}


def test_held_out_wordings_are_for_held_out_tasks(rules):
    world = make_text_world(with_wordings(rules, num_wordings=3, num_held_out=5))
    keys = jax.random.split(KEY, 64)
    seen, new = (jax.vmap(sample)(keys)["wording"] for sample in (world.sample_task, world.text.sample_held_out_task))
    assert set(seen.tolist()) == {0, 1, 2} and set(new.tolist()) == {3, 4, 5, 6, 7}
    both = make_text_world(with_wordings(rules, num_wordings=3))
    assert set(jax.vmap(both.text.sample_held_out_task)(keys)["wording"].tolist()) == {0, 1, 2}


def test_one_synonym_is_the_world_as_it_is(rules, plain):
    world = make_text_world(with_wordings(rules, num_synonyms=1))
    assert world.text.words == plain.text.words
    words, task = texts(world, KEY)
    _, timestep = plain.reset(KEY, task["inner"])
    assert words == [plain.text.words[word] for word in timestep.observation.tolist() if word >= 0]


def test_a_union_without_prompts_is_told_in_other_words(rules):
    world = make_text_world(with_wordings(join_worlds({"lists": rules, "again": rules}), num_wordings=64))
    assert {"sort2", "reverse4"} <= set(world.text.words) and "b2" not in world.text.words


def test_every_wording_takes_one_name_of_a_word():
    wordings = draw_wordings(["press", "look"], 200, 4)
    assert wordings == draw_wordings(["press", "look"], 200, 4)
    assert {one["press"] for one in wordings} == {"press", "press2", "press3", "press4"}
    assert len({tuple(one.values()) for one in wordings}) == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_wordings": 0}, "`num_wordings` must be a positive number, got 0"),
        ({"words": ["a"]}, "`words` must be what 'lists' says and nobody answers, got 'a'"),
        ({"num_fillers": -1}, "`num_fillers` must be at least 0, got -1"),
    ],
)
def test_what_cannot_be_is_refused(rules, options, message):
    with pytest.raises(ValueError, match=message):
        with_wordings(rules, **options)


def test_equal_tasks_in_other_words_are_other_situations(rules):
    world = make_text_world(with_wordings(rules, num_wordings=2))
    task = world.sample_task(KEY)
    marks = [
        int(world.text.fingerprint(world.reset(KEY, task | {"wording": jnp.int32(number)})[0])) for number in (0, 1)
    ]
    assert marks[0] != marks[1] and np.isfinite(marks).all()
