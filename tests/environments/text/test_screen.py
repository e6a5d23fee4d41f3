"""Screens: what is seen, which actions are right, and how they are graded."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import screen
from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.words import sentence

make = functools.cache(functools.partial(screen.make_environment, (2, 8)))
KINDS = tuple(screen.KINDS)


def task(asks, of):
    """A button of 4 x 2 from column 3 and row 5 on, and an icon of 2 x 2."""
    elements = [
        [KINDS.index("button"), screen.LABELS.index("save"), 3, 5],
        [KINDS.index("icon"), screen.LABELS.index("mail"), 10, 2],
    ] + [[-1] * 4] * 6
    numbers = {"elements": elements, "asks": asks, "of": of, "level": 0}
    return {name: jnp.asarray(value, jnp.int32) for name, value in numbers.items()}


PRESS_SAVE = task(screen.CLICK, screen.LABELS.index("save"))


def act(hand, one, action, **options):
    return hand.play(make(**options), one, [action])[1][1]


def test_a_screen_and_its_instruction_are_seen(hand):
    texts, timesteps, _ = hand.play(make(), PRESS_SAVE, ["click 4 6"])
    assert texts[0] == "button save 3 5 icon mail 10 2 press save"
    assert bool(timesteps[1].terminated) and bool(timesteps[1].info["success"]) and float(timesteps[1].reward) == 1.0


@pytest.mark.parametrize(
    "action, success", [("3 5", True), ("6 6", True), ("2 5", False), ("7 5", False), ("3 4", False), ("3 7", False)]
)
def test_a_box_is_hit_inside_and_at_its_border(hand, action, success):
    timestep = act(hand, PRESS_SAVE, f"click {action}")
    assert bool(timestep.info["success"]) == success == bool(timestep.info["metrics"]["inside"])


def test_the_distance_is_graded(hand):
    # The middle is at column 4.5 and row 5.5: 4 cells, a quarter of the screen, lie between it and (8.5, 5.5).
    graded = float(act(hand, PRESS_SAVE, "click 9 6").info["metrics"]["distance"])
    np.testing.assert_allclose(graded, np.exp(-4 * (4.5**2 + 0.5**2) / 16), rtol=1e-5)
    rewards = [float(act(hand, PRESS_SAVE, action, reward="dense").reward) for action in ("click 4 5", "back")]
    np.testing.assert_allclose(rewards, [0.5 + 0.5 * np.exp(-4 * 0.5 / 16), 0.0], rtol=1e-5)


@pytest.mark.parametrize(
    "asks, of, seen, right, wrong",
    [
        (screen.TYPE, 1, "enter pizza", "type pizza", "type rain"),
        (screen.SCROLL, 1, "look below", "scroll down", "scroll up"),
        (screen.BACK, 0, "leave", "back", "finish"),
        (screen.FINISH, 0, "all done", "finish", "click 3 5"),
    ],
)
def test_other_instructions(hand, asks, of, seen, right, wrong):
    texts, timesteps, _ = hand.play(make(), task(asks, of), [right])
    assert texts[0].endswith(seen) and bool(timesteps[1].info["success"])
    info = act(hand, task(asks, of), wrong).info
    assert not bool(info["success"])
    assert float(info["metrics"]["type"]) == float(wrong.split()[0] == right.split()[0])


def released_place(x, y, box):
    """AgentCPM-GUI@acbaf50, gui_eval.py:351-396, on a screen of 1000 by 1000; x, y are the middle of a cell."""
    left, top, right, bottom = (1000 * value / 16 for value in box)
    x, y, middle = 1000 * (x + 0.5) / 16, 1000 * (y + 0.5) / 16, ((left + right) / 2, (top + bottom) / 2)
    away = abs(x - middle[0]), abs(y - middle[1])
    if left <= x <= right and top <= y <= bottom:
        return 0.95 + 0.05 * (1 - max(away) / 1000) ** 3
    return 1 - (away[0] / 1000 + away[1] / 1000) / 2


def released_centre(x, y, box):
    """UI-AGILE@a8f7658, reward.py:224-260, without the 1 of the box."""
    left, top, right, bottom = box
    x, y = x + 0.5, y + 0.5
    if not (left <= x <= right and top <= y <= bottom):
        return 0.0
    away = [abs(x - (left + right) / 2) / ((right - left) / 2), abs(y - (top + bottom) / 2) / ((bottom - top) / 2)]
    return np.exp(-4 * max(away) ** 2)


@pytest.mark.parametrize("action", ["click 3 5", "click 4 6", "click 6 5", "click 7 5", "click 3 4", "click 15 15"])
def test_clicks_are_graded_as_released(hand, action):
    result = act(hand, PRESS_SAVE, action).info["metrics"]
    x, y = map(int, action.split()[1:])
    for name, rule in (("place", released_place), ("centre", released_centre)):
        np.testing.assert_allclose(float(result[name]), rule(x, y, (3, 5, 7, 7)), rtol=1e-5)
    assert float(result["click"]) == 1.0 and float(result["bare"]) == 0.0


@pytest.mark.parametrize("asks, move, bare", [(screen.BACK, "back", 1), (screen.BACK, "click 3 5", 0)])
def test_other_parts_of_instructions_without_fields(hand, asks, move, bare):
    result = act(hand, task(asks, 0), move).info["metrics"]
    assert [float(result[name]) for name in ("bare", "click", "place", "centre")] == [bare, 0.0, 0.0, 0.0]


def listed(number, asked=PRESS_SAVE):
    elements = screen.crop(asked, jnp.int32(number))["elements"]
    return [row for row in np.asarray(elements).tolist() if row[0] >= 0]


def test_a_smaller_part_of_the_screen_holds_the_box():
    save, mail = PRESS_SAVE["elements"][:2].tolist()
    assert listed(0) == [save, mail]
    # Parts of 9 begin at columns 0, 5 and 7, and at rows 0 and 7: the box is in the first.
    assert listed(1) == [[*save[:2], 3, 5]]
    # Parts of 5: columns from 0, 1, 2 on, of which 2 is the first that holds 3 to 6; rows from 0, 3 on.
    assert listed(2) == [[*save[:2], 1, 2]]
    assert listed(3) == [save, mail]  # Of 3: the box is larger.
    press_mail = task(screen.CLICK, screen.LABELS.index("mail"))
    assert listed(1, press_mail) == [[*mail[:2], 3, 2]]  # From column 7 on, the last one.
    assert listed(2, task(screen.BACK, 0)) == [save, mail]


@pytest.mark.parametrize(
    "move, seen",
    [
        (None, "button save 3 5 icon mail 10 2"),
        ("click 3 6", "icon mail 10 2"),
        ("click 0 0", "button save 3 5 icon mail 10 2"),
        ("type rain", "button save 3 5 icon mail 10 2 rain"),
        ("scroll up", "button save 3 3 icon mail 10 0"),
        ("scroll right", "button save 5 5 icon mail 12 2"),
        ("back", ""),
        ("finish", "button save 3 5 icon mail 10 2 all done"),
    ],
)
def test_what_a_screen_shows_after_an_action(hand, move, seen):
    state = hand.play(make(), PRESS_SAVE, [move] if move else [])[2].inner
    rules = replace(make().text.rules, tell=lambda inner, seat: make().text.rules.look(state))
    environment = make_text_world(rules)
    observation = environment.reset(jax.random.key(0), PRESS_SAVE)[1].observation
    assert sentence(environment.text.words, observation) == seen


@pytest.mark.exhaustive
def test_boxes_do_not_overlap_and_are_on_the_screen(hand):
    elements = hand.drawn_tasks(make(), 64, 1)["elements"]
    for row in elements.tolist():
        cells = [
            (column + x, line + y)
            for kind, _, column, line in row
            for x in range(list(screen.KINDS.values())[kind][0])
            for y in range(list(screen.KINDS.values())[kind][1])
        ]
        assert len(cells) == len(set(cells)) and all(0 <= value < 16 for cell in cells for value in cell)


@pytest.mark.exhaustive
def test_held_out_labels_are_never_asked_for(hand):
    environment = make(split="labels")
    asked = []
    for held_out in (False, True):
        tasks = hand.drawn_tasks(environment, 512, 1, held_out=held_out)
        asked.append(set(tasks["of"][tasks["asks"] == screen.CLICK].tolist()))
        assert set(tasks["asks"].tolist()) == set(range(5))
    assert len(asked[0]) > 8 and len(asked[1]) > 2 and not asked[0] & asked[1]


@pytest.mark.exhaustive
def test_instructions_are_as_frequent_as_said(hand):
    asks = hand.drawn_tasks(make(), 4000, 0)["asks"]
    np.testing.assert_allclose(np.bincount(asks, minlength=5) / 4000, screen.SHARES, atol=0.04)


@pytest.mark.parametrize(
    "options, message", [({"num_elements": (9,)}, "from 1 to 8"), ({"split": "apps"}, "`split` must be")]
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        screen.make_environment(**options)
