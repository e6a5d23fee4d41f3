"""What is read in place of what is learned: which tokens, how many, and what the loss is then."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.learners.supervised import make_supervised
from jaxagents.ops.corruption import random_tokens
from jaxagents.ops.schedules import linear_schedule
from jaxagents.policies.contexts import score_tokens, to_rows

KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def shown(lake, speak, params_of):
    policy = speak(lake)
    return policy, params_of(policy), jax.jit(make_demonstrations(lake, policy, noise=0.3))(KEY, jnp.arange(64))


@pytest.mark.parametrize("rate", [0.0, 0.4, 1.0])
def test_so_many_of_the_sampled_tokens_are_any_of_the_vocabulary(shown, rate):
    policy, _, episode = shown
    read = np.asarray(random_tokens(KEY, episode, vocab_size=policy.model.vocab_size, rate=rate))
    tokens, mask = np.asarray(episode.tokens), np.asarray(episode.action_mask)
    np.testing.assert_array_equal(read[~mask], tokens[~mask])
    changed = (read != tokens)[mask].mean()
    expected = rate * (1.0 - 1.0 / policy.model.vocab_size)  # One of V is the same token again.
    assert abs(changed - expected) < 4.0 * np.sqrt(0.25 / mask.sum())
    assert read.min() >= 0 and read.max() < policy.model.vocab_size
    if rate == 1.0:
        assert len(np.unique(read[mask])) == policy.model.vocab_size


def test_thoughts_alone(shown):
    policy, _, episode = shown
    thoughts = episode.action_mask & (jnp.arange(episode.tokens.shape[2]) % 2 == 0)[None, None]
    read = random_tokens(
        KEY, episode.replace(thought_mask=thoughts), vocab_size=policy.model.vocab_size, rate=1.0, where="thoughts"
    )
    assert not np.asarray((read != episode.tokens) & ~thoughts).any() and np.asarray(read != episode.tokens).any()


@pytest.mark.slow
def test_labels_stay_and_the_rate_follows_its_schedule(shown):
    """The loss of the first update is that of transcripts that are read as they are, of the third that of half."""
    policy, params, episode = shown
    slot = jax.tree_util.Partial(random_tokens, rate=linear_schedule(start=0.0, end=0.5, fraction=0.5))
    learner = make_supervised(policy.model, optax.sgd(0.0), corruption=slot, num_updates=4)
    state, step, losses = learner.init(KEY, params), jax.jit(learner.update), []
    for _ in range(3):
        state, metrics = step(state, KEY, episode)
        losses.append(float(metrics["loss"]))
    mask = np.asarray(episode.action_mask)
    for loss, rate in zip(losses, (0.0, 0.25, 0.5), strict=True):
        read = random_tokens(KEY, episode, vocab_size=policy.model.vocab_size, rate=rate)
        scored = score_tokens(policy.model, params, to_rows(episode).replace(inputs=read), policy.layout)
        np.testing.assert_allclose(loss, -np.asarray(scored.log_prob)[mask].mean(), rtol=1e-5)
    assert losses[0] != losses[2]
