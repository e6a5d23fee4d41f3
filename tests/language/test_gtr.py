"""An expert's thoughts in the states that a policy went through."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import guess_number
from jaxagents.language import gtr
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.gtr import make_corrected_collector, make_correction
from jaxagents.language.relabeling import recorded_words
from jaxagents.types import Collector

KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def numbers():
    return guess_number.make_environment((7,), max_steps=3)


@pytest.fixture(scope="module")
def policy(numbers, speak):
    return speak(numbers, thought_tokens=8)


def output(episode):
    return np.where(episode.token_mask, episode.tokens, -1)


def test_wrong_thoughts_are_replaced_and_actions_stay(numbers, policy):
    """Half of the guesses of the transcripts are drawn at random; all thoughts are the expert's, what is left."""
    recorded = jax.jit(make_demonstrations(numbers, policy, noise=0.5))(KEY, jnp.arange(16))
    word = policy.tokenizer.encode("3")[0]
    wrong = recorded.replace(tokens=jnp.where(recorded.thought_mask, word, recorded.tokens))
    assert (output(wrong) != output(recorded)).any(axis=(1, 2)).all()
    corrected = jax.jit(make_correction(numbers, policy))(KEY, wrong)
    np.testing.assert_array_equal(output(corrected), output(recorded))
    for name in ("action_mask", "thought_mask", "reward", "success", "valid", "action_valid", "group"):
        np.testing.assert_array_equal(getattr(corrected, name), getattr(recorded, name), err_msg=name)
    lost = ~np.asarray(recorded.success)
    assert lost.any() and not lost.all()


@pytest.mark.exhaustive
def test_the_first_episode_of_a_group_is_corrected(numbers, policy):
    collector = make_corrected_collector(numbers, policy, num_groups=3, group_size=2)
    params = policy.init(jax.random.key(0))
    _, batch, metrics = jax.jit(collector.collect)(collector.init(KEY, params), params, KEY)
    own, shown = batch.own, batch.demonstration
    assert own.success.shape == (6,) and shown.success.shape == (3,) and collector.steps_per_collect == 6
    assert float(metrics["episodes"].total) == 6
    for name in ("valid", "action_valid", "reward", "success", "group"):
        np.testing.assert_array_equal(getattr(shown, name), getattr(own, name)[::2], err_msg=name)
    thought = [
        policy.lexicon.text(row) for row in np.asarray(jax.jit(lambda e: recorded_words(policy, e)[1])(shown))[:, 0]
    ]
    assert thought == ["1 to 7"] * 3


def test_corrections_share_no_key_with_what_was_played(monkeypatch):
    """The collector inside splits its key, too."""
    inner = Collector(init=None, collect=lambda state, params, key: (state, key[None], {}), steps_per_collect=1)
    monkeypatch.setattr(gtr, "make_dialogue_collector", lambda *arguments, **options: inner)
    monkeypatch.setattr(gtr, "make_correction", lambda *arguments: lambda key, first: key)
    _, batch, _ = make_corrected_collector(None, None, group_size=1).collect((), (), KEY)
    of_play = jax.random.key_data(jnp.concatenate([batch.own, jax.random.split(batch.own[0], 4)])).tolist()
    assert jax.random.key_data(batch.demonstration).tolist() not in of_play


def test_there_must_be_room_for_thoughts_and_one_seat(numbers, speak):
    with pytest.raises(ValueError, match="`policy.thought_tokens` must be positive"):
        make_correction(numbers, speak(numbers))
