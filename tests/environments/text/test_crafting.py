"""Crafting: recipes, mistakes, what can be taken back, and how far it is."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import crafting

KEY = jax.random.key(0)
BASES, GOODS, METHODS = crafting.BASES, crafting.GOODS[:6], crafting.METHODS
ITEMS = (*BASES, *GOODS)
RECIPES = {
    "plank": "carve wood",
    "brick": "bake clay sand",
    "thread": "weave wool reed",
    "pole": "forge plank iron",
    "tile": "bake brick",
    "cloth": "weave thread coal",
}
make = functools.cache(functools.partial(crafting.make_environment, (1, 2)))


def task(goal, given=()):
    """A task with the recipes above."""
    rows = [RECIPES[good].split() for good in GOODS]
    numbers = [[ITEMS.index(item) for item in (*row[1:], None) if item] + [-1] * (3 - len(row)) for row in rows]
    return {
        "ingredients": jnp.asarray(numbers, jnp.int32),
        "methods": jnp.asarray([METHODS.index(row[0]) for row in rows], jnp.int32),
        "goal": jnp.int32(GOODS.index(goal)),
        "given": jnp.asarray([item in given for item in ITEMS]),
        "book": jnp.int32(0),
        "level": jnp.int32(GOODS.index(goal) // 3),
    }


def distances(hand, environment, timesteps_of):
    """Returns the distance after every prefix of the actions."""
    one, spoken = timesteps_of
    return [
        float(environment.text.distance(hand.play(environment, one, spoken[:n])[2])) for n in range(len(spoken) + 1)
    ]


def test_a_pole_is_made_by_hand(hand):
    environment = make()
    spoken = ["get wood", "carve plank", "get iron", "forge pole"]
    texts, timesteps, _ = hand.play(environment, task("pole", ["sand"]), spoken)
    assert texts == [
        "goal pole pack sand",
        "goal pole pack wood sand",
        "goal pole pack sand plank",
        "goal pole pack iron sand plank",
        "goal pole pack sand pole",
    ]
    assert [float(t.reward) for t in timesteps] == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert bool(timesteps[-1].terminated) and bool(timesteps[-1].info["success"])
    np.testing.assert_allclose([t.info["metrics"]["made"] for t in timesteps], [0.0, 0.0, 0.5, 0.5, 1.0])
    assert distances(hand, environment, (task("pole", ["sand"]), spoken)) == [4.0, 3.0, 2.0, 1.0, 0.0]


def test_what_cannot_be_done_changes_nothing(hand):
    # Without ingredients, with a wrong method, with what is had already, and with nothing to take back.
    spoken = ["carve plank", "undo", "get wood", "bake plank", "get wood"]
    texts, timesteps, _ = hand.play(make(), task("pole"), spoken)
    assert texts[1] == texts[2] == "goal pole pack nothing happens ."
    assert texts[4] == texts[5] == "goal pole pack wood nothing happens ."
    assert [bool(t.info["valid"]) for t in timesteps] == [True, False, False, True, False, False]


def test_a_mistake_spoils_and_can_be_taken_back_once(hand):
    environment, spoken = make(mistake="spoils"), ["get clay", "get sand", "carve brick", "undo", "undo", "bake brick"]
    texts, timesteps, _ = hand.play(environment, task("tile"), spoken)
    assert texts[2:] == [
        "goal tile pack clay sand",
        "goal tile pack",
        "goal tile pack clay sand",
        "goal tile pack clay sand nothing happens .",
        "goal tile pack brick",
    ]
    assert distances(hand, environment, (task("tile"), spoken)) == [4.0, 3.0, 2.0, 3.0, 2.0, 2.0, 1.0]


def test_a_mistake_ends_the_episode(hand):
    environment = make(mistake="ends")
    _, timesteps, state = hand.play(environment, task("plank"), ["get wood", "weave plank"])
    assert bool(timesteps[-1].terminated) and not bool(timesteps[-1].info["success"])
    assert float(environment.text.distance(state)) == np.inf


def test_reasons_are_told_where_asked_for(hand):
    spoken = ["bake brick", "get clay", "bake brick", "get sand", "weave brick", "get clay"]
    texts, timesteps, _ = hand.play(make(informative=True), task("brick"), spoken)
    assert texts[1:] == [
        "you need clay goal brick pack",
        "goal brick pack clay",
        "you need sand goal brick pack clay",
        "goal brick pack clay sand",
        "wrong method goal brick pack clay sand",
        "wrong method goal brick pack clay sand nothing happens .",
    ]
    assert [bool(t.info["valid"]) for t in timesteps] == [True] * 6 + [False]


def test_recipes_are_told_where_asked_for(hand):
    assert hand.prompt(make(told=True), task("tile")) == "brick is bake clay sand . tile is bake brick ."
    assert hand.prompt(make(told=True, hidden_methods=True), task("pole")) == "plank is wood . pole is plank iron ."
    assert make().text.prompt is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("mistake", [pytest.param("nothing", marks=pytest.mark.exhaustive), "spoils"])
def test_the_distance_is_that_of_a_search(hand, mistake):
    environment = make(mistake=mistake, max_steps=50)
    actions = environment.text.actions
    for level, index in [(0, 0), (0, 1), (1, 2), (1, 3)]:
        one = hand.row_of(hand.drawn_tasks(environment, 4, level), index)
        for state in hand.wander(environment, one, 8, jax.random.key(index))[:: 4 if level else 2]:
            expected = hand.fewest_actions(environment, state, actions, 6)
            assert float(environment.text.distance(state)) == expected


def test_books_differ_and_are_valid():
    ingredients, methods = crafting.make_books(0, 8, 4, same_ingredients=False)
    assert len({row.tobytes() for row in ingredients}) == 8 and set(methods.ravel().tolist()) == {0, 1, 2, 3}
    for book in ingredients:
        for good, (first, second) in enumerate(book.tolist()):
            # One of the depth before, and perhaps a base that its tree does not have yet.
            assert (first - len(BASES)) // 3 == good // 3 - 1 if good >= 3 else first < len(BASES)
            tree, below = set(), first
            while below >= len(BASES):
                below, base = book[below - len(BASES)].tolist()
                tree.add(base)
            assert second < len(BASES) and (second == -1 or second not in tree | {below})
    hidden, methods = crafting.make_books(0, 8, 2, same_ingredients=True)
    assert (hidden == hidden[:1]).all() and len({row.tobytes() for row in methods}) > 4


@pytest.mark.exhaustive
def test_held_out_books_are_never_trained_on(hand):
    environment = make(num_books=64, told=True, split="books")
    trained, held_out = (set(hand.drawn_tasks(environment, 256, 0, held_out=h)["book"].tolist()) for h in (False, True))
    assert len(trained) > 20 and len(held_out) > 5 and not trained & held_out


@pytest.mark.parametrize(
    "options, message",
    [
        ({"depths": (0,)}, "`depths` must be from 1 to 6"),
        ({"mistake": "kills"}, "`mistake` must be of"),
        ({"num_books": 4, "split": "books"}, "at least 1, or 16"),
        ({"depths": (5,)}, "`max_steps` must be at least 11"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        crafting.make_environment(**options)
