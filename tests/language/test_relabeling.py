"""Episodes told again: in other words, in other tokens, and for the task that they happened to solve."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import guess_number, twentyq
from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.skins import make_rewording, with_skins
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.relabeling import make_relabeling, recorded_words
from jaxagents.language.tokenizers import byte_level

KEY = jax.random.key(3)
SKINS = ({}, {"higher": "more", "1": "2", "2": "1", "to": "until"})


@pytest.fixture(scope="module")
def numbers():
    rules = guess_number.make_environment((7,), max_steps=3).text.rules
    return make_text_world(with_skins(rules, skins=SKINS))


@pytest.fixture(scope="module")
def speaker(numbers, speak):
    return speak(numbers, thought_tokens=8)


@pytest.fixture(scope="module")
def recorded(numbers, speaker):
    """Sixteen noisy episodes."""
    return jax.jit(make_demonstrations(numbers, speaker, noise=0.6))(KEY, jnp.arange(16))


def sentences(policy, words):
    return [[policy.lexicon.text(row) for row in turns] for turns in np.asarray(words)]


def observations(policy, episode):
    """Words of what was seen, by episode and turn."""
    size = policy.layout.observation
    read = jax.vmap(jax.vmap(lambda tokens, mask: policy.lexicon.parse(tokens, mask, size)[0]))
    tokens, mask = episode.tokens[..., :size], episode.token_mask[..., :size]
    return sentences(policy, read(tokens, mask & ~jnp.isin(tokens, jnp.asarray(list(policy.tokenizer.marks.values())))))


@pytest.fixture(scope="module")
def retell(numbers, speaker):
    return jax.jit(make_relabeling(numbers, speaker))


def test_a_retelling_in_the_same_words_is_the_same_episode(retell, recorded):
    again = retell(KEY, recorded)
    for name in ("token_mask", "action_mask", "thought_mask", "reward", "success", "valid"):
        np.testing.assert_array_equal(getattr(again, name), getattr(recorded, name), err_msg=name)
    said = [np.where(one.token_mask, one.tokens, -1) for one in (again, recorded)]
    np.testing.assert_array_equal(*said)
    prints = [np.where(one.valid, one.fingerprint, 0) for one in (again, recorded)]
    np.testing.assert_array_equal(*prints)


def test_what_ran_out_of_room_is_no_action_in_a_retelling(retell, speaker, recorded):
    ends = recorded.action_mask & (recorded.tokens == speaker.tokenizer.marks["end"]) & ~recorded.thought_mask
    ends = ends.at[:, 1:].set(False)
    cut = recorded.replace(action_mask=recorded.action_mask & ~ends, token_mask=recorded.token_mask & ~ends)
    assert recorded.action_valid[:, 0].any() and not retell(KEY, cut).action_valid[:, 0].any()


def test_skins_are_exchanged_in_what_is_seen_thought_and_said(numbers, speaker, recorded):
    other = recorded.task | {"skin": 1 - recorded.task["skin"]}
    told = jax.jit(make_relabeling(numbers, speaker, translate=make_rewording(numbers.text.words, SKINS)))(
        KEY, recorded, other
    )
    np.testing.assert_array_equal(told.success, recorded.success)
    np.testing.assert_array_equal(told.action_valid, recorded.action_valid)
    assert 0 < int(recorded.success.sum()) < 16
    (before, thought_before), (after, thought_after) = recorded_words(speaker, recorded), recorded_words(speaker, told)
    exchange = {"1": "2", "2": "1", "higher": "more", "more": "higher", "to": "until", "until": "to"}

    def exchanged(rows):
        return [[" ".join(exchange.get(word, word) for word in one.split()) for one in turns] for turns in rows]

    assert sentences(speaker, after) == exchanged(sentences(speaker, before))
    assert sentences(speaker, thought_after) == exchanged(sentences(speaker, thought_before))
    assert observations(speaker, told) == exchanged(observations(speaker, recorded))
    assert any("until" in one for turns in sentences(speaker, thought_after) for one in turns)


@pytest.mark.exhaustive
def test_a_retelling_in_other_tokens_says_the_same(numbers, speaker, recorded, speak):
    bytes_of = speak(numbers, thought_tokens=24, tokenizer=byte_level)
    told = jax.jit(make_relabeling(numbers, bytes_of, source=speaker))(KEY, recorded)
    np.testing.assert_array_equal(told.reward, recorded.reward)
    pairs = zip(recorded_words(bytes_of, told), recorded_words(speaker, recorded))
    for ours, theirs in pairs:
        assert sentences(bytes_of, ours) == sentences(speaker, theirs)


def test_in_hindsight_the_last_guess_was_right(numbers, speaker, recorded):
    actions, _ = recorded_words(speaker, recorded)
    last = jnp.sum(recorded.valid, axis=1) - 1
    said = actions[jnp.arange(16), last, 0]
    reword = jax.vmap(make_rewording(numbers.text.words, SKINS))
    plain = reword(said[:, None], recorded.task, recorded.task | {"skin": jnp.zeros(16, jnp.int32)})[:, 0]
    guess = jnp.asarray([int(word) if word.isdigit() else 0 for word in numbers.text.words])[plain]
    task = recorded.task | {"inner": recorded.task["inner"] | {"secret": guess}}
    assert not bool(recorded.success.all())
    told = jax.jit(make_relabeling(numbers, speaker))(KEY, recorded, task)
    assert bool(told.success.all()) and bool((told.reward.sum(axis=1) == 1).all())
    assert bool((told.valid.sum(axis=1) <= recorded.valid.sum(axis=1)).all())


def test_words_that_the_new_world_does_not_have_are_invalid(speaker, recorded, speak):
    questions = twentyq.make_environment((4,))
    policy = speak(questions)
    task = jax.jit(jax.vmap(questions.sample_task))(jax.random.split(KEY, 16))
    told = jax.jit(make_relabeling(questions, policy, source=speaker))(KEY, recorded, task)
    assert not bool(told.action_valid.any()) and not bool(told.success.any())
    np.testing.assert_array_equal(told.valid[:, :3], recorded.valid)
