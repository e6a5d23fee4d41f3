"""A model that ranks episodes: rewards of turns by hand, and its step against the gradient of the ranking."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.learners.istar import EXTRA, make_ranked_rewards
from jaxagents.policies.contexts import to_rows
from tests.fakes import score_tokens

KEY, RATE = jax.random.key(4), 0.5


@pytest.mark.slow
def test_rewards_are_log_ratios_to_who_acted_and_the_model_steps_along_the_ranking(lake, speak, params_of):
    policy = speak(lake, context_turns=1, prompt=False)
    episode = jax.jit(make_demonstrations(lake, policy, noise=0.5))(KEY, jnp.arange(6))
    assert 0 < int(episode.success.sum()) < 6
    episode = episode.replace(group=jnp.array([0, 0, 0, 0, 0, 1]), behavior_log_prob=-0.5 * episode.action_mask)
    estimator = make_ranked_rewards(policy.model, policy.layout, optax.sgd(RATE), coefficient=0.5)
    params = params_of(policy)

    def rewards(params):
        log_prob = score_tokens(policy.model, params, to_rows(episode), policy.layout).log_prob
        ratio = log_prob.reshape(episode.tokens.shape) + 0.5
        return 0.5 * jnp.sum(jnp.where(episode.action_mask, ratio, 0.0), axis=2)

    state = estimator.init(KEY, params)
    judged, implicit = jax.jit(estimator.judge)(state, episode)
    np.testing.assert_allclose(implicit, rewards(params), atol=1e-4)
    np.testing.assert_array_equal(judged.extras[EXTRA], implicit)
    np.testing.assert_array_equal(judged.reward, episode.reward)
    returns, group, turns = (np.asarray(leaf) for leaf in (episode.reward.sum(1), episode.group, episode.valid.sum(1)))
    pairs = [(i, j) for i in range(6) for j in range(6) if group[i] == group[j] and returns[i] > returns[j]]
    assert len(pairs) > 1

    def ranking(params):
        score = rewards(params).sum(axis=1) / turns
        return -jnp.mean(jnp.stack([jax.nn.log_sigmoid(score[i] - score[j]) for i, j in pairs]))

    expected, grads = jax.jit(jax.value_and_grad(ranking))(params)
    fitted, metrics = jax.jit(estimator.fit)(state, KEY, episode, implicit), estimator.describe(episode, implicit)
    np.testing.assert_allclose(metrics["ranking_loss"].value, expected, rtol=1e-4)
    score = np.asarray(implicit).sum(axis=1) / turns
    right = np.mean([score[i] > score[j] for i, j in pairs])
    np.testing.assert_allclose(metrics["ranking_accuracy"].value, right, rtol=1e-6)
    moved = jax.tree.map(lambda old, grad: old - RATE * grad, params, grads)
    jax.tree.map(lambda new, old: np.testing.assert_allclose(new, old, atol=2e-4), fitted.params, moved)
    # Groups of equal returns rank nobody, and teach nothing.
    equal = episode.replace(reward=jnp.zeros_like(episode.reward))
    unmoved = jax.jit(estimator.fit)(state, KEY, equal, implicit).params
    jax.tree.map(np.testing.assert_array_equal, unmoved, params)
