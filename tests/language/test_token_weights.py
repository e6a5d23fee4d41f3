"""Weights of the tokens of calls: which are names, which decide between names, and what they weigh, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import tools
from jaxagents.language.token_weights import (
    ARGUMENT,
    FORMAT,
    NAME,
    ActionTokens,
    capabilities,
    key_tokens,
    make_reader,
    make_weighted_collector,
)
from jaxagents.language.tokenizers import byte_level, word_level


@pytest.fixture(scope="module")
def world():
    return tools.make_environment((1, 2), num_apps=2, max_steps=3)


def tokens(mask, key):
    """One turn."""
    kind = jnp.full(jnp.shape(mask), ARGUMENT)
    return ActionTokens(mask=jnp.array([[mask]], bool), kind=kind[None, None], key=jnp.array([[key]], bool))


@pytest.mark.parametrize(
    "mask, key, options, expected",
    [
        # Of Junjie-Ye/TL-Training@77c875a utils.py:67-70: one key and four others weigh 4 and 1, 8 in all.
        ([1, 1, 1, 1, 1, 0], [0, 1, 0, 0, 0, 0], {}, np.array([1, 4, 1, 1, 1, 0]) * 5 / 8),
        ([1, 1, 1, 1, 1, 0], [0, 1, 0, 0, 0, 1], {"max_weight": 2.0}, np.array([1, 2, 1, 1, 1, 0]) * 5 / 6),
        ([1, 1, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0], {}, np.array([1.5, 1.5, 1, 1, 1, 0]) * 5 / 6),
        ([1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0], {}, [1, 1, 1, 0, 0, 0]),  # Not fewer than the others.
        ([1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0], {}, [1, 1, 0, 0, 0, 0]),
        ([0] * 6, [0] * 6, {}, [0] * 6),  # No turn.
    ],
)
def test_key_tokens_weigh_as_much_as_the_others_together(mask, key, options, expected):
    actual = jax.jit(lambda given: key_tokens(given, **options))(tokens(mask, key))
    np.testing.assert_allclose(actual[0, 0], expected, rtol=1e-6)


def test_capabilities_have_weights_of_their_own():
    kind = jnp.array([[[FORMAT, NAME, ARGUMENT, ARGUMENT, FORMAT, FORMAT]]])
    given = ActionTokens(mask=jnp.array([[[1, 1, 1, 1, 1, 0]]], bool), kind=kind, key=kind == NAME)
    np.testing.assert_allclose(capabilities(given)[0, 0], [0.25, 0.5, 1, 1, 0.25, 0])
    np.testing.assert_allclose(capabilities(given, form=1.0, name=1.0), given.mask)


def spoken(policy, environment, *texts):
    """Rows of tokens of actions, `[1, T, A]`, in an episode that has nothing else."""
    width, layout = policy.layout.action, policy.layout
    rows, masks = [], []
    for text in texts:
        row, mask = policy.lexicon.render(jnp.asarray(policy.lexicon.encode_words(text)), width)
        size = int(mask.sum())
        rows.append(row.at[size].set(policy.tokenizer.ends[0]))
        masks.append(jnp.arange(width) <= size)
    before = layout.turn - width
    pad = lambda leaf: jnp.pad(jnp.stack(leaf)[None], ((0, 0), (0, 0), (before, 0)))  # noqa: E731
    return pad(rows), pad(masks)


def read(world, speak, make_episode, tokenizer, *texts):
    policy = speak(world, tokenizer=tokenizer)
    row, mask = spoken(policy, world, *texts)
    episode = make_episode([[0.0] * len(texts)], [[1] * len(texts)]).replace(tokens=row, action_mask=mask)
    return jax.tree.map(np.asarray, jax.jit(make_reader(world, policy))(episode))


def test_names_are_found_behind_what_all_calls_share(world, speak, make_episode):
    found = read(world, speak, make_episode, word_level, "call open order elm", "ask day", "confirm")
    for turn, kinds, keys in (
        (0, [FORMAT, NAME, ARGUMENT, ARGUMENT, FORMAT], [1]),
        (1, [FORMAT, NAME, FORMAT], [1]),
        (2, [NAME, FORMAT], [0]),
    ):
        mask = found.mask[0, turn]
        assert found.kind[0, turn][mask].tolist() == kinds
        assert np.flatnonzero(found.key[0, turn]).tolist() == keys


def test_tokens_that_tell_names_apart_are_key_tokens(world, speak, make_episode):
    found = read(world, speak, make_episode, byte_level, "call push order elm", "call find order elm")
    # All names begin with a blank; "push" departs from "post" after "p", "find" from "fetch" after "f".
    for turn in range(2):
        assert np.flatnonzero(found.key[0, turn]).tolist() == [4, 5, 6]
        assert (found.kind[0, turn][:10] == [FORMAT] * 4 + [NAME] * 5 + [ARGUMENT]).all()


@pytest.mark.slow
def test_weights_are_those_of_what_is_learned(world, speak):
    policy = speak(world)
    options = {"num_episodes": 8, "noise": 0.5, "reflects": False}
    collect = {}
    for name, weigh in (("plain", lambda given: given.mask * 1.0), ("key", key_tokens)):
        collector = make_weighted_collector(world, policy, weigh=weigh, **options)
        state = collector.init(jax.random.key(0), None)
        collect[name] = jax.jit(collector.collect)(state, None, jax.random.key(1))[1]
    plain, key = collect["plain"], collect["key"]
    np.testing.assert_array_equal(plain.tokens, key.tokens)
    learned = np.asarray(plain.loss_weight * plain.action_mask)
    weighted = np.asarray(key.loss_weight * key.action_mask)
    assert set(np.unique(learned)) == {0.0, 1.0}  # Mistakes are not learned.
    np.testing.assert_allclose(weighted.sum(2), learned.sum(2), rtol=1e-5)  # Calls weigh what they weighed.
    assert (weighted.max(2)[learned.sum(2) >= 5] > 1.5).all()


def test_worlds_without_rules_are_refused(world, speak):
    from dataclasses import replace

    bare = replace(world, text=replace(world.text, rules=None))
    with pytest.raises(ValueError, match="`environment` must be a text world that is made of rules, got 'tools'"):
        make_reader(bare, speak(world))
