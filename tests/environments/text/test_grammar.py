"""Grammars: what is read and written, what is listed, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text.grammar import allow, make_grammar
from jaxagents.environments.text.words import sentence

KEY = jax.random.key(0)
PLACES = ("desk", ("fridge", "1"), ("fridge", "2"))


@functools.cache
def mixed():
    """Listed and free fields, phrases of several words, numbers in the middle."""
    return make_grammar(
        "look", "go to {place}", "search {term:1-3}", "put {int:3} in {place} with {term:2}", place=PLACES, term="abc"
    )


@functools.cache
def functions():
    return jax.jit(mixed().parse), jax.jit(mixed().render)


def action(*phrases):
    grammar = mixed()
    ids = [grammar.words.index(phrase) for phrase in phrases]
    return jnp.asarray([*ids, *[-1] * (grammar.max_words - len(ids))], jnp.int32)


READ = [
    (("look",), 0, [[-1, -1, -1]] * 3),
    (("go to", "fridge", "2"), 1, [[2, -1, -1], [-1] * 3, [-1] * 3]),
    (("search", "b"), 2, [[1, -1, -1], [-1] * 3, [-1] * 3]),
    (("search", "c", "a", "c"), 2, [[2, 0, 2], [-1] * 3, [-1] * 3]),
    (("put", "1", "0", "in", "desk", "with", "a", "b"), 3, [[10, -1, -1], [0, -1, -1], [0, 1, -1]]),
    (("put", "0", "in", "fridge", "1", "with", "c", "c"), 3, [[0, -1, -1], [1, -1, -1], [2, 2, -1]]),
]


@pytest.mark.parametrize(("phrases", "verb", "args"), READ)
def test_actions_are_read_and_written(phrases, verb, args):
    parse, render = functions()
    action_words = action(*phrases)
    got = parse(action_words)
    assert (int(got[0]), bool(got[3])) == (verb, True)
    np.testing.assert_array_equal(got[1], args)
    np.testing.assert_array_equal(render(got[0], got[1]), action_words)
    assert mixed().entry_verb[int(got[2])] == verb


@pytest.mark.parametrize(
    "phrases",
    [
        (),
        ("go to",),
        ("go to", "fridge"),
        ("go to", "desk", "1"),
        ("look", "look"),
        ("search",),
        ("search", "a", "b", "c", "a"),
        ("search", "desk"),
        ("put", "0", "1", "in", "desk", "with", "a", "b"),
        ("put", "1", "2", "3", "1", "in", "desk", "with", "a", "b"),
        ("put", "1", "in", "desk", "with", "a"),
        ("put", "1", "in", "with", "a", "b"),
    ],
)
def test_what_is_no_action(phrases):
    verb, args, entry, known = functions()[0](action(*phrases))
    assert not bool(known) and (int(verb), int(entry)) == (0, 0)
    assert (np.asarray(args) == -1).all()


def test_a_gap_or_a_number_out_of_range_is_no_action():
    for row in ([0, -1, 0], [-1, 0], [99], [-7]):
        padded = jnp.asarray([*row, *[-1] * (mixed().max_words - len(row))], jnp.int32)
        assert not bool(functions()[0](padded)[3])


@pytest.mark.exhaustive
def test_entries_are_listed_actions_and_free_templates():
    grammar = mixed()
    np.testing.assert_array_equal(grammar.entry_verb, [0, 1, 1, 1, 2, 3])
    np.testing.assert_array_equal(grammar.entry_args[:, 0, 0], [-1, 0, 1, 2, -1, -1])
    assert (grammar.max_words, grammar.max_args, grammar.max_length) == (10, 3, 3)
    # 3 places * 1,000 numbers * 9 pairs of terms are too many.
    assert grammar.actions is None
    parsed = jax.jit(jax.vmap(grammar.parse))(jnp.asarray(grammar.examples))
    assert bool(parsed[3].all())
    assert {i for row in grammar.examples.tolist() for i in row if i >= 0} == set(range(len(grammar.words)))


@pytest.mark.exhaustive
def test_few_actions_are_all_listed_in_order():
    grammar = make_grammar("wait", "say {word:1-2}", "{int:1}", word="xy")
    texts = [sentence(grammar.words, row) for row in grammar.actions]
    assert texts[:7] == ["wait", "say x", "say y", "say x x", "say x y", "say y x", "say y y"]
    assert texts[7:] == list("0123456789")
    np.testing.assert_array_equal(grammar.action_entry, [0] + [1] * 6 + [2] * 10)
    rendered = jax.jit(jax.vmap(lambda row: grammar.render(*grammar.parse(row)[:2])))(jnp.asarray(grammar.actions))
    np.testing.assert_array_equal(rendered, grammar.actions)


def test_words_can_be_put_first():
    assert make_grammar("go to {place}", words=("b", "a"), place=("a", "c")).words == ("b", "a", "go to", "c")


@pytest.mark.exhaustive
def test_what_is_free_is_drawn():
    grammar = mixed()
    draw = jax.jit(jax.vmap(grammar.draw, in_axes=(0, None)))
    verb, args = draw(jax.random.split(KEY, 200), 5)
    assert (np.asarray(verb) == 3).all()
    numbers, places, terms = np.asarray(args[:, 0, 0]), np.asarray(args[:, 1, 0]), np.asarray(args[:, 2])
    assert numbers.min() >= 0 and 900 < numbers.max() < 1000 and set(places.tolist()) == {0, 1, 2}
    assert set(terms[:, :2].ravel().tolist()) == {0, 1, 2} and (terms[:, 2] == -1).all()
    _, args = draw(jax.random.split(KEY, 200), 4)
    assert set((np.asarray(args[:, 0]) >= 0).sum(axis=1).tolist()) == {1, 2, 3}
    known = jax.jit(jax.vmap(lambda verb, args: grammar.parse(grammar.render(verb, args))[3]))
    assert bool(known(jnp.full(200, 2), args).all())


def test_args_are_padded():
    np.testing.assert_array_equal(mixed().args(4, jnp.asarray([1, 2])), [[4, -1, -1], [1, 2, -1], [-1, -1, -1]])
    with pytest.raises(ValueError, match="`values` must be at most 3, one per field, got 4"):
        mixed().args(1, 2, 3, 4)


def test_what_is_allowed_is_told_template_by_template():
    places = jnp.asarray([True, False, True])
    np.testing.assert_array_equal(allow(mixed(), True, places, False, jnp.bool_(True)), [1, 1, 0, 1, 0, 1])
    np.testing.assert_array_equal(allow(mixed(), False, jnp.bool_(True), True, False), [0, 1, 1, 1, 1, 0])
    with pytest.raises(ValueError, match=r"`masks` must be one for each of \('look', .*\), got 3"):
        allow(mixed(), True, places, False)


@pytest.mark.parametrize(
    ("templates", "fields", "message"),
    [
        ((), {}, "`templates` must be at least one"),
        (("",), {}, "`templates` must say something"),
        (("go {place",), {"place": ["a"]}, "`templates` must have fields such as"),
        (("go {plcae}",), {"place": ["a"]}, "must have the phrases of {plcae}, got \\['place'\\]; try place="),
        (("go {place}",), {"place": []}, "`fields` must have at least one phrase each, got place=\\[\\]"),
        (("go {place}",), {"place": ["a", "a"]}, "must have different phrases, got 'a' twice in 'place'"),
        (("go",), {"place": ["a"]}, "`fields` must stand in a template, got 'place'"),
        (("say {w:0-2}",), {"w": ["a"]}, "`templates` must have fields of at least one phrase"),
        (("say {w:1-2}",), {"w": [("a", "b")]}, "must have phrases of one word for {w:1-2}, got 'a b'"),
        (("answer {int}",), {}, "`templates` must have numbers of 1 to 9 digits"),
        (("answer {int:10}",), {}, "`templates` must have numbers of 1 to 9 digits"),
        (("{a}", "{b}"), {"a": ["x", "y"], "b": ["y"]}, "got 'y', which is '{a}' and '{b}'"),
        (("go {a}", "go {b:1-2}"), {"a": [("x", "y")], "b": ["x", "y"]}, "got 'go x y', which is 'go {a}' and"),
        (("say {w:1-2} {w}",), {"w": ["a"]}, "'a' may be more of {w:1-2} or {w}"),
        (("say {int:2} {int:2}",), {}, "'0' may be more of {int:2} or {int:2}"),
        (("go {a} {b}",), {"a": ["x", ("x", "y")], "b": ["y"]}, "'y' may be more of {a} or {b}"),
        (
            ("go {a}", "go to"),
            {"a": ["to"]},
            "got 'go to' of the words \\['go', 'to'\\], which would be read as 'go to'",
        ),
        (("{a} {a}",), {"a": ["new", "new york", "york"]}, "which would be read as 'new york'"),
    ],
)
def test_refused(templates, fields, message):
    with pytest.raises(ValueError, match=message):
        make_grammar(*templates, **fields)
