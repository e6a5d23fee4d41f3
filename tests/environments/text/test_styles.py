"""Styles of thoughts about arithmetic: texts by hand, chances, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import arithmetic, guess_number, styles
from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.words import sentence

PLAIN = {"num_digits": (2,), "num_terms": (3,), "operations": ("+", "-"), "story_fraction": 0.0}


def make(**options):
    wrap = functools.partial(styles.with_styles, **options)
    return arithmetic.make_environment(**PLAIN, wrappers={"styles": wrap})


def task():
    return {
        "numbers": jnp.asarray([12, 34, 5], jnp.int32),
        "operations": jnp.asarray([0, 1], jnp.int32),
        "story": jnp.bool_(False),
        "people": jnp.asarray([0, 1], jnp.int32),
        "object": jnp.int32(0),
        "level": jnp.int32(0),
    }


THOUGHTS = {
    "notes": "1 2 , 4 6 , 4 1 ,",
    "program": "let x = 1 2 ; x + 3 4 = 4 6 ; x - 5 = 4 1 ;",
    "prose": "first 1 2 then plus 3 4 makes 4 6 then minus 5 makes 4 1",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("style", styles.STYLES)
def test_thoughts_by_hand(style):
    environment = make(styles=[style])
    state, _ = environment.reset(jax.random.key(0), task())
    action, thought = environment.text.expert(jax.random.key(1), state)
    words = environment.text.words
    assert sentence(words, thought) == THOUGHTS[style] and sentence(words, action) == "4 1"
    assert styles.STYLES[int(styles.style_of(thought, words))] == style


@pytest.mark.exhaustive
def test_styles_are_drawn_alike_and_steps_are_said_twice():
    environment = make(styles=["notes", "prose"], verbosity=1.0)
    state, _ = environment.reset(jax.random.key(0), task())
    expert = jax.jit(jax.vmap(lambda key: environment.text.expert(key, state)[1]))
    thoughts = expert(jax.random.split(jax.random.key(0), 1024))
    drawn = np.bincount(np.asarray(styles.style_of(thoughts, environment.text.words)), minlength=3) / 1024
    np.testing.assert_allclose(drawn, [0.5, 0, 0.5], atol=0.06)  # Four standard errors.
    texts = {sentence(environment.text.words, row) for row in np.unique(np.asarray(thoughts), axis=0)}
    assert texts == {
        "1 2 , 1 2 , 4 6 , 4 6 , 4 1 , 4 1 ,",
        "first 1 2 first 1 2 then plus 3 4 makes 4 6 then plus 3 4 makes 4 6 "
        "then minus 5 makes 4 1 then minus 5 makes 4 1",
    }


@pytest.mark.parametrize("options, name", [({"styles": ["rhyme"]}, "styles"), ({"verbosity": 2}, "verbosity")])
def test_wrong_options_are_refused(options, name):
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        make(**options)


def test_other_worlds_are_refused():
    rules = guess_number.make_environment((7,), max_steps=3).text.rules
    with pytest.raises(ValueError, match="`world` must be of arithmetic, got 'guess_number'"):
        make_text_world(styles.with_styles(rules))
