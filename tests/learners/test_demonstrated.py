"""Own episodes and demonstrations in one batch: which rows are compared, and what the learner steps along."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.learners.demonstrated import side_by_side, with_demonstrations
from jaxagents.learners.policy_gradient import make_policy_gradient
from jaxagents.losses.aggregation import token_mean
from jaxagents.losses.demonstrated import luffy
from jaxagents.ops.credit import dr_grpo
from jaxagents.policies.contexts import to_rows
from jaxagents.types import Demonstrated, EpisodeView
from tests.fakes import score_tokens

KEY = jax.random.key(5)


def test_demonstrations_join_the_group_of_their_task_or_are_one_of_their_own(make_episode):
    shown = make_episode([[1.0], [1.0]], [[1], [1]], group=[0, 1])
    own = make_episode([[0.0], [1.0], [0.0], [0.0]], [[1]] * 4, group=[0, 0, 1, 1], bootstrap_value=jnp.ones(4))
    batch = Demonstrated(own=own, demonstration=shown)
    joint, apart = side_by_side(batch), side_by_side(batch, shared_groups=False)
    np.testing.assert_array_equal(joint.control, [False] * 4 + [True] * 2)
    # Means of 2/3 and 1/3 with the expert among the others; 1/2 and 0 without, and nothing to compare the expert with.
    credit = [dr_grpo(EpisodeView(episode=rows)).advantage[:, 0, 1] for rows in (joint, apart)]
    np.testing.assert_allclose(credit[0], np.array([-2, 1, -1, -1, 1, 2]) / 3, rtol=1e-6)
    np.testing.assert_allclose(credit[1], [-0.5, 0.5, 0, 0, 0, 0], rtol=1e-6)


@pytest.mark.exhaustive
def test_a_step_is_along_the_gradient_of_both_parts(lake, speak, params_of):
    """The loss written out over the tokens of a batch: own ones have ratio 1, shown ones are shaped."""
    policy = speak(lake, context_turns=1, prompt=False)
    params, rate = params_of(policy), 0.1
    rows = jax.jit(make_demonstrations(lake, policy, noise=0.5))(KEY, jnp.arange(9))
    success = np.asarray(rows.success)
    groups = np.array([0, 0, 1, 1, 2, 2, 0, 1, 2])
    rows = rows.replace(group=jnp.asarray(groups))

    def log_prob_of(params):
        return score_tokens(policy.model, params, to_rows(rows), policy.layout).log_prob.reshape(rows.tokens.shape)

    behavior = jnp.where(rows.action_mask, jax.jit(log_prob_of)(params), 0.0)
    own, shown = jax.tree.map(lambda leaf: leaf[:6], rows), jax.tree.map(lambda leaf: leaf[6:], rows)
    batch = Demonstrated(own=own.replace(behavior_log_prob=behavior[:6]), demonstration=shown)
    options = {"advantage": dr_grpo, "loss": luffy, "aggregation": token_mean}
    learner = with_demonstrations(make_policy_gradient(policy.model, policy.layout, optax.sgd(rate), **options))
    state, _ = jax.jit(learner.update)(learner.init(KEY, params), KEY, batch)
    returns = np.asarray((rows.reward * rows.valid).sum(axis=1))
    advantage = returns - np.array([returns[groups == group].mean() for group in groups])
    assert 0 < success.sum() < 9 and np.abs(advantage[:6]).max() > 0.1 and np.abs(advantage[6:]).max() > 0.1

    def loss(params):
        log_prob = log_prob_of(params)
        shaped = jnp.exp(log_prob) / (jnp.exp(log_prob) + 0.1)
        of_tokens = jnp.where(np.arange(9)[:, None, None] >= 6, shaped, jnp.exp(log_prob - behavior))
        return jnp.sum(jnp.where(rows.action_mask, -advantage[:, None, None] * of_tokens, 0.0)) / rows.action_mask.sum()

    expected = jax.tree.map(lambda old, grad: old - rate * grad, params, jax.jit(jax.grad(loss))(params))
    jax.tree.map(lambda new, old: np.testing.assert_allclose(new, old, atol=2e-5), state.params, expected)
