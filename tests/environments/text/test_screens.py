"""Apps of linked pages: clicks, adverts, ways back, failures, and what is held out."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import screens
from jaxagents.environments.text.screen import KINDS, LABELS

make = functools.cache(functools.partial(screens.make_environment, 6, seed=1))
APPS = screens.draw_apps(6, 1, 1)


def task(app, goal):
    numbers = {"app": app, "goal": goal, "level": int(APPS.depth[app, goal]) - 1}
    return {name: jnp.int32(value) for name, value in numbers.items()}


def click(app, page, to):
    """The click on the lower right corner of the element that leads from a page to another."""
    kind, _, column, row = APPS.elements[app, page, np.argmax(APPS.target[app, page] == to)]
    width, height = list(KINDS.values())[kind]
    return f"click {column + width - 1} {row + height - 1}"


def label(app, page):
    return LABELS[APPS.title[app, page]]


def test_apps_are_trees_whose_pages_are_called_like_their_links():
    for app in range(6):
        assert sorted(set(APPS.depth[app].tolist())) == [0, 1, 2, 3]
        for page in range(1, screens.PAGES):
            parent = APPS.parent[app, page]
            assert parent < page and APPS.depth[app, page] == APPS.depth[app, parent] + 1
            slot = np.argmax(APPS.target[app, parent] == page)
            assert APPS.elements[app, parent, slot, 1] == APPS.title[app, page]
        decoys = APPS.elements[app][APPS.target[app] == screens.ADVERT][:, 1]
        assert len(decoys) == screens.PAGES and not set(decoys.tolist()) & set(APPS.title[app, 1:-1].tolist())


def test_a_way_that_an_advert_delays(hand):
    moves = [click(0, 0, screens.ADVERT), "finish"]
    assert not bool(hand.play(make(), task(0, 2), moves)[1][2].info["success"])
    moves = [moves[0], "back", click(0, 0, 1), click(0, 1, 2), "finish"]
    texts, timesteps, _ = hand.play(make(), task(0, 2), moves)
    goal = label(0, 2)
    assert texts[0].startswith("home ") and texts[0].endswith(f" find {goal}") and f" {label(0, 1)} " in texts[0]
    assert texts[1] == f"advert find {goal}" and texts[2] == texts[0]
    assert texts[3].startswith(label(0, 1)) and texts[4].startswith(goal)
    assert bool(timesteps[-1].info["success"]) and float(timesteps[-1].reward) == 1.0
    metrics = {name: float(value) for name, value in timesteps[-1].info["metrics"].items()}
    assert metrics == {"steps_back": 1.0, "adverts": 1.0, "failures": 0.0}


def test_clicks_beside_and_ways_back_from_home_do_nothing(hand):
    sizes = list(KINDS.values())
    boxes = [(column, row, *sizes[kind]) for kind, _, column, row in APPS.elements[0, 0] if kind >= 0]
    taken = {(c + x, r + y) for c, r, width, height in boxes for x in range(width) for y in range(height)}
    column, row = next((c, r) for c in range(16) for r in range(16) if (c, r) not in taken)
    texts, timesteps, _ = hand.play(make(), task(0, 1), [f"click {column} {row}", "back"])
    assert texts[1] == texts[0] and bool(timesteps[1].info["valid"])
    assert texts[2] == texts[0] + " nothing happens ." and not bool(timesteps[2].info["valid"])


def test_progress_is_the_share_of_the_way(hand):
    environment = make(reward="dense")
    moves = [click(0, 0, 1), click(0, 1, 2), "back", click(0, 1, 2), "finish"]
    rewards = [float(one.reward) for one in hand.play(environment, task(0, 2), moves)[1][1:]]
    np.testing.assert_allclose(rewards, [1 / 3, 1 / 3, -1 / 3, 1 / 3, 1 / 3], atol=1e-6)
    distances = [float(environment.text.distance(hand.play(environment, task(0, 2), moves[:n])[2])) for n in (0, 1, 5)]
    assert distances == [3.0, 2.0, 0.0]
    assert np.isinf(float(environment.text.distance(hand.play(environment, task(0, 2), ["finish"])[2])))


@pytest.mark.exhaustive
def test_pages_fail_as_often_as_said(hand):
    environment = make(failure_rate=0.5)
    texts, timesteps, _ = hand.play(environment, task(0, 1), [click(0, 0, 1)] * 9)
    failures = [" failed " in one for one in texts]
    assert sum(failures) == float(timesteps[-1].info["metrics"]["failures"])
    assert environment.text.distance is None


@pytest.mark.exhaustive
def test_held_out_apps_are_never_seen_and_levels_are_depths(hand):
    sides = [hand.drawn_tasks(make(), 128, level, held_out=side) for side in (False, True) for level in (0, 2)]
    for tasks, depth in zip(sides, (1, 3, 1, 3)):
        np.testing.assert_array_equal(APPS.depth[tasks["app"], tasks["goal"]], depth)
    ours, theirs = (set(np.concatenate([one["app"] for one in two]).tolist()) for two in (sides[:2], sides[2:]))
    assert ours and theirs and not ours & theirs


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_decoys": 4}, "`num_decoys` must be from 0 to 3, got 4"),
        ({"failure_rate": 1.0}, "`failure_rate` must be at least 0 and below 1"),
        ({"split": "pages"}, "`split` must be"),
        ({"max_steps": 3}, "`max_steps` must be at least 4, got 3"),
        ({"num_apps": 0}, "`num_apps` must be a positive number"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        screens.make_environment(**options)
