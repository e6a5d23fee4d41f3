"""Rewards from a model of outcomes: what a turn is worth, the step of the model, and what the learner sees."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.learners.prime import make_implicit_rewards
from jaxagents.policies.contexts import to_rows
from tests.fakes import score_tokens

KEY, RATE = jax.random.key(4), 0.5


@pytest.mark.slow
def test_rewards_are_log_ratios_and_the_model_steps_along_the_cross_entropy_of_outcomes(lake, speak, params_of):
    policy = speak(lake, context_turns=1, prompt=False)
    episode = jax.jit(make_demonstrations(lake, policy, noise=0.5))(KEY, jnp.arange(6))
    assert 0 < int(episode.success.sum()) < 6
    estimator = make_implicit_rewards(policy.model, policy.layout, optax.sgd(RATE), coefficient=0.5, weight=2.0)
    before = params_of(policy)
    after = jax.tree.map(lambda leaf: leaf * 0.8, before)

    def ratio(params):
        def log_prob(params):
            return score_tokens(policy.model, params, to_rows(episode), policy.layout).log_prob

        difference = (log_prob(params) - log_prob(before)).reshape(episode.tokens.shape)
        return 0.5 * jnp.sum(jnp.where(episode.action_mask, difference, 0.0), axis=2)

    start = estimator.init(KEY, before)
    np.testing.assert_allclose(jax.jit(estimator.judge)(start, episode)[1], 0.0, atol=1e-6)
    state = start.replace(params=after)
    judged, implicit = jax.jit(estimator.judge)(state, episode)
    np.testing.assert_allclose(implicit, ratio(after), atol=1e-4)
    assert np.abs(implicit).max() > 0.1 and (np.asarray(implicit)[~np.asarray(episode.valid)] == 0).all()
    np.testing.assert_allclose(judged.reward, episode.reward + 2.0 * implicit, atol=1e-6)

    def cross_entropy(params):
        chance = jax.nn.sigmoid(jnp.sum(ratio(params), axis=1))
        return -jnp.mean(jnp.where(episode.success, jnp.log(chance), jnp.log(1.0 - chance)))

    expected, grads = jax.jit(jax.value_and_grad(cross_entropy))(after)
    fitted, metrics = jax.jit(estimator.fit)(state, KEY, episode, implicit), estimator.describe(episode, implicit)
    np.testing.assert_allclose(metrics["outcome_loss"].value, expected, rtol=1e-4)
    right = (np.asarray(implicit).sum(axis=1) > 0) == np.asarray(episode.success)
    np.testing.assert_allclose(metrics["outcome_accuracy"].value, right.mean(), rtol=1e-6)
    moved = jax.tree.map(lambda old, grad: old - RATE * grad, after, grads)
    jax.tree.map(lambda new, old: np.testing.assert_allclose(new, old, atol=2e-4), fitted.params, moved)
    jax.tree.map(np.testing.assert_array_equal, fitted.reference, before)
