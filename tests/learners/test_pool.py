"""Stored successes that join groups which failed: whom they replace, what is stored, and who is said to have acted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.learners.pool import join_groups, with_pool
from jaxagents.learners.token_losses import importance_of, make_token_view
from jaxagents.policies.contexts import to_rows
from jaxagents.types import Learner
from tests.fakes import score_tokens

KEY = jax.random.key(4)


@struct.dataclass
class Seen:
    """State of a learner that only notes its batch."""

    params: dict
    batch: object


def make_batch(make_episode, reward, task, **changes):
    """Makes rows of one turn, two to a group, whose tasks have these fingerprints."""
    num_rows = len(reward)
    episode = make_episode(np.reshape(reward, (-1, 1)), np.ones((num_rows, 1)), group=np.arange(num_rows) // 2)
    return episode.replace(fingerprint=jnp.asarray(np.reshape(task, (-1, 1)), jnp.uint32), **changes)


def test_the_newest_success_takes_the_first_place_of_a_failed_group(make_episode):
    # Group 0 failed and is known; 1 succeeded; 2 failed and is not known; 3 is known, but no longer stored.
    episode = make_batch(make_episode, [0, 0, 0, 1, 0, 0, 0, 0], [5, 5, 6, 6, 7, 7, 8, 8])
    store = make_batch(make_episode, [2, 3, 4, 9], [6, 5, 5, 8])
    batch, failed, joined = jax.jit(join_groups)(episode, store, jnp.array([True, True, True, False]))
    np.testing.assert_array_equal(batch.reward[:, 0], [3, 0, 0, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(failed, [1, 0, 0, 0, 1, 0, 1, 0])
    np.testing.assert_array_equal(joined, [1, 0, 0, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(batch.group, episode.group)
    # A row that a filter dropped is not replaced, and its return is nobody's success.
    dropped = episode.replace(reward=episode.reward.at[0].set(1.0), keep=jnp.arange(8) != 0)
    stored = store.replace(keep=jnp.ones(4, bool))
    batch, _, joined = join_groups(dropped, stored, jnp.ones(4, bool))
    np.testing.assert_array_equal(joined, [0, 1, 0, 0, 0, 0, 1, 0])
    np.testing.assert_array_equal(batch.reward[:, 0], [1, 3, 0, 1, 0, 0, 9, 0])


@pytest.mark.slow
def test_successes_are_stored_once_a_task_and_scored_by_who_learns(lake, speak, params_of):
    policy = speak(lake, context_turns=1, prompt=False)
    params = params_of(policy)
    episode = jax.jit(make_demonstrations(lake, policy, noise=0.3))(KEY, jnp.arange(6))
    success = np.asarray(episode.reward.sum(axis=1) > 0)
    assert success.sum() >= 2
    acting = jnp.where(episode.action_mask, -0.5, 0.0)
    episode = episode.replace(behavior_log_prob=acting, sampling_log_prob=acting, group=jnp.arange(6))
    inside = Learner(
        init=lambda key, start=None: Seen(params=params, batch=episode),
        update=lambda state, key, batch: (state.replace(batch=batch), {"loss": jnp.float32(2.0)}),
    )
    learner = with_pool(inside, policy.model, episode, capacity=4)
    update = jax.jit(learner.update)
    state, metrics = update(learner.init(KEY), KEY, episode)
    assert float(metrics["pooled_fraction"].total) == 0.0
    tasks = list(dict.fromkeys(np.asarray(episode.fingerprint[:, 0])[success]))
    stored = np.asarray(state.store.fingerprint[:, 0])[np.asarray(state.filled)]
    np.testing.assert_array_equal(stored, tasks[:4])
    assert float(metrics["stored"]) == len(stored)
    scored = score_tokens(policy.model, params, to_rows(episode), policy.layout).log_prob.reshape(acting.shape)
    scored = jnp.where(episode.action_mask, scored, 0.0)
    np.testing.assert_allclose(state.inner.batch.behavior_log_prob, scored, atol=1e-4)
    np.testing.assert_array_equal(state.inner.batch.sampling_log_prob, acting)
    mask = np.asarray(episode.action_mask)
    np.testing.assert_allclose(metrics["staleness"].value, np.mean(-0.5 - np.asarray(scored)[mask]), rtol=1e-4)
    weight = importance_of(state.inner.batch, make_token_view(state.inner.batch), 1.0)
    wanted = np.minimum(np.exp(np.asarray(scored) + 0.5), 1.0)[mask]
    np.testing.assert_allclose(np.asarray(weight)[mask], wanted, rtol=1e-3)
    # All fail now: those whose task is stored see its success, with the probabilities of who acted then.
    lost = episode.replace(reward=jnp.zeros_like(episode.reward), behavior_log_prob=2.0 * acting)
    state, metrics = update(state, KEY, lost)
    known = np.isin(np.asarray(episode.fingerprint[:, 0]), stored)
    np.testing.assert_array_equal(state.inner.batch.reward.sum(axis=1) > 0, known)
    np.testing.assert_allclose(metrics["pooled_fraction"].value, known.mean())
    sampled = np.asarray(state.inner.batch.sampling_log_prob)[np.asarray(state.inner.batch.action_mask)]
    assert set(np.unique(sampled)) <= {-0.5, -1.0}
    assert float(metrics["stored"]) == len(stored)
    empty = with_pool(inside, policy.model, episode, capacity=0)
    state, _ = jax.jit(empty.update)(empty.init(KEY), KEY, episode)
    assert not np.asarray(state.filled).any()
    with pytest.raises(ValueError, match="`capacity` must be at least 0, got -1"):
        with_pool(inside, policy.model, episode, capacity=-1)
