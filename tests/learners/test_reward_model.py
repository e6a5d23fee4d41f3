"""Reward models: what is learned from pairs, and what is paid."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.environments.text.arithmetic import make_environment
from jaxagents.language.demonstrations import make_demonstrated_collector
from jaxagents.learners.reward_model import last_tokens, make_model_reward, make_reward_model, score_answers
from jaxagents.ops.pairs import expert_against_own
from jaxagents.policies.contexts import to_rows
from jaxagents.types import EpisodeView
from tests.fakes import score_tokens

KEY = jax.random.key(5)


@pytest.fixture(scope="module")
def played(speak, params_of):
    """Returns a policy with a value head, its parameters, and a batch of own episodes and the expert's."""
    sums = make_environment(num_digits=(1,), num_terms=(2,), operations=("+",))
    policy = speak(sums, value_head=True, context_turns=1, prompt=False)
    params = params_of(policy)
    collector = make_demonstrated_collector(sums, policy, num_groups=4, group_size=2)
    return policy, params, jax.jit(collector.collect)(collector.init(KEY, params), params, KEY)[1]


@pytest.mark.slow
def test_the_step_is_the_gradient_of_the_mean_loss_of_the_pairs(played):
    policy, params, batch = played
    chosen = expert_against_own(batch)
    assert int(jnp.sum(chosen.pair >= 0)) > 2

    def loss(params):
        value = score_tokens(policy.model, params, to_rows(chosen.episode), policy.layout, fields=("value",)).value
        value = value.reshape(chosen.episode.tokens.shape)
        score = jnp.sum(value * last_tokens(chosen.episode), axis=(1, 2))
        margin = (score[jnp.maximum(chosen.pair, 0)] - score)[chosen.pair >= 0]
        return jnp.mean(jnp.log1p(jnp.exp(-margin)))

    learner = make_reward_model(policy.model, optax.sgd(0.1), pairs=expert_against_own)
    state, metrics = jax.jit(learner.update)(learner.init(KEY, params), KEY, batch)
    value, slope = jax.value_and_grad(loss)(params)
    np.testing.assert_allclose(metrics["loss"], value, rtol=1e-5)
    wanted = jax.tree.map(lambda leaf, slope: leaf - 0.1 * slope, params, slope)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5), state.params, wanted)


@pytest.mark.slow
def test_pairs_are_learned_and_paid_at_the_end(played):
    policy, params, batch = played
    learner = make_reward_model(policy.model, optax.adam(1e-2), pairs=expert_against_own)
    update, state = jax.jit(learner.update), learner.init(KEY, params)
    for _ in range(30):
        state, metrics = update(state, KEY, batch)
    assert metrics["accuracy"].value == 1.0 and metrics["margin"].value > 1.0
    slot = make_model_reward(policy.model, state.params, scale=2.0, world_scale=0.5)
    memory, view = slot.init(3), EpisodeView(episode=batch.own)
    paid, summary = slot.apply(memory, view, axis_name=None)
    score = score_answers(policy.model, state.params, batch.own)
    last = jnp.any(last_tokens(batch.own), axis=2)
    np.testing.assert_allclose(paid, 0.5 * batch.own.reward + jnp.where(last, 2.0 * score[:, None], 0.0), rtol=1e-6)
    assert summary == () and slot.update(memory, summary) is memory and last.sum(axis=1).max() == 1
    expert = score_answers(policy.model, state.params, batch.demonstration)
    assert expert.mean() > score.mean()


def test_a_model_without_a_value_head_is_refused(speak):
    policy = speak(make_environment(num_digits=(1,), num_terms=(2,), operations=("+",)))
    with pytest.raises(ValueError, match="`model.value_head` must be true for a reward model"):
        make_reward_model(policy.model, optax.sgd(0.1))
    with pytest.raises(ValueError, match="`model.value_head` must be true for a reward model"):
        make_model_reward(policy.model, {})
