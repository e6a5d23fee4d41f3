"""Prompts of one's own, and what is paid for answers."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text.prompts import make_environment, read_rows

ROWS = [{"prompt": "two plus two", "answer": "four"}, {"prompt": "say more", "kind": "open"}]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n\n" for row in ROWS))
    return make_environment(path, words=["please"], most_words=2)


@pytest.fixture(scope="module")
def ask(world):
    """`(row, words of the answer) -> (observation in words, reward, success, ended)`."""

    @jax.jit
    def play(row, action):
        task = {"row": row, "level": jnp.int32(0)}
        state, first = world.reset(jax.random.key(0), task)
        _, last = world.step(jax.random.key(1), state, action)
        return first.observation, last.reward, last.info["success"], last.terminated

    def asked(row, *answer):
        ids = np.full(2, -1, np.int32)
        ids[: len(answer)] = [world.text.words.index(word) for word in answer]
        seen, *rest = play(jnp.int32(row), ids)
        return " ".join(world.text.words[index] for index in seen if index >= 0), *(float(value) for value in rest)

    return asked


def test_the_answer_of_a_row_is_paid(ask):
    assert ask(0, "four") == ("two plus two", 1.0, 1.0, 1.0)
    assert ask(0, "please") == ("two plus two", 0.0, 0.0, 1.0)
    assert ask(0, "four", "four") == ("two plus two", 0.0, 0.0, 1.0)


def test_numbers_are_texts(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "two plus two", "answer": 4}\n{"prompt": 12.5}\n')
    assert read_rows(file) == [(("two", "plus", "two"), ("4",)), (("12.5",), None)]


def test_without_an_answer_whatever_is_said_succeeds(ask):
    assert ask(1, "two", "please") == ("say more", 1.0, 1.0, 1.0)
    # Nothing was said: over by the rules, so that nothing is bootstrapped.
    assert ask(1) == ("say more", 0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "at least one row, got the empty file"),
        ('{"prompt": "a"}\n{"prompt": true}\n', "`prompt` must be a text in every row, got .*rows.jsonl, line 2"),
        ('{"prompt": "a", "answer": " "}', "`answer` must be a text, or be left out, got ' ' in .*line 1"),
        ('{"prompt": "a"', "must hold JSON, got .*rows.jsonl, line 1"),
        ('{"prompt": "a b"}\n{"prompt": "a  b"}', "in one row only, got 'a b' in 2"),
        ('{"prompt": "a", "answer": "b c d"}', "`most_words` must be at least those of an answer, got 2 for 3"),
    ],
)
def test_damaged_rows_are_named(tmp_path, lines, message):
    path = tmp_path / "rows.jsonl"
    path.write_text(lines)
    with pytest.raises(ValueError, match=message):
        make_environment(path, most_words=2)


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(ValueError, match="got neither; try environment.path"):
        make_environment()
    with pytest.raises(ValueError, match="must be a file of rows, got none.jsonl: there is none at"):
        make_environment("none.jsonl")
    with pytest.raises(ValueError, match="`words` must be texts, got True"):
        make_environment(rows=ROWS, words=[True])
