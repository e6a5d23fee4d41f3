"""Tests of jaxagents/play/interactive.py: people in the place of the policy and of the world."""

from dataclasses import replace
from functools import partial

import jax
import pytest

from jaxagents.environments.text import frozenlake, kuhn
from jaxagents.environments.text.words import sentence
from jaxagents.language.policy import make_language_policy
from jaxagents.language.tokenizers import word_level
from jaxagents.networks.transformer import Transformer
from jaxagents.play.interactive import act_as_agent, act_as_world, play_text
from jaxagents.play.person import Person
from jaxagents.policies.language_model import make_language_model
from jaxagents.training.load import LoadedPolicy

ENVIRONMENT = frozenlake.make_environment(sizes=(4,), hole_fractions=(0.2,))
NETWORK = partial(Transformer, num_layers=1, features=16, num_heads=2)


def typist(*lines):
    """Returns a person who types these lines, and what they hear."""
    left, heard = list(lines), []

    def ask(question, offers):
        del offers
        if not left:
            raise EOFError
        heard.append(f"{question}?")
        return left.pop(0)

    return Person(ask=ask, tell=lambda text: heard.append(str(text))), heard


@pytest.fixture(scope="module")
def actor():
    policy = make_language_policy(
        ENVIRONMENT,
        tokenizer=word_level,
        model=partial(make_language_model, network=NETWORK),
        num_turns=2,
        thought_tokens=1,
    )
    return policy, policy.init(jax.random.key(0))


def solve(seed):
    """Returns the actions of the expert on the first task of a seed."""
    task_key, reset_key, key = jax.random.split(jax.random.fold_in(jax.random.key(seed), 0), 3)
    state, timestep = ENVIRONMENT.reset(reset_key, ENVIRONMENT.text.sample_held_out_task(task_key))
    actions = []
    while not timestep.terminated:
        action, _ = ENVIRONMENT.text.expert(key, state)
        actions.append(sentence(ENVIRONMENT.text.words, action))
        state, timestep = ENVIRONMENT.step(key, state, action)
    return actions


@pytest.mark.exhaustive
def test_a_person_solves_a_held_out_lake():
    actions = solve(seed=0)
    person, heard = typist("fly", *actions)
    (trajectory,) = act_as_agent(ENVIRONMENT, person, seed=0, num_episodes=2)
    assert [turn.action for turn in trajectory.turns] == actions
    assert (trajectory.success, trajectory.episode_return) == (True, 1.0)
    assert trajectory.turns[-1].terminated and trajectory.turns[-1].reward == 1.0
    assert trajectory.prompt == "walk to G and keep off O ."
    assert [turn.turn for turn in trajectory.turns] == list(range(len(actions)))
    # The lake is drawn in four rows, with the admissible actions below.
    drawn = next(line for line in heard if "[left, down, right, up]" in line)
    assert [len(row.split()) for row in drawn.strip().splitlines()[:4]] == [4] * 4
    assert any("There is no action 'fly'" in line for line in heard)
    assert heard.count("success") == 1 and "reward +1" in heard
    assert heard[-1].endswith("[left, down, right, up]")  # The second episode began, and the lines ended.


def test_a_game_says_what_everyone_got():
    person, heard = typist("bet", "pass")
    (trajectory,) = act_as_agent(kuhn.make_environment(), person, seed=0)
    assert [(turn.agent, turn.action, turn.reward) for turn in trajectory.turns] == [(0, "bet", 0.0), (1, "pass", -1.0)]
    assert "reward player 0 +1, player 1 -1" in heard
    assert trajectory.agents == ("player 0", "player 1") and trajectory.episode_return is None


@pytest.mark.exhaustive
def test_an_episode_that_a_person_leaves_is_unfinished():
    person, _ = typist()
    assert act_as_agent(ENVIRONMENT, person, seed=0) == []
    actions = solve(seed=0)
    if len(actions) > 1:
        person, _ = typist(actions[0])
        (trajectory,) = act_as_agent(ENVIRONMENT, person, seed=0)
        assert trajectory.success is None and len(trajectory.turns) == 1


@pytest.mark.slow
def test_the_policy_answers_a_person(actor):
    policy, params = actor
    lake = "P _ _ _ / _ _ _ _ / _ _ _ _ / _ _ _ G"
    person, heard = typist("walk to G .", lake, "P _ ?", lake, "", "P _")
    first, second = act_as_world(ENVIRONMENT, policy, params, person, seed=0, num_episodes=3)
    # The layout has room for two turns.
    assert [turn.observation for turn in first.turns] == [lake, lake]
    assert first.prompt == "walk to G ." and first.success is None and first.episode_return is None
    assert any("got '?'" in line for line in heard)
    assert second.prompt == "" and [turn.observation for turn in second.turns] == ["P _"]


@pytest.mark.exhaustive
def test_what_the_policy_says_is_kept_with_its_probabilities(actor):
    policy, params = actor
    (trajectory,) = act_as_world(ENVIRONMENT, policy, params, typist("", "P _")[0], seed=0)
    (turn,) = trajectory.turns
    assert len(turn.tokens) == len(turn.sampled) == len(turn.behavior_log_prob)
    marks = policy.tokenizer.marks
    assert turn.tokens[0] == marks["observation"] and not turn.sampled[0]
    assert turn.thought is not None
    assert all((value < 0.0) == sampled for value, sampled in zip(turn.behavior_log_prob, turn.sampled))
    again = act_as_world(ENVIRONMENT, policy, params, typist("", "P _")[0], seed=0)
    assert again == [trajectory]


@pytest.mark.exhaustive
def test_roles_are_checked(actor):
    policy, params = actor
    loaded = LoadedPolicy(act=None, policy=policy, params=params, environment=ENVIRONMENT, config={})
    with pytest.raises(ValueError, match="`role` must be none, agent or environment, got 'judge'"):
        play_text(loaded, typist()[0], role="judge")
    with pytest.raises(ValueError, match="`role` must be none for a policy without language, got 'agent'"):
        play_text(loaded, typist()[0], role="agent")
    loaded = loaded._replace(play=lambda *args, **kwargs: None)
    assert play_text(loaded, typist()[0], role="agent") == []
    assert play_text(loaded, typist()[0], role="environment") == []


def test_nobody_types_in_a_world_of_free_text(actor):
    policy, params = actor
    world = replace(ENVIRONMENT, text=replace(ENVIRONMENT.text, words=()))
    loaded = LoadedPolicy(act=None, policy=policy, params=params, environment=world, config={})
    with pytest.raises(ValueError, match="`role` must be none in a world of free text, got 'agent'"):
        play_text(loaded._replace(play=lambda *args, **kwargs: None), typist()[0], role="agent")
