"""The builder: free actions, several seats at once, limits, forfeits, rewards, and worlds that do not fit together."""

import functools
from dataclasses import replace

import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.checks import require_playable
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.texts import number, pick, text, when
from jaxagents.environments.text.words import pad_to, sentence
from jaxagents.environments.text.world import Status, World
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.tokenizers import byte_level
from jaxagents.training.fitting import require_experts

KEY = jax.random.key(0)
TERMS = ("red", "blue", "green", "gold")


def library(**changes):
    """A library: a query of the right colours finds the book, whose number is the answer; three turns."""
    grammar = make_grammar("search {term:1-3}", "answer {int:5}", "leave", term=TERMS)

    def sample(key, level):
        term_key, code_key = jax.random.split(key)
        code = jax.random.randint(code_key, (), 0, 100_000)
        return {"terms": jax.random.permutation(term_key, 4)[:2], "code": code, "level": level}

    def start(key, task):
        return {"task": task, "found": jnp.bool_(False), "given": jnp.int32(-1), "left": jnp.bool_(False)}

    def play(key, state, verb, args):
        hits = jnp.any(args[0][None, :] == state["task"]["terms"][:, None], axis=1)
        given = jnp.where(verb == 1, args[0, 0], state["given"])
        found = state["found"] | ((verb == 0) & jnp.all(hits))
        return {**state, "found": found, "given": given, "left": state["left"] | (verb == 2)}

    def status(state):
        success = state["given"] == state["task"]["code"]
        parts = {"found": state["found"] * 1.0, "answered": (state["given"] >= 0) * 1.0}
        progress = 0.25 * state["found"] + 0.75 * success
        return Status(success=success, over=success | state["left"], progress=progress, parts=parts)

    def expert(key, state):
        terms, code = grammar.args(state["task"]["terms"]), grammar.args(state["task"]["code"])
        thought = when(state["found"], text("the code is", number(state["task"]["code"], 5)), "search first")
        return state["found"].astype(jnp.int32), jnp.where(state["found"], code, terms), thought

    world = World(
        name="library",
        grammar=grammar,
        max_steps=3,
        sample=sample,
        start=start,
        play=play,
        status=status,
        allowed=lambda state: jnp.stack([jnp.bool_(True), state["found"], jnp.bool_(True)]),
        tell=lambda state, seat: text("code", when(state["found"], number(state["task"]["code"], 5), "hidden")),
        prompt=lambda task: text("find", pick(TERMS, task["terms"])),
        expert=expert,
        distance=lambda state: jnp.where(state["left"], jnp.inf, 2.0 - state["found"]),
    )
    return replace(world, **changes)


@functools.cache
def functions(**options):
    environment = make_text_world(library(), **options)
    return environment, jax.jit(environment.reset), jax.jit(environment.step)


TASK = {"terms": jnp.asarray([2, 0]), "code": jnp.int32(4071), "level": jnp.int32(0)}


def play(commands, **options):
    environment, reset, step = functions(**options)
    state, timestep = reset(KEY, TASK)
    timesteps = [timestep]
    for command in commands:
        ids = [environment.text.words.index(word) for word in command.split()]
        action = jnp.asarray([*ids, *[-1] * (environment.action_space.shape[0] - len(ids))], jnp.int32)
        state, timestep = step(KEY, state, action)
        timesteps.append(timestep)
    return state, timesteps, [sentence(environment.text.words, t.observation) for t in timesteps]


def test_free_actions_are_heard_and_graded():
    state, timesteps, texts = play(["search green blue red", "answer 4 0 7 1"])
    assert texts == ["code hidden", "code 4 0 7 1", "code 4 0 7 1"]
    assert [float(t.reward) for t in timesteps] == [0, 0, 1]
    metrics = [{name: float(value) for name, value in t.info["metrics"].items()} for t in timesteps]
    assert metrics == [{"found": f, "answered": a} for f, a in ((0, 0), (1, 0), (1, 1))]
    assert bool(timesteps[-1].terminated) and timesteps[0].action_mask is None
    assert functions()[0].text.actions is None


def test_what_is_not_allowed_now_takes_a_turn_and_changes_nothing():
    state, timesteps, texts = play(["answer 4 0 7 1", "search red", "search", "leave"])
    assert texts[1:4] == ["code hidden nothing happens .", "code hidden", "code hidden nothing happens ."]
    assert [bool(t.info["valid"]) for t in timesteps] == [True, False, True, False, False]
    assert [bool(t.truncated) for t in timesteps] == [False, False, False, True, True]
    interface = functions()[0].text
    assert int(interface.fingerprint(state)) == int(interface.fingerprint(play([])[0]))


def test_free_arguments_may_be_refused_and_tasks_may_have_limits_of_their_own():
    odd = library(
        accepts=lambda state, verb, args: (verb != 1) | (args[0, 0] % 2 == 1), limit=lambda task: task["code"] % 10 + 1
    )
    environment = make_text_world(odd)
    step = jax.jit(environment.step)
    state, _ = environment.reset(KEY, TASK)  # Its code is 4071: two turns.
    seen = []
    for line in ("search green red", "answer 4"):
        ids = [environment.text.words.index(word) for word in line.split()]
        state, timestep = step(KEY, state, jnp.asarray(pad_to(np.asarray(ids), environment.action_space.shape[0])))
        seen.append((bool(timestep.info["valid"]), bool(timestep.truncated), int(state.inner["given"])))
    assert seen == [(True, False, -1), (False, True, -1)]


def test_rewards():
    _, timesteps, _ = play(["search green red", "answer 1", "answer 4 0 7 1"], reward="dense", step_penalty=0.5)
    np.testing.assert_allclose([float(t.reward) + 0.5 for t in timesteps[1:]], [0.25, 0.0, 0.75])
    _, timesteps, _ = play(["answer 1", "leave"], illegal="forfeit", forfeit_payoff=(-2.0, 0.0))
    assert [float(t.reward) for t in timesteps] == [0, -2, 0] and bool(timesteps[1].terminated)
    _, timesteps, _ = play(["leave", "leave"])
    assert bool(timesteps[1].terminated) and not bool(timesteps[2].info["success"])


@pytest.mark.exhaustive
def test_the_face_of_a_world_with_free_actions(speak):
    environment, reset, _ = functions()
    interface, state = environment.text, reset(KEY, TASK)[0]
    drawn = jax.jit(jax.vmap(lambda key: interface.draw(key, state)))(jax.random.split(KEY, 64))
    first = {environment.text.words[row[0]] for row in drawn.tolist()}
    assert first == {"search", "leave"}  # To answer is not allowed yet.
    assert sentence(interface.words, interface.prompt(TASK)) == "find green red"
    assert sentence(interface.words, interface.expert(KEY, state)[1]) == "search first"
    assert [float(interface.distance(play(line)[0])) for line in ([], ["search green red"], ["leave"])] == [
        2,
        1,
        np.inf,
    ]
    policy = speak(environment, tokenizer=byte_level, thought_tokens=24)
    assert policy.layout.action == len("search green green green") + 1
    assert policy.layout.observation == len("code 1 2 3 4 5 nothing happens .") + 2
    assert policy.layout.prompt == len("find green green")  # The rules never draw it; the text could say it.
    episode = jax.jit(make_demonstrations(environment, policy, noise=0.5))(KEY, jnp.arange(16))
    assert bool(episode.action_valid[episode.valid].all()) and 0 < int(episode.success.sum()) < 16


def goods(num_seats=3):
    """A public good: all give up to nine at once, what is given is doubled and shared; two rounds."""
    grammar = make_grammar("give {int:1}")

    def play(key, state, verb, args):
        gift = args[:, 0, 0]
        return {"round": state["round"] + 1, "gift": gift, "paid": state["paid"] + 2.0 * gift.mean() - gift}

    return World(
        name="goods",
        grammar=grammar,
        max_steps=2 * 2 * num_seats,
        num_seats=num_seats,
        sample=lambda key, level: {"number": jax.random.randint(key, (), 0, 100), "level": level},
        start=lambda key, task: {
            "round": jnp.int32(0),
            "gift": jnp.full(num_seats, -1, jnp.int32),
            "paid": jnp.zeros(num_seats),
        },
        play=play,
        status=lambda state: Status(success=state["round"] == 2, over=state["round"] == 2, payoff=state["paid"]),
        tell=lambda state, seat: text(
            "you are", pick("abc", seat), "gifts", *(number(state["gift"][i], 1) for i in range(num_seats))
        ),
        expert=lambda key, state: (jnp.zeros(3, jnp.int32), jax.vmap(grammar.args)(jnp.full(num_seats, 9)), None),
    )


def test_seats_that_act_at_once_are_asked_in_turn_and_do_not_see_each_other():
    environment = make_text_world(goods())
    words, step = environment.text.words, jax.jit(environment.step)
    assert environment.num_players == 3
    state, timestep = environment.reset(KEY, {"number": jnp.int32(7), "level": jnp.int32(0)})
    seen, rewards, players, prints = [], [], [], []
    for line in ("give 3", "give", "give 0", "give 9", "give 1", "give 1", "give 1"):
        seen.append(sentence(words, timestep.observation))
        players.append(int(timestep.player))
        prints.append(int(environment.text.fingerprint(state)))
        ids = [words.index(word) for word in line.split()]
        state, timestep = step(KEY, state, jnp.asarray([*ids, -1][:2], jnp.int32))
        rewards.append(np.asarray(timestep.reward).tolist())
    assert players == [0, 1, 1, 2, 0, 1, 2]
    assert seen[:5] == [
        "you are a gifts",
        "you are b gifts",
        "you are b gifts nothing happens .",
        "you are c gifts",
        "you are a gifts 3 0 9",
    ]
    zero = [0.0] * 3
    np.testing.assert_allclose(rewards, [zero, zero, zero, [5, 8, -1], zero, zero, [1, 1, 1]], atol=1e-6)
    assert bool(timestep.terminated) and bool(timestep.info["success"])
    assert prints[1] == prints[2] and len(set(prints)) == 6
    action, _ = environment.text.expert(KEY, environment.reset(KEY, {"number": jnp.int32(7), "level": jnp.int32(0)})[0])
    assert sentence(words, action) == "give 9"


def test_who_stalls_forfeits_against_all_others():
    environment = make_text_world(goods(), forfeit_payoff=(-4.0, 1.0))
    step = jax.jit(environment.step)
    state, timestep = environment.reset(KEY, {"number": jnp.int32(7), "level": jnp.int32(0)})
    state, _ = step(KEY, state, environment.text.expert(KEY, state)[0])
    for _ in range(11):
        assert not bool(timestep.terminated)
        state, timestep = step(KEY, state, jnp.asarray([-1, -1], jnp.int32))
    np.testing.assert_array_equal(timestep.reward, [1.0, -4.0, 1.0])
    assert bool(timestep.terminated) and not bool(timestep.truncated) and not bool(timestep.info["success"])


def test_tasks_are_completed_after_the_split():
    def complete(key, task, held_out):
        return {**task, "extra": jax.random.randint(key, (3,), 0, 9), "side": jnp.bool_(held_out)}

    world = library(complete=complete, identity=lambda task: task["code"])
    environment = make_text_world(world, held_out_fraction=0.5)
    keys = jax.random.split(KEY, 200)
    ours, theirs = (
        jax.jit(jax.vmap(s))(keys) for s in (environment.sample_task, environment.text.sample_held_out_task)
    )
    assert ours["extra"].shape == (200, 3)
    assert not ours["side"].any() and theirs["side"].all()
    assert not set(ours["code"].tolist()) & set(theirs["code"].tolist())


def test_an_expert_that_solves_nothing_is_not_imitated():
    collectors = ("collect.make_dialogue", "demonstrations.make_demonstration", "accompanied.make_accompanied")
    targets = [f"jaxagents.language.{name}_collector" for name in collectors]
    assert all(callable(hydra.utils.get_method(target)) for target in targets)
    able, lazy = make_text_world(library()), make_text_world(library(max_steps=1))
    stages = [({"collector": {"_target_": target}, "environment": {}}, lazy) for target in targets]
    require_experts([stages[0], (stages[1][0], able)])  # Nothing of the lazy one is imitated.
    for stage in stages[1:]:
        with pytest.raises(ValueError, match="`expert` of 'library' must solve .* 1 turns, got none of 8 at level 0"):
            require_experts([stage])


@pytest.mark.exhaustive
def test_a_world_is_checked_by_playing_it():
    assert require_playable(library(), num_tasks=16).name == "library"
    with pytest.raises(ValueError, match="`held_out_fraction` must leave level 0 of 'library' tasks on both sides"):
        require_playable(library(identity=lambda task: task["code"] >= 0), num_tasks=16)
    lazy = library(max_steps=1)
    with pytest.raises(ValueError, match="`expert` of 'library' must solve its tasks within 1 turns, got 0% of the tr"):
        require_playable(lazy, num_tasks=4)


@pytest.mark.parametrize(
    ("world", "options", "message"),
    [
        (library(), {"reward": "shaped"}, '`reward` must be "sparse" or "dense", got \'shaped\''),
        (library(), {"illegal": "ignore"}, '`illegal` must be "no_op" or "forfeit"'),
        (library(), {"held_out_fraction": 1.0}, "`held_out_fraction` must be above 0 and below 1"),
        (
            library(status=lambda state: Status(success=state["left"], over=state["left"])),
            {"reward": "dense"},
            '`reward` must be "sparse" where the rules tell no progress, got "dense" in \'library\'',
        ),
        (
            library(num_seats=2, player=lambda state: jnp.int32(0)),
            {},
            "`status` must give a payoff to each of 2 seats of 'library', got None",
        ),
        (
            library(allowed=lambda state: jnp.ones(2, bool)),
            {},
            "`allowed` of 'library' must return arrays of \\(3,\\), got \\(2,\\)",
        ),
        (
            library(play=lambda key, state, verb, args: {**state, "given": state["given"] * 1.0}),
            {},
            "`play` of 'library' must return arrays of .*'given'.*int32.*got .*float32",
        ),
        (
            library(expert=lambda key, state: (jnp.int32(0), jnp.zeros(3, jnp.int32), None)),
            {},
            "`expert` of 'library' must return arrays of \\[\\(\\), \\(1, 3\\)\\], got \\[\\(\\), \\(3,\\)\\]",
        ),
        (
            library(tell=lambda state, seat: text("search red")),
            {},
            "`words` must not run together, got 'search red' of the words",
        ),
    ],
)
def test_worlds_that_do_not_fit_together_are_refused(world, options, message):
    with pytest.raises(ValueError, match=message):
        make_text_world(world, **options)
