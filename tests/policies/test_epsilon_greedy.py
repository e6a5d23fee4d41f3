"""The exact probabilities of the epsilon-greedy mixture."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from jaxagents.policies.actor_critic import act
from jaxagents.policies.epsilon_greedy import EpsilonGreedy, make_epsilon_greedy
from jaxagents.types import PolicyInput
from jaxagents.values.q_function import QFunction

Q = jnp.array([1.0, 3.0, 2.0, 0.0])
ALL = jnp.ones(4, bool)


def distribution(epsilon, action_mask=ALL):
    return EpsilonGreedy(q=Q, epsilon=jnp.float32(epsilon), action_mask=action_mask)


def test_probabilities_by_hand():
    np.testing.assert_allclose(jnp.exp(distribution(0.2).log_probs()), [0.05, 0.85, 0.05, 0.05], rtol=1e-5)
    masked = distribution(0.2).mask(jnp.array([True, False, True, False]))
    np.testing.assert_allclose(jnp.exp(masked.log_probs()), [0.1, 0.0, 0.9, 0.0], rtol=1e-5)


def test_log_prob_and_entropy_agree_with_rlax():
    oracle = rlax.epsilon_greedy(0.3)
    np.testing.assert_allclose(distribution(0.3).log_prob(jnp.int32(1)), oracle.logprob(jnp.int32(1), Q), rtol=1e-5)
    np.testing.assert_allclose(distribution(0.3).entropy(), oracle.entropy(Q), rtol=1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_everything_is_finite_and_mode_is_greedy(epsilon):
    mixture = distribution(epsilon)
    assert int(mixture.mode()) == 1
    assert np.all(np.isfinite(mixture.log_probs())) and np.isfinite(mixture.entropy())
    assert int(mixture.mask(jnp.array([True, False, True, True])).mode()) == 2


def test_samples_have_the_probabilities():
    mixture = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (20_000, *leaf.shape)),
        distribution(0.4, jnp.array([True, True, True, False])),
    )
    frequency = np.bincount(mixture.sample(jax.random.key(0)), minlength=4) / 20_000
    np.testing.assert_allclose(frequency, [0.4 / 3, 0.6 + 0.4 / 3, 0.4 / 3, 0.0], atol=0.015)
    assert int(distribution(0.0).sample(jax.random.key(1))) == 1


def linear_policy(initial_epsilon=1.0):
    q_function = QFunction(
        init=lambda key: jnp.eye(4), apply=lambda params, carry, inputs: (carry, inputs.observation @ params)
    )
    return make_epsilon_greedy(q_function, initial_epsilon=initial_epsilon)


def test_policy_acts_on_a_batch_with_leaves_that_have_its_axes():
    policy = linear_policy(0.25)
    params = policy.init(jax.random.key(0))
    observation = jnp.stack([Q, -Q])
    mask = jnp.array([[True] * 4, [True, True, False, False]])
    _, mixture = act(
        policy, params, (), PolicyInput(observation=observation, first=jnp.ones(2, bool), action_mask=mask)
    )
    assert all(leaf.shape[0] == 2 for leaf in jax.tree.leaves(mixture))
    np.testing.assert_allclose(
        jnp.exp(mixture.log_probs()), [[0.0625, 0.8125, 0.0625, 0.0625], [0.875, 0.125, 0.0, 0.0]], rtol=1e-5
    )


def test_refuses_an_epsilon_that_is_no_probability():
    with pytest.raises(ValueError, match="`initial_epsilon` must be in"):
        linear_policy(1.5)
