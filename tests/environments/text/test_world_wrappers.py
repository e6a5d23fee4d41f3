"""Conditions, notes, lines, retries and macros; and pairs of wrappers over two small worlds."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text.lines import with_adviser, with_summaries
from jaxagents.environments.text.macros import with_macros
from jaxagents.environments.text.notes import expert_action, steps_left, with_conditions, with_notes
from jaxagents.environments.text.retries import with_retries
from jaxagents.environments.text.rewards import with_delay, with_judge
from jaxagents.environments.text.skins import with_skins
from jaxagents.environments.text.union import join_worlds
from jaxagents.environments.text.words import NOTHING_HAPPENS, sentence
from jaxagents.language.lexicon import make_lexicon
from jaxagents.language.tokenizers import byte_level

KEY = jax.random.key(0)
FROM_SHELF = {"key": jnp.int32(0), "start": jnp.int32(2), "level": jnp.int32(0)}  # The key is on the desk.
SEVEN = {"secret": jnp.int32(7), "lowest": jnp.int32(1), "largest": jnp.int32(7), "level": jnp.int32(0)}


def valid(timesteps):
    return [bool(one.info["valid"]) for one in timesteps[1:]]


def test_conditions_are_part_of_the_task(hand, tiny):
    world = with_conditions(tiny.worlds["rooms"], phrases=["hurry", ("take", "care")], num_phrases=2)
    environment = tiny.make(world)
    task = {"inner": FROM_SHELF, "condition": jnp.asarray([1, -1]), "level": jnp.int32(0)}
    texts, _, state = hand.play(environment, task, ["go to bed"])
    assert texts == ["take care you are at shelf .", "take care you are at bed ."]
    bare = hand.play(environment, task | {"condition": jnp.asarray([-1, -1])}, ["go to bed"])
    assert bare[0][1] == "you are at bed ."
    assert int(environment.text.fingerprint(state)) != int(environment.text.fingerprint(bare[2]))


def test_conditions_of_the_prompt_may_be_chosen_by_the_task_and_dropped(hand, tiny):

    def choose(key, task):
        return task["key"][None]

    world = with_conditions(tiny.worlds["rooms"], phrases="abcd", choose=choose, drop=0.25, where="prompt")
    environment = tiny.make(world)
    tasks = hand.drawn_tasks(environment, 400, 0)
    chosen, keys = tasks["condition"][:, 0], tasks["inner"]["key"]
    np.testing.assert_array_equal(chosen[chosen >= 0], keys[chosen >= 0])
    np.testing.assert_allclose((chosen < 0).mean(), 0.25, atol=0.07)
    task = {"inner": FROM_SHELF, "condition": jnp.asarray([3]), "level": jnp.int32(0)}
    assert hand.prompt(environment, task) == "find 1 d"


@pytest.mark.parametrize(
    "write, first, second",
    [
        (expert_action, "note go to desk . you are at shelf .", "note take . you are at desk ."),
        (partial(steps_left, digits=1), "note 2 . you are at shelf .", "note 1 . you are at desk ."),
    ],
)
def test_notes_are_about_the_state(hand, tiny, write, first, second):
    environment = tiny.make(with_notes(tiny.worlds["rooms"], write=write))
    assert hand.play(environment, FROM_SHELF, ["go to desk"])[0] == [first, second]


def test_summaries_are_asked_for_and_shown(hand, tiny):
    environment = tiny.make(with_summaries(tiny.worlds["rooms"], window=2, max_words=2))
    assert environment.max_steps == 4 + 1
    said = ["go to bed", "summary take", "go to shelf", "summary desk bed", "go to desk", "take"]
    texts, timesteps, _ = hand.play(environment, FROM_SHELF, said)
    assert valid(timesteps) == [True, False, False, True, True, True]
    assert texts[:6] == [
        "you are at shelf .",
        "you are at bed .",
        "you are at bed . summary ? nothing happens .",  # What is not understood is a turn of the window, too.
        "you are at bed . summary ? nothing happens .",
        "summary desk bed . you are at bed .",
        "summary desk bed . you are at desk .",
    ]
    assert bool(timesteps[5].truncated)


def test_an_adviser_is_a_second_seat(hand, tiny):
    environment = tiny.make(with_adviser(tiny.worlds["rooms"], every=2, max_words=2))
    assert environment.num_players == 2 and environment.max_steps == 4 + 1 + 1
    said = ["advice bed", "go to bed", "go to door 1", "advice go to desk", "go to desk", "take"]
    texts, timesteps, _ = hand.play(environment, FROM_SHELF, said)
    assert [int(one.player) for one in timesteps] == [1, 0, 0, 1, 0, 0, 0]
    assert texts[0] == "you are at shelf . advice ?" and texts[2] == "advice bed . you are at bed ."
    assert texts[4] == "advice go to desk . you are at door 1 ."
    assert all(valid(timesteps)) and timesteps[-1].reward.tolist() == [1, 1]


@pytest.mark.slow
def test_a_task_is_tried_again_from_its_start(hand, tiny):
    environment = tiny.make(with_retries(tiny.worlds["guess_number"], num_trials=2))
    assert environment.max_steps == 6
    texts, timesteps, state = hand.play(environment, SEVEN, ["1", "higher", "2", "7"])
    assert texts[:4] == [
        "try 1 guess 1 to 7",
        "try 1 higher",
        "try 1 higher nothing happens .",
        "try 2 before higher guess 1 to 7",
    ]
    assert not any(bool(one.terminated) for one in timesteps[:-1]) and bool(timesteps[-1].info["success"])
    assert float(timesteps[-1].info["metrics"]["trials"]) == 2.0
    _, timesteps, _ = hand.play(environment, SEVEN, ["1"] * 6)
    assert bool(timesteps[-1].terminated) and not bool(timesteps[-2].terminated)
    assert [float(one.reward) for one in timesteps] == [0] * 7


def test_reflections_are_carried_over(hand, tiny):
    world = with_retries(tiny.worlds["rooms"], num_trials=2, show_last=False, reflection_words=2)
    environment = tiny.make(world, reward="dense")
    assert environment.max_steps == 2 * 4 + 1
    said = ["go to desk", "go to bed", "go to shelf", "go to bed", "note desk take", "go to desk", "take"]
    texts, timesteps, _ = hand.play(environment, FROM_SHELF, said)
    assert texts[3:6] == [
        "try 1 you are at shelf .",
        "try 2 you are at shelf . note ?",
        "note desk take . try 2 you are at shelf .",
    ]
    assert all(valid(timesteps)) and bool(timesteps[-1].info["success"])
    assert [float(one.reward) for one in timesteps] == [0, 0.5, -0.5, 0, 0, 0, 0.5, 0.5]


def test_a_macro_does_several_actions_while_they_are_allowed(hand, tiny):
    macros = {"fetch desk": ["go to desk", "take"], "tour": ["go to bed", "go to bed", "go to desk"]}
    environment = tiny.make(with_macros(tiny.worlds["rooms"], macros=macros))
    _, timesteps, _ = hand.play(environment, FROM_SHELF, ["fetch desk", "take"])
    assert bool(timesteps[1].terminated) and float(timesteps[1].reward) == 1.0
    texts, timesteps, _ = hand.play(environment, FROM_SHELF, ["tour", "tour", "go to desk", "fetch desk", "take"])
    assert texts[1:4] == ["you are at bed .", "you are at bed . nothing happens .", "you are at desk ."]
    assert valid(timesteps) == [True, False, True, False, False]  # Four turns are all.
    rows = environment.text.actions[np.asarray(timesteps[0].action_mask)]
    allowed = {sentence(environment.text.words, row) for row in rows}
    assert allowed == {"go to desk", "go to bed", "go to door 1", "take", "fetch desk", "tour"}


WRAPPERS = {
    "delay": with_delay,
    "judge": partial(with_judge, false_positive_rate=0.1, false_negative_rate=0.1, num_votes=3),
    "skins": lambda world: with_skins(world, skins=[{}, {world.grammar.words[0]: "blick"}]),
    "conditions": partial(with_conditions, phrases=["hurry", "care"]),
    "notes": partial(with_notes, write=expert_action),
    "retries": partial(with_retries, num_trials=2, reflection_words=2),
    "summaries": partial(with_summaries, window=2, max_words=2),
    "macros": lambda world: with_macros(world, macros={"begin": [FIRST[world.name.split("+")[0]]]}),
    "union": lambda world: join_worlds({"it": world, "again": world}),
}
FIRST = {"rooms": "take", "guess_number": "4"}
ONE_DIALECT = {"macros": ("skins", "retries", "summaries", "union")}  # What must go around it, and not within.
PAIRS = [
    pytest.param(one, other, world, id=f"{one}-{other}-{world}")
    for number, (one, other) in enumerate(itertools.combinations(WRAPPERS, 2))
    for world in (("rooms", "guess_number")[number % 2],)
]


def order(one, other):
    """Returns the inner wrapper first: payouts go around unions, macros into what has subgrammars."""
    if other == "union" and one in ("delay", "judge"):
        return other, one
    return (other, one) if other == "macros" and one in ONE_DIALECT["macros"] else (one, other)


@pytest.mark.exhaustive
@pytest.mark.parametrize("one, other, name", PAIRS)
def test_wrappers_compose(tiny, one, other, name):
    inner, outer = order(one, other)
    world = WRAPPERS[outer](WRAPPERS[inner](tiny.worlds[name]))
    environment = tiny.make(world)
    steps, _, _ = tiny.run_expert(environment, 16)
    ended = steps.terminated | steps.truncated
    assert ended[:, -1].all() and steps.info["success"][:, -1].all()
    assert (steps.info["valid"] | np.roll(ended, 1, axis=1)).all()
    words, tokenizer = environment.text.words, byte_level()
    lexicon = make_lexicon(words, tokenizer)
    room = max(map(lexicon.max_tokens, environment.text.patterns.observation))
    said = {sentence(words, row) for row in steps.observation.reshape(-1, steps.observation.shape[-1])}
    assert max(len(tokenizer.encode(one)) for one in said) <= room
    state, _ = environment.reset(KEY, environment.sample_task(KEY))
    garbage = jnp.full(environment.action_space.shape, len(words) - 1, jnp.int32)
    after, timestep = jax.jit(environment.step)(KEY, state, garbage)
    assert not bool(timestep.info["valid"]) and " ".join(NOTHING_HAPPENS) in sentence(words, timestep.observation)


@pytest.mark.parametrize(
    "wrap, message",
    [
        (partial(with_conditions, phrases=[]), "`phrases` must be at least one"),
        (partial(with_conditions, phrases="ab", where="front"), "`where` must be observation or prompt, got 'front'"),
        (partial(with_conditions, phrases="ab", drop=2.0), r"`drop` must be in \[0, 1\], got 2.0"),
        (partial(with_summaries, window=0), "`window` must be a positive number"),
        (partial(with_retries, num_trials=1), "`num_trials` must be from 2 to 9, got 1"),
        (partial(with_retries, num_trials=2, reflection_words=-1), "`reflection_words` must not be negative"),
        (partial(with_macros, macros={}), "`macros` must have at least one action each"),
        (partial(with_macros, macros={"dance": ["hop"]}), "`macros` must be made of actions of 'rooms', got 'hop'"),
        (partial(with_macros, macros={"take": ["take"]}), "`templates` must give every action one reading, got 'take'"),
        (
            lambda world: with_macros(with_skins(world, skins=[{}, {}]), macros={"a": ["take"]}),
            "must have one subgrammar",
        ),
        (lambda world: with_retries(with_adviser(world), num_trials=2), "`world` must have one seat to be retried"),
    ],
)
def test_what_does_not_fit_is_refused(tiny, wrap, message):
    with pytest.raises(ValueError, match=message):
        wrap(tiny.worlds["rooms"])


def test_a_note_about_an_unknown_distance_is_refused(tiny):
    with pytest.raises(ValueError, match="`world` must know how far a success is, 'guess_number' does not"):
        tiny.make(with_notes(tiny.worlds["guess_number"], write=steps_left))
