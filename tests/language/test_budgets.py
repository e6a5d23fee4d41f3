"""Room for what a world can say, in the tokens of any tokenizer: all of it, and no more."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import arithmetic, bandit, household, kuhn
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.tokenizers import byte_level, train_sentencepiece, word_level

KEY = jax.random.key(4)


def bpe(words):
    return train_sentencepiece(words, vocab_size=90, model_type="bpe", whole_words=False)


def longest(tokenizer, texts):
    return max(len(tokenizer.encode(text)) for text in texts)


@pytest.mark.parametrize("kind", [word_level, byte_level, bpe])
def test_a_lake_of_sixteen_cells(lake, speak, kind):
    policy = speak(lake, tokenizer=kind)
    cells = " / ".join([" ".join("____")] * 4)
    lines = longest(policy.tokenizer, [f"{cells} nothing happens ."])
    # 16 cells, 3 ends of rows and 2 words of an answer; as bytes 55 with the spaces. Two marks more.
    assert policy.layout.observation == lines + 2 == {word_level: 23, byte_level: 57}.get(kind, lines + 2)
    assert policy.layout.action == longest(policy.tokenizer, ["left", "down", "right", "up"]) + 1
    assert policy.layout.prompt == longest(policy.tokenizer, ["walk to G and keep off O ."])


@pytest.mark.parametrize("kind", [word_level, byte_level, bpe])
def test_names_and_numbers(speak, kind):
    policy = speak(bandit.make_environment((2, 3), (0.1, 0.1)), tokenizer=kind)
    names = bandit.NAMES
    of_name = {name: longest(policy.tokenizer, [f"arms {name}"]) for name in names}
    name = max(of_name, key=of_name.get)
    outcomes = [f"{name} pays {points} ." for points in (*range(10), "1 0")] + ["nothing happens ."]
    lines = [f"arms {name} {name} {name} . {outcome}" for outcome in outcomes]
    assert policy.layout.observation == longest(policy.tokenizer, lines) + 2
    assert policy.layout.action == longest(policy.tokenizer, names) + 1


def test_poker_in_bytes(speak):
    policy = speak(kuhn.make_environment(), tokenizer=byte_level)
    lines = "you are player 0 , your card is queen , moves pass pass pass . nothing happens ."
    assert policy.layout.observation == len(lines) + 2
    assert policy.layout.prompt == len("petra plays kuhn poker against petra .")


@pytest.mark.slow
def test_everything_that_is_said_has_room(speak):
    world = household.make_environment(1)
    policy = speak(world, tokenizer=byte_level)
    assert policy.layout.observation < 2 + 0.6 * world.observation_space.shape[0] * max(map(len, world.text.words))
    episode = jax.jit(make_demonstrations(world, policy, noise=0.5))(KEY, jnp.arange(8))
    assert not np.asarray(episode.token_mask)[:, :, policy.layout.observation - 2].all()
    again = jax.jit(jax.vmap(lambda task: world.reset(KEY, task)[1].observation))(episode.task)
    first = (np.asarray(leaf)[:, 0, : policy.layout.observation] for leaf in (episode.tokens, episode.token_mask))
    for row, mask, words in zip(*first, again):
        assert policy.tokenizer.decode(row[mask].tolist()) == policy.lexicon.text(words)


@pytest.mark.parametrize(("operations", "thought"), [("+", "9 9 , 1 9 8 ,"), ("*", "8 1 0 , 8 9 1 ,")])
@pytest.mark.parametrize("kind", [word_level, byte_level])
def test_thoughts_that_do_not_fit_are_refused(speak, kind, operations, thought):
    world = arithmetic.make_environment((2,), (2,), operations=operations)
    # As if the first result had as many digits as the last one: 1 9 8 , 1 9 8 ,
    needed = longest(kind(world.text.words), ["1 9 8 , 1 9 8 ,"]) + 1
    enough = speak(world, tokenizer=kind, thought_tokens=needed)
    make_demonstrations(world, enough)
    with pytest.raises(ValueError, match=f"`policy.thought_tokens` must hold the longest thought .*, {needed} tokens"):
        make_demonstrations(world, speak(world, tokenizer=kind, thought_tokens=needed - 1))


def coins():
    """A world whose expert tosses a coin, thinks twice what came up, and says it."""
    world = arithmetic.make_environment((1,), (2,))
    zero, one = (world.text.words.index(word) for word in "01")

    def expert(key, state):
        side = jnp.where(jax.random.bernoulli(key), one, zero).astype(jnp.int32)
        return jnp.stack([side, jnp.int32(-1)]), jnp.stack([side, side])

    return replace(world, text=replace(world.text, expert=expert))


@pytest.mark.exhaustive
def test_an_expert_does_what_it_thinks(speak):
    world = coins()
    policy = speak(world, thought_tokens=16)
    episode = jax.jit(make_demonstrations(world, policy))(KEY, jnp.arange(32))
    layout, tokens = policy.layout, np.asarray(episode.tokens)[:, 0]
    thought, action = tokens[:, layout.observation], tokens[:, layout.observation + layout.thought + 1]
    np.testing.assert_array_equal(thought, action)
    assert len(set(action.tolist())) == 2
