"""Worlds in other words, and several worlds as one."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.rewards import with_delay
from jaxagents.environments.text.skins import with_skins
from jaxagents.environments.text.subgrammars import join_grammars
from jaxagents.environments.text.union import join_worlds, make_environment
from jaxagents.environments.text.words import sentence
from jaxagents.language.tokenizers import byte_level

KEY = jax.random.key(0)
SKINS = (
    {},
    {"go to": "walk over to", "desk": "bed", "bed": "desk", "find": "seek"},  # The last two are swapped.
    {"take": "grab", "shelf": "blick", "you are at": "location"},
)


@pytest.fixture(scope="module")
def skinned(tiny):
    return tiny.make(with_skins(tiny.worlds["rooms"], skins=SKINS, num_held_out=1))


def rooms_task(skin, key=0, start=2):
    inner = {"key": jnp.int32(key), "start": jnp.int32(start), "level": jnp.int32(0)}
    return {"inner": inner, "skin": jnp.int32(skin), "level": jnp.int32(0)}


def test_everything_is_said_and_understood_in_the_words_of_the_skin(hand, skinned):
    texts, timesteps, _ = hand.play(
        skinned, rooms_task(1), ["go to desk", "walk over to desk", "walk over to bed", "take"]
    )
    assert texts == [
        "you are at shelf .",
        "you are at shelf . nothing happens .",
        "you are at desk .",  # It is the bed.
        "you are at bed .",
        "you are at bed .",
    ]
    assert [bool(t.info["valid"]) for t in timesteps[1:]] == [False, True, True, True]
    assert bool(timesteps[-1].info["success"]) and float(timesteps[-1].reward) == 1.0
    assert hand.prompt(skinned, rooms_task(1)) == "seek 1" and hand.prompt(skinned, rooms_task(0)) == "find 1"
    thought = jax.jit(skinned.text.expert)(KEY, hand.play(skinned, rooms_task(1), [])[2])[1]
    assert sentence(skinned.text.words, thought) == "key at bed"
    assert hand.play(skinned, rooms_task(2), ["go to blick"])[0] == [
        "location blick .",
        "location blick . nothing happens .",
    ]


def test_the_mask_names_the_actions_of_the_skin(hand, skinned):
    _, (timestep,), _ = hand.play(skinned, rooms_task(2, start=0), [])
    rows = skinned.text.actions[np.asarray(timestep.action_mask)]
    assert {sentence(skinned.text.words, row) for row in rows} == {"go to bed", "go to blick", "go to door 1", "grab"}
    assert len({tuple(row) for row in skinned.text.actions.tolist()}) == len(skinned.text.actions) == 5 + 4 + 2


@pytest.mark.exhaustive
def test_held_out_skins_are_for_held_out_tasks_only(tiny, skinned):
    sides = [tiny.run_expert(skinned, 64, held_out=side) for side in (False, True)]
    assert all(steps.info["success"][:, -1].all() for steps, _, _ in sides)
    assert set(sides[0][1]["skin"].tolist()) == {0, 1} and set(sides[1][1]["skin"].tolist()) == {2}
    pairs = [set(zip(task["inner"]["key"].tolist(), task["inner"]["start"].tolist())) for _, task, _ in sides]
    assert not pairs[0] & pairs[1]


def test_a_skin_is_part_of_the_situation(hand, skinned):
    prints = [int(skinned.text.fingerprint(hand.play(skinned, rooms_task(skin), [])[2])) for skin in (0, 1, 0)]
    assert prints[0] == prints[2] != prints[1]


@pytest.mark.exhaustive
def test_budgets_are_those_of_the_longest_skin(skinned, speak, tiny):
    plain, ours = (speak(one, tokenizer=byte_level).layout for one in (tiny.make(tiny.worlds["rooms"]), skinned))
    assert ours.action - plain.action == len("walk over to") - len("go to")
    assert ours.observation == plain.observation  # "location" is shorter than "you are at".


def test_skins_of_a_world_of_numbers_may_swap_digits(hand, tiny):
    environment = tiny.make(with_skins(tiny.worlds["guess_number"], skins=[{"1": "2", "2": "1", "higher": "more"}]))
    inner = {"secret": jnp.int32(2), "lowest": jnp.int32(1), "largest": jnp.int32(7), "level": jnp.int32(0)}
    task = {"inner": inner, "skin": jnp.int32(0), "level": jnp.int32(0)}
    texts, timesteps, _ = hand.play(environment, task, ["2", "1"])
    assert texts[:2] == ["guess 2 to 7", "more"] and bool(timesteps[2].info["success"])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"skins": [{"sofa": "couch"}]}, "`skins` must rename words of 'rooms', got 'sofa'"),
        ({"skins": [{"desk": "bed"}]}, "`skins` must keep words apart, got 'bed' for 'desk' and 'bed'"),
        ({"skins": [{"nothing happens": "no"}]}, "`skins` must rename words of 'rooms', got 'nothing happens'"),
        ({"skins": [{}], "num_held_out": 1}, "`num_held_out` must be below the number of skins, got 1 of 1"),
    ],
)
def test_skins_that_do_not_fit_are_refused(tiny, options, message):
    with pytest.raises(ValueError, match=message):
        with_skins(tiny.worlds["rooms"], **options)


@pytest.fixture(scope="module")
def union(tiny):
    return make_environment({name: partial(tiny.make, world) for name, world in tiny.worlds.items()})


@pytest.mark.exhaustive
def test_a_level_is_a_level_of_a_world(tiny, union):
    steps, task, prints = tiny.run_expert(union, 48)
    assert union.text.num_levels == 3
    np.testing.assert_array_equal(task["which"], np.arange(48) % 3 // 2)
    np.testing.assert_array_equal(task["level"], np.arange(48) % 3)
    np.testing.assert_array_equal(task["inner"][0]["level"], np.where(np.arange(48) % 3 == 1, 1, 0))
    assert steps.info["success"][:, -1].all()
    first = [sentence(union.text.words, row) for row in steps.observation[:3, 0]]
    assert all(one.startswith("you are at") for one in first[:2]) and first[2] == "guess 1 to 7"
    metrics = {name: values[:, -1] for name, values in steps.info["metrics"].items()}
    assert set(metrics) == {"rooms_there", "rooms_success", "guess_number_certainty", "guess_number_success"}
    np.testing.assert_array_equal(metrics["guess_number_success"], task["which"] == 1)
    np.testing.assert_array_equal(metrics["rooms_success"], task["which"] == 0)


def test_limits_budgets_and_rewards_are_those_of_the_worlds(hand, tiny, union):
    assert union.max_steps == 4
    rooms = {"key": jnp.int32(0), "start": jnp.int32(2), "level": jnp.int32(0)}
    numbers = {"secret": jnp.int32(7), "lowest": jnp.int32(1), "largest": jnp.int32(7), "level": jnp.int32(0)}
    task = {"which": jnp.int32(1), "inner": (rooms, numbers), "level": jnp.int32(2)}
    texts, timesteps, _ = hand.play(union, task, ["take", "2", "3"])
    assert texts == ["guess 1 to 7", "guess 1 to 7 nothing happens .", "higher", "higher"]
    assert bool(timesteps[3].truncated) and not bool(timesteps[2].truncated)
    assert hand.prompt(union, task) == "" and hand.prompt(union, task | {"which": jnp.int32(0)}) == "find 1"
    assert "take" not in "".join(texts) and union.text.actions is not None and timesteps[0].action_mask.shape == (15,)
    _, timesteps, _ = hand.play(union, task | {"which": jnp.int32(0)}, ["2", "go to desk", "take"])
    assert [bool(t.info["valid"]) for t in timesteps[1:]] == [False, True, True] and float(timesteps[3].reward) == 1.0


@pytest.mark.slow
def test_the_split_is_that_of_the_task_that_is_played(tiny, union):
    ours, theirs = (tiny.run_expert(union, 96, held_out=side)[1] for side in (False, True))

    def played(task):
        rooms, numbers = task["inner"]
        return {
            (which, *((key, start) if which == 0 else (secret,)))
            for which, key, start, secret in zip(
                task["which"].tolist(), rooms["key"].tolist(), rooms["start"].tolist(), numbers["secret"].tolist()
            )
        }

    assert len(played(ours)) > 8 and played(theirs) and not played(ours) & played(theirs)


def test_worlds_that_cannot_be_joined_are_refused(tiny):
    with pytest.raises(ValueError, match="`worlds` must be at least one"):
        join_worlds({})
    with pytest.raises(ValueError, match="`worlds` must not have payouts of their own, got some in 'late'"):
        join_worlds({"late": with_delay(tiny.worlds["rooms"])})


GRAMMARS = (
    make_grammar("go to {place}", "stop", place=("desk", "bed")),
    make_grammar("say {word:1-2}", "stop", word="xy"),
)


@functools.cache
def parser(together):
    later = make_grammar("say {word:1-2}", word="xy")
    joint = join_grammars(GRAMMARS[0], later if together else GRAMMARS[1], together=together)
    return joint, jax.jit(joint.parse), jax.jit(joint.render)


@pytest.mark.parametrize("together", [False, True])
def test_joint_grammars_hear_what_is_spoken(together):
    joint, parse, render = parser(together)

    def heard(spoken, subgrammar):
        ids = [joint.words.index(word) for word in spoken]
        verb, args, entry, known = parse(jnp.asarray((ids + [-1] * 9)[: joint.max_words]), subgrammar)
        if known:
            np.testing.assert_array_equal(render(verb, args)[: len(ids)], ids)
            assert joint.entry_verb[entry] == verb
        return (int(verb), args[0].tolist()) if known else None

    assert heard(["go to", "bed"], 0) == (0, [1, -1])
    assert heard(["say", "y", "x"], 1 - together) == (2, [1, 0])
    assert heard(["stop"], 0) == (1, [-1, -1])
    assert heard(["go to", "x"], 0) is None
    if not together:
        assert heard(["stop"], 1) == (3, [-1, -1])
        assert heard(["go to", "bed"], 1) is None and heard(["say", "x"], 0) is None
    assert joint.num_subgrammars == 2 - together
    verbs = [int(joint.draw(KEY, entry)[0]) for entry in range(joint.num_entries)]
    assert verbs == joint.entry_verb.tolist()


def test_grammars_that_say_the_same_cannot_be_spoken_together():
    with pytest.raises(ValueError, match="`templates` must give every action one reading, got 'stop'"):
        join_grammars(*GRAMMARS, together=True)
