"""Estimated progress as reward: what turns contribute, the estimator's step, and what the learner gets to see."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct

from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.learners.estimators import with_estimator
from jaxagents.learners.microbatches import make_microbatches
from jaxagents.learners.spa import contributions, make_progress_estimator
from jaxagents.policies.contexts import to_rows
from jaxagents.types import Learner
from tests.fakes import score_tokens

KEY = jax.random.key(4)
RATE = 1e-3


@pytest.fixture(scope="module")
def shown(lake, speak, params_of):
    policy = speak(lake, value_head=True, context_turns=1, prompt=False)
    episode = jax.jit(make_demonstrations(lake, policy, noise=0.5))(KEY, jnp.arange(6))
    return policy, params_of(policy), episode


def by_hand(policy, params, episode):
    """Computes the value at the last sampled token of every turn, `[B, T]`, in the plainest way."""
    value = score_tokens(policy.model, params, to_rows(episode), policy.layout).value
    column = jnp.where(episode.action_mask, jnp.arange(policy.layout.turn), -1).max(axis=2)
    taken = jnp.take_along_axis(value.reshape(episode.tokens.shape), jnp.maximum(column, 0)[..., None], axis=2)[..., 0]
    return jnp.where(column >= 0, taken, 0.0)


@struct.dataclass
class Inside:
    """State of a learner that only notes its rewards."""

    params: dict
    seen: jax.Array


@pytest.fixture(scope="module")
def learned(shown):
    """Returns states before and after an update, and metrics; the learner inside notes its rewards."""
    policy, params, episode = shown
    inside = Learner(
        init=lambda key, params: Inside(params=params, seen=jnp.zeros(episode.reward.shape)),
        update=lambda state, key, batch: (state.replace(seen=batch.reward), {"loss": jnp.float32(2.0)}),
    )
    estimator = make_progress_estimator(policy.model, policy.layout, optax.sgd(RATE), contribution=2.0, grounding=0.5)
    learner = with_estimator(inside, estimator, num_exploring=1)
    update = jax.jit(learner.update)
    before = learner.init(KEY, params)
    after, metrics = update(before, KEY, episode)
    return before, after, metrics, update


@pytest.mark.exhaustive
def test_turns_contribute_the_value_of_their_last_token(shown):
    policy, params, episode = shown
    actual = contributions(policy.model, make_microbatches(policy.layout), params, episode)
    np.testing.assert_allclose(actual, by_hand(policy, params, episode), atol=1e-5)
    assert (np.asarray(actual)[~np.asarray(episode.valid)] == 0).all()


@pytest.mark.slow
def test_the_estimator_steps_towards_the_outcome(shown, learned):
    policy, params, episode = shown
    _, after, metrics, _ = learned
    outcome = jnp.sum(episode.reward * episode.valid, axis=1)

    @jax.jit
    def loss(params):
        return jnp.mean(jnp.square(jnp.sum(by_hand(policy, params, episode), axis=1) - outcome))

    expected, grads = jax.value_and_grad(loss)(params)
    np.testing.assert_allclose(metrics["progress_loss"], expected, rtol=1e-4)
    # Worse than the mean of the outcomes, whose error is their variance: below zero, for a model that learned nothing.
    np.testing.assert_allclose(metrics["progress_explained"], 1.0 - expected / np.var(outcome), rtol=1e-3)

    def assert_moved(new, old, grad):
        step = RATE * np.asarray(grad)  # Of up to 32, and sums of such terms round in their units.
        np.testing.assert_allclose(new, old - step, atol=1e-5 * np.max(np.abs(step)))

    jax.tree.map(assert_moved, after.estimator.params, params, grads)


@pytest.mark.exhaustive
def test_the_learner_sees_progress_and_executed_actions_once_the_estimator_has_explored(shown, learned):
    policy, params, episode = shown
    _, after, metrics, update = learned
    assert float(metrics["loss"]) == 2.0 and not np.asarray(after.inner.seen).any()
    executed = np.asarray(episode.valid & episode.action_valid)
    np.testing.assert_allclose(metrics["executable_fraction"].value, executed.sum() / np.asarray(episode.valid).sum())
    second, _ = update(after, KEY, episode)
    expected = 2.0 * np.asarray(by_hand(policy, after.estimator.params, episode)) + 0.5 * executed
    np.testing.assert_allclose(second.inner.seen, expected, rtol=1e-4, atol=1e-4)
    jax.tree.map(np.testing.assert_array_equal, second.params, params)


def test_models_without_value_head_are_refused(lake, speak):
    policy = speak(lake, context_turns=1, prompt=False)
    with pytest.raises(ValueError, match="`model` must have a value head to estimate progress"):
        make_progress_estimator(policy.model, policy.layout, optax.sgd(RATE))


@pytest.mark.exhaustive
def test_several_steps_on_a_batch_are_as_many_updates_of_the_estimator(shown):
    policy, params, episode = shown
    idle = Learner(
        init=lambda key, params: Inside(params=params, seen=jnp.zeros(())),
        update=lambda state, key, batch: (state, {}),
    )

    def estimators(num_updates, **options):
        # Adam would make rounding errors of tiny gradients as large as steps.
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.01))
        estimator = make_progress_estimator(policy.model, policy.layout, optimizer, **options)
        learner = with_estimator(idle, estimator)
        state, update = learner.init(KEY, params), jax.jit(learner.update)
        for _ in range(num_updates):
            state, _ = update(state, KEY, episode)
        return state.estimator.params

    once, thrice = estimators(1), estimators(1, num_steps=3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), thrice, estimators(3))
    assert any(np.abs(a - b).max() > RATE for a, b in zip(jax.tree.leaves(once), jax.tree.leaves(thrice)))
    with pytest.raises(ValueError, match="`num_steps` must be a positive number, got 0"):
        estimators(1, num_steps=0)
