"""Probabilities of strings after every turn, against a model that reads the same tokens without padding."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text.code_calls import make_environment
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.scores import (
    information_gain,
    last_words_of_expert,
    make_scored_collector,
    string_log_probs,
)

KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def calls():
    return make_environment((2,), spare_calls=0)


def by_hand(policy, params, episode, words, prefix_tokens):
    """Reads what stands before every action, then the string; everything token by token, row by row."""
    layout, expected = policy.layout, np.zeros(episode.reward.shape)
    masks, tokens = np.asarray(episode.token_mask), np.asarray(episode.tokens)

    @jax.jit
    def scores(row, length):
        line = jnp.arange(row.shape[0])
        see = (line[None, :] <= line[:, None]) & (line[None, :] < length)
        hidden = policy.model.apply(params, row[None], positions=line[None], mask=see[None])
        log_probs = jax.nn.log_softmax(policy.model.logits(params, hidden))[0]
        return jnp.take_along_axis(log_probs[:-1], row[1:, None], axis=1)[:, 0]

    for row, turn in np.argwhere(np.asarray(episode.valid)):
        before = [t for past in range(turn) for t in tokens[row, past][masks[row, past]]]
        before += list(tokens[row, turn, : layout.observation][masks[row, turn, : layout.observation]])
        output = policy.tokenizer.encode(policy.lexicon.text(words[row]))
        line = np.zeros(layout.length + 8, np.int32)
        line[: len(before) + len(output)] = before + output
        found = np.asarray(scores(jnp.asarray(line), len(before) + len(output)))
        first = len(before) - 1
        expected[row, turn] = found[first + prefix_tokens : first + len(output)].mean()
    return expected


@pytest.mark.parametrize(
    "prefix_tokens, context_turns", [pytest.param(*case, marks=pytest.mark.slow) for case in ((1, None), (0, 1))]
)
def test_strings_are_scored_after_what_is_seen_in_every_turn(calls, speak, params_of, prefix_tokens, context_turns):
    policy = speak(calls, prompt=False, context_turns=context_turns)
    episode = jax.jit(make_demonstrations(calls, policy, noise=0.5))(KEY, jnp.arange(5))
    params = params_of(policy)
    words = jax.vmap(partial(last_words_of_expert, calls, KEY))(episode.task)
    assert policy.lexicon.text(words[0]).startswith("answer")
    score = jax.jit(partial(string_log_probs, policy, prefix_tokens=prefix_tokens))
    found = np.asarray(score(params, episode, words))
    assert (found[~np.asarray(episode.valid)] == 0.0).all() and (found[np.asarray(episode.valid)] < 0.0).all()
    if context_turns is None:
        np.testing.assert_allclose(found, by_hand(policy, params, episode, words, prefix_tokens), atol=1e-4)
        return
    # One turn is seen: every one of them alone is an episode.
    alone = jax.tree.map(lambda leaf: leaf[:, 1:], (episode.tokens, episode.token_mask, episode.position))
    valid = episode.valid[:, 1:]
    names = ("tokens", "token_mask", "position")
    later = episode.replace(**dict(zip(names, alone, strict=True)), valid=valid, agent=episode.agent[:, 1:])
    assert policy.layout.num_turns == 3
    shorter = policy._replace(layout=policy.layout._replace(num_turns=2))
    later = later.replace(layout=shorter.layout, prompt_tokens=later.prompt_tokens, prompt_mask=later.prompt_mask)
    rescore = jax.jit(partial(string_log_probs, shorter))
    np.testing.assert_allclose(found[:, 1:], rescore(params, later, words), atol=1e-5)


def test_the_expert_ends_with_the_answer(calls):
    task = calls.sample_task(KEY)
    text = " ".join(calls.text.words[i] for i in np.asarray(last_words_of_expert(calls, KEY, task)) if i >= 0)
    assert text == " ".join(["answer", *str(int(task["outputs"][0]))])


def test_gains_by_hand():
    log_prob = jnp.log(jnp.array([[0.2, 0.5, 0.4], [0.1, 0.3, 0.9]]))
    valid = jnp.array([[True, True, True], [True, True, False]])
    np.testing.assert_allclose(information_gain(log_prob, valid), [[0.3, -0.1, 0], [0.2, 0, 0]], atol=1e-6)


@pytest.mark.exhaustive
def test_collected_episodes_have_their_gains_and_parts(calls, speak, params_of):
    policy = speak(calls, prompt=False)
    collector = make_scored_collector(calls, policy, num_groups=2, group_size=2, parts=["errors", "prefix"])
    params = params_of(policy)
    _, episode, metrics = jax.jit(collector.collect)(collector.init(KEY, params), params, KEY)
    gain, valid = np.asarray(episode.extras["information_gain"]), np.asarray(episode.valid)
    np.testing.assert_allclose(gain, information_gain(episode.extras["answer_log_prob"], episode.valid))
    assert (gain[:, 0][valid[:, 1]] != 0.0).all()
    np.testing.assert_allclose(metrics["information_gain"].value, gain.sum() / valid[:, 1:].sum(), rtol=1e-5)
    # An understood call fails, or is one more of the program, or is none of it.
    prefix, errors = (np.asarray(episode.extras[name]) for name in ("prefix", "errors"))
    assert set(np.unique(prefix)) <= {0.0, 0.5, 1.0} and set(np.unique(errors)) <= {0.0, 1.0}
    assert (np.diff(prefix, axis=1)[valid[:, 1:]] >= 0.0).all() and (errors[~valid] == 0.0).all()


def test_what_cannot_be_scored_or_reported_is_refused(calls, speak):
    policy = speak(calls, prompt=False)
    with pytest.raises(ValueError, match=r"`prefix_tokens` must be from 0 to 2, got 9"):
        make_scored_collector(calls, policy, num_groups=2, group_size=2, prefix_tokens=9)
    with pytest.raises(ValueError, match="`parts` must be what 'code_calls' reports, got 'score'; there is calls, err"):
        make_dialogue(calls, policy, parts=["score"])
