"""Fresh actions at old states: who says them, where they stand, and with which probability."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.language.collect import make_dialogue_collector
from jaxagents.language.utterances import make_utterances
from jaxagents.policies.contexts import to_rows
from tests.fakes import score_tokens

KEY = jax.random.key(4)


@pytest.mark.slow
@pytest.mark.parametrize("prompt", [False, True])
def test_actions_are_sampled_anew_where_something_was_said(lake, speak, params_of, prompt):
    policy = speak(lake, context_turns=1, prompt=prompt)
    params, other = params_of(policy), policy.init(jax.random.key(1))
    collector = make_dialogue_collector(lake, policy, num_groups=4, group_size=2)
    _, episode, _ = jax.jit(collector.collect)(collector.init(KEY, params), params, KEY)
    fresh = jax.jit(make_utterances(policy))(other, jax.random.key(2), episode)
    layout = policy.layout
    begin, output = layout.observation, np.asarray(fresh.action_mask)
    np.testing.assert_array_equal(fresh.tokens[:, :, :begin], episode.tokens[:, :, :begin])
    np.testing.assert_array_equal(output.any(axis=2), np.asarray(episode.action_mask).any(axis=2))
    np.testing.assert_array_equal(fresh.reward, episode.reward)
    assert (np.asarray(fresh.tokens) != np.asarray(episode.tokens))[output].any()
    # The pass of training says the same of them, wherever they stand.
    rows = to_rows(fresh)
    log_prob = score_tokens(policy.model, other, rows, layout).log_prob.reshape(output.shape)
    np.testing.assert_allclose(np.asarray(fresh.behavior_log_prob)[output], np.asarray(log_prob)[output], atol=1e-4)
    assert not np.asarray(fresh.behavior_log_prob)[~output].any()
    # In each turn tokens follow each other, as in the episodes themselves.
    same = jnp.cumsum(fresh.token_mask, axis=2) - fresh.token_mask + fresh.position[:, :, :1]
    there = np.asarray(fresh.token_mask)
    np.testing.assert_array_equal(np.asarray(fresh.position)[there], np.asarray(same)[there])
    ends = policy.tokenizer.is_end(fresh.tokens) & fresh.action_mask
    assert (np.asarray(jnp.sum(ends, axis=2)) <= 1).all()


def test_contexts_of_several_turns_and_thoughts_are_refused(lake, speak):
    with pytest.raises(ValueError, match="`policy.context_turns` must be 1 for actions that are sampled anew, got"):
        make_utterances(speak(lake, prompt=False))
    with pytest.raises(ValueError, match="`policy.thought_tokens` must be 0 for actions that are sampled anew, got 4"):
        make_utterances(speak(lake, context_turns=1, prompt=False, thought_tokens=4))
