"""Tests of jaxagents/play/person.py."""

import io
import sys

import jax
import numpy as np
import pytest

from jaxagents.environments.text import countdown, frozenlake
from jaxagents.environments.text.words import read_words
from jaxagents.language.tokenizers import phrase_reader
from jaxagents.play.person import Person, admissible_actions, ask_action, ask_words, at_terminal, choose

OPTIONS = ("go to shelf 1", "go to shelf 2", "look", "Look up")
WORDS = ("go to", "shelf", "1", "P")
READ = phrase_reader(WORDS)


def typist(*lines):
    """Returns a person who types these lines, and what they hear."""
    left, heard = list(lines), []

    def ask(question, offers):
        del question, offers
        if not left:
            raise EOFError
        return left.pop(0)

    return Person(ask=ask, tell=heard.append), heard


@pytest.mark.parametrize(
    ("text", "chosen", "near"),
    [
        ("look", "look", []),
        ("  GO to  shelf 2\n", "go to shelf 2", []),
        ("LOOK UP", "Look up", []),
        ("go", None, ["go to shelf 1", "go to shelf 2"]),
        ("go to shelve 1", None, ["go to shelf 1", "go to shelf 2"]),
        ("loook", None, ["look", "Look up"]),
        ("", None, []),
        ("xyz", None, []),
    ],
)
def test_what_is_meant_is_found_or_the_nearest_offered(text, chosen, near):
    assert choose(text, OPTIONS) == (chosen, near)


def test_words_are_read_and_padded():
    np.testing.assert_array_equal(read_words(" go to   1 \n", WORDS, READ, 4), [0, 2, -1, -1])
    np.testing.assert_array_equal(read_words("", WORDS, READ, 2), [-1, -1])


def test_unknown_words_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match="got 'shlf' in 'go to shlf'. Try 'shelf'."):
        read_words("go to shlf", WORDS, READ, 4)
    with pytest.raises(ValueError, match="Try 'P'."):
        read_words("p", WORDS, READ, 4)
    with pytest.raises(ValueError, match="Try 'go to' or 'shelf' or '1'."):
        read_words("%%%", WORDS, READ, 4)
    with pytest.raises(ValueError, match="`text` must have at most 2 words, got 3."):
        read_words("1 1 1", WORDS, READ, 2)


def test_questions_are_repeated_until_there_is_an_answer():
    person, heard = typist("nope", "1 P")
    text, ids = ask_words(person, "observation", words=WORDS, read=READ, room=3)
    assert (text, ids.tolist()) == ("1 P", [2, 3, -1])
    assert len(heard) == 1 and "got 'nope'" in heard[0]
    environment = frozenlake.make_environment(sizes=(4,), hole_fractions=(0.2,))
    person, heard = typist("@", "lef", "up")
    action = ask_action(person, environment, ["down"])
    assert [environment.text.words[i] for i in action] == ["up"]
    assert heard == ["There is no action '@'; try down.", "There is no action 'lef'; try left."]
    with pytest.raises(EOFError):
        ask_action(person, environment, ["down"])


@pytest.mark.exhaustive
def test_admissible_actions_follow_the_mask():
    environment = frozenlake.make_environment(sizes=(4,), hole_fractions=(0.2,))
    key = jax.random.key(0)
    _, timestep = environment.reset(key, environment.sample_task(key))
    every = ["left", "down", "right", "up"]
    assert admissible_actions(environment, timestep.replace(action_mask=None)) == every
    mask = np.array([False, True, False, True])
    assert admissible_actions(environment, timestep.replace(action_mask=mask)) == ["down", "up"]


def test_actions_that_cannot_be_listed_are_typed_in_words():
    environment = countdown.make_environment()
    assert environment.text.actions is None
    person, heard = typist("nope", "1 2 + 3")
    action = ask_action(person, environment, ["1 + 2"])
    assert [environment.text.words[i] for i in action[:4]] == ["1", "2", "+", "3"] and (action[4:] == -1).all()
    assert "got 'nope'" in heard[0]
    _, timestep = jax.eval_shape(lambda key: environment.reset(key, environment.sample_task(key)), jax.random.key(0))
    offers = admissible_actions(environment, timestep)
    assert len(offers) == len(environment.text.examples) and all(offers)


def test_lines_of_a_pipe_are_repeated_until_they_end(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("up [x]\n"))
    person = at_terminal()
    assert person.ask("action", ()) == "up [x]\n"
    with pytest.raises(EOFError):
        person.ask("action", ())
    assert capsys.readouterr().out == "action> up [x]\n"
