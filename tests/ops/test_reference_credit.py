"""Credit from a reference, against numbers made by hand and the divergence that it stands for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.reference_credit import distillation, reinforce_plus_plus
from jaxagents.types import EpisodeView, TokenStatistics


def view_of(episode, policy, reference):
    return EpisodeView(
        episode=episode, policy=TokenStatistics(log_prob=policy), reference=TokenStatistics(log_prob=reference)
    )


@pytest.fixture(scope="module")
def view(make_episode):
    """Two episodes of one group: two turns of two tokens and one; one turn of one token."""
    episode = make_episode([[0.0, 1.0], [0.0, 0.0]], [[2, 1], [1, 0]])
    policy = jnp.where(episode.action_mask, -1.0, 9.0)
    reference = policy.at[0, 0, 1].set(-1.5).at[0, 0, 2].set(-3.0).at[0, 1, 1].set(-2.0).at[1, 0, 1].set(-0.5)
    return view_of(episode, policy, reference)


@pytest.mark.parametrize(("group_baseline", "returns"), [(False, [1.0, 0.0]), (True, [0.5, -0.5])])
def test_reinforce_plus_plus_by_hand(view, group_baseline, returns):
    # Log-ratios 0.5, 2, 1 and -0.5; what follows, the token included: 3.5, 3, 1 and -0.5.
    raw = np.array([returns[0] - 0.35, returns[0] - 0.3, returns[0] - 0.1, returns[1] + 0.05])
    expected = (raw - raw.mean()) / raw.std()
    credit = reinforce_plus_plus(view, kl_coefficient=0.1, group_baseline=group_baseline)
    mask = np.asarray(view.episode.action_mask)
    np.testing.assert_allclose(np.asarray(credit.advantage)[mask], expected, rtol=1e-5)
    assert credit.target is None and not np.asarray(credit.advantage)[~mask].any()


def test_reinforce_plus_plus_is_what_verl_computes(make_episode):
    """Printed by volcengine/verl at commit b178a3c, verl/trainer/ppo/core_algos.py:583 and 425 (with a group baseline).

    Its rewards are given the divergence token by token; its deviation is that of the sample, sqrt(4 / 3) times as large
    for four tokens. With a group baseline there is no divergence in it.
    """
    episode = make_episode([[1.0], [0.0]], [[3], [1]])
    ratio = jnp.zeros(episode.tokens.shape).at[0, 0, 1:4].set(jnp.array([0.5, 2.0, 1.0])).at[1, 0, 1].set(-0.5)
    view, mask = view_of(episode, ratio, jnp.zeros_like(ratio)), np.asarray(episode.action_mask)
    advantage = np.asarray(reinforce_plus_plus(view, kl_coefficient=0.1).advantage)[mask]
    np.testing.assert_allclose(advantage * np.sqrt(3 / 4), [0.2048, 0.3413, 0.8873, -1.4333], atol=1e-4)
    view = view_of(episode, ratio, ratio)
    advantage = np.asarray(reinforce_plus_plus(view, group_baseline=True).advantage)[mask]
    np.testing.assert_allclose(advantage * np.sqrt(3 / 4), [0.5, 0.5, 0.5, -1.5], atol=1e-4)


def test_distillation_by_hand(view):
    advantage = np.asarray(distillation(view).advantage)
    mask = np.asarray(view.episode.action_mask)
    np.testing.assert_allclose(advantage[mask], [-0.5, -2.0, -1.0, 0.5], rtol=1e-6)
    assert not advantage[~mask].any()


def test_the_expected_gradient_of_distillation_is_that_of_the_reverse_divergence(make_episode):
    """One token of three words: the mean over the words, by their probability, of `-A grad log pi`."""
    logits, teacher = jnp.array([0.3, -1.0, 0.8]), jax.nn.log_softmax(jnp.array([1.0, 0.0, -2.0]))
    log_prob = jax.nn.log_softmax(logits)
    episode = make_episode(np.zeros((3, 1)), np.ones((3, 1)))
    spread = [jnp.zeros((3, 1, 4)).at[:, 0, 1].set(of) for of in (log_prob, teacher)]
    advantage = distillation(view_of(episode, *spread)).advantage[:, 0, 1]
    actual = jax.grad(lambda x: -jnp.sum(jnp.exp(log_prob) * advantage * jax.nn.log_softmax(x)))(logits)
    divergence = jax.grad(lambda x: jnp.sum(jax.nn.softmax(x) * (jax.nn.log_softmax(x) - teacher)))(logits)
    np.testing.assert_allclose(actual, divergence, atol=1e-6)


@pytest.mark.parametrize("credit", [reinforce_plus_plus, distillation])
def test_they_need_a_reference(view, credit):
    with pytest.raises(ValueError, match="try learner.reference=true"):
        credit(view.replace(reference=None))
