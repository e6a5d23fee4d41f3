"""Questions between two actions: what is asked, what is right; where nothing is asked the world is as it was."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import crafting
from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.comparisons import with_comparisons
from tests.fakes import jitted

KEY = jax.random.key(2)
RULES = crafting.make_environment((2,), informative=True).text.rules


@pytest.fixture(scope="module")
def plain():
    return jitted(make_text_world(RULES))


@pytest.fixture(scope="module")
def asking():
    return jitted(make_text_world(with_comparisons(RULES, share=1.0)))


def sentence(world, ids):
    return " ".join(world.text.words[word] for word in np.asarray(ids).tolist() if word >= 0)


@pytest.mark.slow
def test_one_of_the_two_actions_is_the_experts_and_to_take_it_is_a_success(asking, plain):
    world, sides, ahead = asking, [], set()
    for number in range(12):
        key = jax.random.fold_in(KEY, number)
        task = world.sample_task(key)
        state, timestep = world.reset(key, task)
        first, second = sentence(world, timestep.observation).split("second ")
        first, second = first.removeprefix("first ").strip(), " ".join(second.split()[:2])
        now, _ = plain.reset(key, task["inner"])
        for _ in range(int(task["ahead"])):
            later, after = plain.step(key, now, plain.text.expert(key, now)[0])
            now = now if after.terminated else later  # Never past the end.
        right = sentence(plain, plain.text.expert(key, now)[0])
        assert right in (first, second) and first != second
        side = (first, second).index(right)
        sides.append(side)
        ahead.add(int(task["ahead"]))
        for answer, word in enumerate(("first", "second")):
            _, timestep = world.step(key, state, jnp.asarray([world.text.words.index(w) for w in ("take", word)]))
            assert timestep.terminated and bool(timestep.info["success"]) == (answer == side)
            assert float(timestep.reward) == float(answer == side)
        named = sentence(world, world.text.expert(key, state)[0])
        assert named == f"take {('first', 'second')[side]}"
        assert float(world.text.distance(state)) == 1.0
    assert 0 < sum(sides) < 12 and len(ahead) > 2


def test_where_one_action_alone_is_allowed_nothing_is_asked():
    def allowed(state):
        verb, args, _ = RULES.expert(KEY, state)
        every = jax.vmap(RULES.grammar.entry)(jnp.arange(RULES.grammar.num_entries))
        return (every[0] == verb) & (every[1] == args[None]).all(axis=(1, 2))

    world = jitted(make_text_world(with_comparisons(dataclasses.replace(RULES, allowed=allowed), share=1.0)))
    for number in range(4):
        key = jax.random.fold_in(KEY, number)
        _, timestep = world.reset(key, world.sample_task(key))
        assert "second" not in sentence(world, timestep.observation).split()


@pytest.mark.slow
def test_the_expert_that_guesses_is_right_half_of_the_time():
    world = make_text_world(with_comparisons(RULES, share=1.0, guesses=True))
    state, _ = world.reset(KEY, world.sample_task(KEY))
    named = {sentence(world, world.text.expert(jax.random.fold_in(KEY, n), state)[0]) for n in range(12)}
    assert named == {"take first", "take second"}


def test_where_nothing_is_asked_the_world_is_as_it_was(asking, plain):
    world = make_text_world(with_comparisons(RULES, share=0.0))
    task = world.sample_task(KEY)
    (state, timestep), (other, _) = world.reset(KEY, task), plain.reset(KEY, task["inner"])
    assert not task["asks"]
    for _ in range(8):
        named = plain.text.expert(KEY, other)[0]
        other, expected = plain.step(KEY, other, named)
        state, timestep = world.step(KEY, state, jnp.where(named < 0, named, ids(world, plain, named)))
        assert sentence(world, timestep.observation) == sentence(plain, expected.observation)
        assert bool(timestep.terminated) == bool(expected.terminated)
    refused, timestep = world.step(KEY, world.reset(KEY, task)[0], ids(world, None, "take", "first"))
    assert not timestep.info["valid"]
    assert not asking.text.sample_held_out_task(KEY)["asks"]


def ids(world, plain, *named):
    """Returns words of another table, or texts, in the ids of a world."""
    words = named if plain is None else [plain.text.words[word] if word >= 0 else None for word in np.asarray(named[0])]
    return jnp.asarray([-1 if word is None else world.text.words.index(word) for word in words])


def test_refused():
    with pytest.raises(ValueError, match=r"`share` must be in \[0, 1\], got 2.0"):
        with_comparisons(RULES, share=2.0)
