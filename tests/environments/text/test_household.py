"""The household: what is seen, what each verb needs and does, when a task is done, and the experts."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import household
from jaxagents.environments.text import household_tables as names
from jaxagents.environments.text.household_rules import ABSENT, HouseholdTask
from jaxagents.environments.text.household_tasks import Goal, all_goals, identify
from jaxagents.environments.text.splits import hash_integers
from jaxagents.environments.text.words import sentence
from tests.fakes import play_actions

KEY = jax.random.key(0)
ENV = household.make_environment()
TABLES = names.make_tables(names.LEVELS)
KINDS = tuple(dict.fromkeys(name.split()[0] for name in names.RECEPTACLES))
TYPES = tuple(names.OBJECTS)
STEP, RESET = jax.jit(ENV.step), jax.jit(ENV.reset)
FINGERPRINT = jax.jit(ENV.text.fingerprint)


def task_of(family, thing, kind, *, level=4, **places):
    """Makes a task; `apple_1="fridge 1"` says where things are."""
    where = np.full(32, ABSENT, np.int32)
    for name, receptacle in places.items():
        kind_of_thing, number = name.split("_")
        where[TYPES.index(kind_of_thing) + 16 * (int(number) - 1)] = names.RECEPTACLES.index(receptacle)
    numbers = (level, family, TYPES.index(thing), KINDS.index(kind))
    level, family, object_type, target_kind = (jnp.asarray(number, jnp.int32) for number in numbers)
    return HouseholdTask(
        level=level, family=family, object_type=object_type, target_kind=target_kind, places=jnp.asarray(where)
    )


def ids_of(command):
    """Reads "go to: fridge 1"; the number is a word of its own."""
    phrases = [phrase.strip() for phrase in re.split(r":| (?=\d$)", command)]
    return jnp.asarray([*TABLES.ids(*phrases), *[-1] * (3 - len(phrases))], jnp.int32)


def play(task, *commands, step=STEP, reset=RESET):
    return play_actions(reset, step, task, [ids_of(command) for command in commands], KEY)


def read(timestep):
    return sentence(ENV.text.words, timestep.observation)


GOAL = "put some apple in shelf"
APPLE = task_of(names.PICK, "apple", "shelf", apple_1="cabinet 1", mug_1="desk 1", knife_1="desk 1")
AT_APPLE = ("go to: cabinet 1", "open: cabinet 1")
WITH_APPLE = (*AT_APPLE, "take: apple 1")


def test_prompt_and_first_observation():
    small = task_of(names.PICK, "apple", "shelf", level=0, apple_1="drawer 1")
    assert sentence(ENV.text.words, ENV.text.prompt(small)) == (
        "you are at the middle of the room . you see countertop 1 cabinet 1 drawer 1 shelf 1 . "
        "your task is to put some apple in shelf ."
    )
    assert read(play(small)[1][0]) == f"{GOAL} you are at the middle of the room you hold nothing"
    lamp = task_of(names.EXAMINE, "book", "desk", book_1="drawer 1")
    assert read(play(lamp)[1][0]).startswith("look at some book under the desklamp you are")


def test_contents_are_hidden_while_closed():
    _, timesteps = play(APPLE, *AT_APPLE, "close: cabinet 1", "go to: shelf 1", "go to: desk 1")
    assert [read(t).removeprefix(f"{GOAL} ") for t in timesteps[1:]] == [
        "you are at cabinet 1 closed you hold nothing",
        "you are at cabinet 1 open you hold nothing you see apple 1",
        "you are at cabinet 1 closed you hold nothing",
        "you are at shelf 1 you hold nothing you see nothing",
        "you are at desk 1 you hold nothing you see desklamp 1 mug 1 knife 1",
    ]


HEATED = (*WITH_APPLE, "go to: microwave 1", "heat: apple 1")
DESK, SINK = "you are at desk 1 you hold nothing you see desklamp 1", "you are at sinkbasin 1 you hold apple 1"


@pytest.mark.parametrize(
    ("before", "command", "after"),
    [
        ((), "go to: desk 1", f"{DESK} mug 1 knife 1"),
        (AT_APPLE[:1], "open: cabinet 1", "you are at cabinet 1 open you hold nothing you see apple 1"),
        (AT_APPLE, "close: cabinet 1", "you are at cabinet 1 closed you hold nothing"),
        (AT_APPLE, "take: apple 1", "you are at cabinet 1 open you hold apple 1 you see nothing"),
        ((*WITH_APPLE, "go to: desk 1"), "put: apple 1", f"{DESK} apple 1 mug 1 knife 1"),
        ((*WITH_APPLE, "go to: sinkbasin 1"), "clean: apple 1", f"{SINK} clean you see nothing"),
        ((*WITH_APPLE, "go to: microwave 1"), "heat: apple 1", "you are at microwave 1 closed you hold apple 1 hot"),
        ((*WITH_APPLE, "go to: fridge 1"), "cool: apple 1", "you are at fridge 1 closed you hold apple 1 cool"),
        ((*HEATED, "go to: fridge 1"), "cool: apple 1", "you are at fridge 1 closed you hold apple 1 cool"),
        ((*HEATED, "go to: sinkbasin 1"), "clean: apple 1", f"{SINK} hot and clean you see nothing"),
        (("go to: desk 1",), "examine: mug 1", f"{DESK} mug 1 knife 1"),
        (("go to: desk 1",), "use: desklamp 1", f"{DESK} mug 1 knife 1"),
        ((), "look", "you are at the middle of the room you hold nothing"),
        ((), "inventory", "you are at the middle of the room you hold nothing"),
    ],
)
def test_effect_of_each_verb(before, command, after):
    _, timesteps = play(APPLE, *before, command)
    answer = "ordinary . " if "examine" in command else ""
    assert read(timesteps[-1]) == f"{answer}{GOAL} {after}"
    assert all(bool(t.info["valid"]) for t in timesteps)


def test_slicing_needs_the_knife_and_shows_when_examined():
    reach = (*WITH_APPLE, "go to: desk 1", "put: apple 1")
    _, timesteps = play(
        APPLE, *reach, "slice: apple 1", "take: knife 1", "slice: apple 1", "examine: apple 1", "slice: apple 1"
    )
    assert [bool(t.info["valid"]) for t in timesteps[6:]] == [False, True, True, True, False]
    assert read(timesteps[-2]).startswith("sliced . ")


ILLEGAL = [
    ((), "open: cabinet 1"),
    ((), "use: desklamp 1"),
    ((), "close: cabinet 1"),
    (("go to: desk 1",), "go to: desk 1"),
    (("go to: cabinet 1",), "take: apple 1"),
    (("go to: cabinet 1",), "examine: apple 1"),
    (AT_APPLE, "open: cabinet 1"),
    (AT_APPLE, "take: mug 1"),
    (AT_APPLE, "take: apple 2"),
    (AT_APPLE, "put: apple 1"),
    ((*WITH_APPLE, "go to: desk 1"), "take: mug 1"),
    ((*WITH_APPLE, "close: cabinet 1"), "put: apple 1"),
    (WITH_APPLE, "clean: apple 1"),
    (WITH_APPLE, "heat: apple 1"),
    (WITH_APPLE, "cool: apple 1"),
    (("go to: sinkbasin 1",), "clean: mug 1"),
    ((), "desklamp: use"),
    ((), "go to: go to"),
    ((), "heat: book 1"),
]


@pytest.mark.parametrize(("before", "command"), ILLEGAL)
def test_what_cannot_be_done_changes_nothing(before, command):
    state, timesteps = play(APPLE, *before)
    following, timestep = STEP(KEY, state, ids_of(command))
    assert FINGERPRINT(state) == FINGERPRINT(following)
    assert not bool(timestep.info["valid"]) and float(timestep.reward) == 0.0
    plain = read(timesteps[-1])
    assert read(timestep) == f"nothing happens . {plain}"
    np.testing.assert_array_equal(timestep.action_mask, timesteps[-1].action_mask)


def test_receptacles_of_higher_levels_are_not_there():
    _, timesteps = play(task_of(names.PICK, "apple", "shelf", level=0, apple_1="drawer 1"), "go to: desk 1")
    assert not bool(timesteps[-1].info["valid"])


TAKE = ("go to: countertop 1", "take: mug 1")
HEAT_IT = ("go to: microwave 1", "heat: mug 1")
FIRST_IN = ("go to: cabinet 1", "open: cabinet 1", "put: mug 1")
SECOND_IN = ("go to: cabinet 2", "open: cabinet 2", "put: mug 2")
DONE = {
    names.PICK: ((*TAKE, "go to: shelf 1", "put: mug 1"), "shelf"),
    names.CLEAN: ((*TAKE, "go to: sinkbasin 1", "clean: mug 1", "go to: shelf 1", "put: mug 1"), "shelf"),
    names.HEAT: ((*TAKE, *HEAT_IT, "go to: shelf 1", "put: mug 1"), "shelf"),
    names.COOL: ((*TAKE, "go to: fridge 1", "cool: mug 1", "open: fridge 1", "put: mug 1"), "fridge"),
    names.EXAMINE: ((*TAKE, "go to: desk 1", "use: desklamp 1"), "desk"),
    names.TWO: ((*TAKE, *FIRST_IN, "go to: countertop 1", "take: mug 2", *SECOND_IN), "cabinet"),
}


def mug_task(family):
    second = {"mug_2": "countertop 1"} if family == names.TWO else {}
    return task_of(family, "mug", DONE[family][1], mug_1="countertop 1", apple_1="countertop 1", **second)


@pytest.mark.parametrize("family", range(6))
def test_goal_of_each_family(family):
    _, timesteps = play(mug_task(family), *DONE[family][0])
    assert [bool(t.info["success"]) for t in timesteps] == [False] * (len(timesteps) - 1) + [True]
    assert [float(t.reward) for t in timesteps] == [0.0] * (len(timesteps) - 1) + [1.0]
    assert bool(timesteps[-1].terminated) and all(bool(t.info["valid"]) for t in timesteps)


@pytest.mark.parametrize(
    ("family", "commands"),
    [
        (names.PICK, ("go to: countertop 1", "take: apple 1", "go to: shelf 1", "put: apple 1")),
        (names.PICK, (*TAKE, "go to: sinkbasin 1", "put: mug 1")),
        (names.CLEAN, (*TAKE, *HEAT_IT, "go to: shelf 1", "put: mug 1")),
        (names.HEAT, (*TAKE, *HEAT_IT, "go to: fridge 1", "cool: mug 1", "go to: shelf 1", "put: mug 1")),
        (names.COOL, (*TAKE, "go to: fridge 1", "open: fridge 1", "put: mug 1")),
        (names.EXAMINE, ("go to: countertop 1", "take: apple 1", "go to: desk 1", "use: desklamp 1")),
        (names.EXAMINE, (*TAKE, "go to: desk 1", "put: mug 1", "use: desklamp 1")),
        (names.TWO, DONE[names.TWO][0][:5]),
    ],
)
def test_near_misses(family, commands):
    _, timesteps = play(mug_task(family), *commands)
    assert all(bool(t.info["valid"]) for t in timesteps)
    assert not bool(timesteps[-1].info["success"]) and not bool(timesteps[-1].terminated)


def test_dense_reward_pays_each_stage_once():
    environment = household.make_environment(reward="dense", step_penalty=0.125)
    commands = (*DONE[names.HEAT][0][:3], "look", *DONE[names.HEAT][0][3:])
    _, timesteps = play(mug_task(names.HEAT), *commands, step=jax.jit(environment.step))
    # Found, taken, -, -, heated, -, placed.
    np.testing.assert_allclose([float(t.reward) + 0.125 for t in timesteps[1:]], [0.25, 0.25, 0, 0, 0.25, 0, 0.25])
    drop = (*DONE[names.TWO][0][:5], "take: mug 1")
    _, timesteps = play(mug_task(names.TWO), *drop, step=jax.jit(environment.step))
    np.testing.assert_allclose(
        [float(t.reward) + 0.125 for t in timesteps[1:]], [0.25, 0.25, 0, 0, 0.125, -0.125], rtol=1e-5
    )


def test_fingerprint_forgets_time_and_history():
    prints = [
        int(FINGERPRINT(play(APPLE, *commands)[0]))
        for commands in (
            ("go to: desk 1",),
            ("go to: shelf 1", "look", "go to: desk 1"),
            ("go to: desk 1", "take: mug 1", "put: mug 1"),
            ("go to: desk 1", "take: mug 1"),
            ("go to: shelf 1",),
            (*AT_APPLE, "go to: desk 1"),
        )
    ]
    assert prints[0] == prints[1] == prints[2]
    assert len(set(prints)) == 4
    other = APPLE.replace(target_kind=jnp.asarray(KINDS.index("drawer"), jnp.int32))
    assert int(FINGERPRINT(play(other, "go to: desk 1")[0])) != prints[0]


def test_the_longest_observation_fits():
    things = ("apple", "mug", "book", "knife", "pen", "plate", "egg", "cellphone", "tomato", "cup")
    crowded = task_of(names.PICK, "apple", "shelf", **{f"{thing}_1": "desk 1" for thing in things})
    _, timesteps = play(crowded, "go to: desk 1", "examine: cup 1")
    assert read(timesteps[-1]).endswith("mug 1 book 1 knife 1 pen 1 plate 1 egg 1 cellphone 1 tomato 1 cup 1")
    assert int((timesteps[-1].observation >= 0).sum()) == ENV.observation_space.shape[0] == 34
    small = household.make_environment(2, goal_in_observation=False)
    assert small.observation_space.shape == (18,)
    assert household.make_environment(2).observation_space.shape == (22,)


def experts_play(environment, num_random):
    """Returns `(key, level) -> (success, length)` of the expert after some random admissible actions."""
    rows = jnp.asarray(environment.text.actions)

    def one(key, level):
        task_key, key = jax.random.split(key)
        state, timestep = environment.reset(key, environment.sample_task(task_key, level))

        def step(carry, inputs):
            (state, timestep), (index, key) = carry, inputs
            logits = jnp.where(timestep.action_mask, 0.0, -jnp.inf)
            at_random = rows[jax.random.categorical(key, logits)]
            action = jnp.where(index < num_random, at_random, environment.text.expert(key, state)[0])
            state, timestep = environment.step(key, state, action)
            return (state, timestep), (timestep.info["success"], timestep.info["valid"])

        keys = jax.random.split(key, environment.max_steps)
        return jax.lax.scan(step, (state, timestep), (jnp.arange(len(keys)), keys))[1]

    return jax.jit(jax.vmap(one))


@pytest.mark.exhaustive
@pytest.mark.parametrize("expert", ["searching", "informed"])
def test_experts_solve_every_task(expert):
    environment = household.make_environment(expert=expert)
    success, valid = experts_play(environment, 0)(jax.random.split(KEY, 100), jnp.arange(100) % 5)
    assert success[:, -1].all() and valid.all()
    lengths = (~success).sum(axis=1) + 1
    # Knowing where things are saves the search: four trips for two things at most, with two lids to open at either end.
    assert lengths.max() <= (28 if expert == "searching" else 12)
    assert lengths.max() > (14 if expert == "searching" else 6)


@pytest.mark.exhaustive
def test_expert_solves_from_any_state():
    environment = household.make_environment(max_steps=60)
    success, _ = experts_play(environment, 25)(jax.random.split(KEY, 60), jnp.arange(60) % 5)
    assert success[:, -1].all()


def test_searching_expert_does_not_know_what_it_has_not_seen():
    far, near = (task_of(names.PICK, "apple", "shelf", apple_1=place) for place in ("cabinet 3", "drawer 2"))
    expert = jax.jit(lambda key, state: ENV.text.expert(key, state)[0])
    states, actions = [RESET(KEY, far)[0], RESET(KEY, near)[0]], []
    for _ in range(17):
        chosen = [sentence(ENV.text.words, expert(KEY, state)) for state in states]
        actions.append(chosen)
        states = [STEP(KEY, state, expert(KEY, state))[0] for state in states]
    assert [far == near for far, near in actions] == [True] * 16 + [False]
    assert actions[-1] == ["go to garbagecan 1", "take apple 1"]


@pytest.mark.exhaustive
def test_tasks_are_as_their_level_says():
    tasks = jax.device_get(jax.jit(jax.vmap(ENV.sample_task))(jax.random.split(KEY, 200), jnp.arange(200) % 5))
    held_out = jax.jit(jax.vmap(ENV.text.sample_held_out_task))(jax.random.split(KEY, 200), jnp.arange(200) % 5)
    goals = [np.stack([t.family, t.object_type, t.target_kind], axis=1) for t in (tasks, jax.device_get(held_out))]
    assert not {tuple(row) for row in goals[0]} & {tuple(row) for row in goals[1]}
    for i in range(200):
        level = names.LEVELS[int(tasks.level[i])]
        places = tasks.places[i]
        subject = (np.arange(32) % 16 == tasks.object_type[i]) & (places != ABSENT)
        assert int(tasks.level[i]) == i % 5 and int(tasks.family[i]) in level.families
        assert (places != ABSENT).sum() == level.num_objects and places.max() < level.num_receptacles
        assert subject.sum() == (2 if tasks.family[i] == names.TWO else 1)
        assert not (TABLES.kind[places[subject]] == tasks.target_kind[i]).any()
        assert TABLES.goal_types[tasks.family[i], tasks.object_type[i]]
        assert np.flatnonzero(places != ABSENT).max(initial=0) % 16 < level.num_types


def test_every_family_of_every_level_has_goals_on_both_sides():
    hashes = jax.jit(jax.vmap(lambda goal: hash_integers(*identify(goal))))
    for level in range(5):
        goals = all_goals(TABLES, level)
        held_out = np.asarray(hashes(Goal(*jnp.asarray(goals).T))) < 2**30
        for family in names.LEVELS[level].families:
            share = held_out[goals[:, 1] == family].mean()
            assert 0.1 < share < 0.45
        # The family examine has one place.
        assert len(np.unique(goals, axis=0)) == len(goals)
    assert len(all_goals(TABLES, 0)) == 6 * 4


def test_render():
    state, _ = play(
        task_of(names.PICK, "apple", "shelf", level=0, apple_1="countertop 1", mug_1="drawer 1"),
        "go to: countertop 1",
        "take: apple 1",
    )
    assert ENV.render(state).splitlines() == [
        "put some apple in shelf",
        "> countertop 1: -",
        "  cabinet 1 (closed): -",
        "  drawer 1 (closed): mug 1",
        "  shelf 1: -",
        "  hand: apple 1",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_levels": 6}, "`num_levels` must be from 1 to 5, got 6"),
        ({"reward": "shaped"}, '`reward` must be "sparse" or "dense"'),
        ({"expert": "human"}, '`expert` must be "searching" or "informed"'),
        ({"max_steps": 20}, "`max_steps` must leave time for a search of 28, got 20"),
        ({"num_levels": 1, "held_out_fraction": 0.001}, "`held_out_fraction` must leave level 0 goals on both sides"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        household.make_environment(**arguments)


@pytest.mark.slow
def test_the_kitchenette_is_one_small_level(hand):
    environment = household.make_environment(kitchenette=True, max_steps=15)
    tables = names.make_tables((names.KITCHENETTE,))
    assert environment.text.num_levels == 1 and tables.num_receptacles == 6
    tasks = hand.drawn_tasks(environment, 64, 0)
    assert ((tasks.places >= 0).sum(axis=1) == 2).all()
    assert {names.PICK, names.CLEAN, names.EXAMINE} == set(tasks.family.tolist())
    with pytest.raises(ValueError, match="`max_steps` must leave time for a search of 15, got 14"):
        household.make_environment(kitchenette=True, max_steps=14)
