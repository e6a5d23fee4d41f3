"""The mixture of two policies of a team, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.distributions import Categorical
from jaxagents.policies.actor_critic import act
from jaxagents.policies.epsilon_greedy import EpsilonGreedy, make_epsilon_greedy
from jaxagents.policies.switching import Switched, make_switched
from jaxagents.types import PolicyInput
from jaxagents.values.q_function import QFunction

KEY = jax.random.key(0)


def categorical(probabilities):
    return Categorical(logits=jnp.log(jnp.asarray(probabilities)))


# Two agents, two actions: called with probability 0.25.
MIXTURE = Switched(
    switch=categorical([0.75, 0.25]),
    independent=categorical([[0.6, 0.4], [0.2, 0.8]]),
    team=categorical([[0.9, 0.1], [0.5, 0.5]]),
)


def test_probabilities_by_hand():
    expected = [[0.45, 0.3, 0.225, 0.025], [0.15, 0.6, 0.125, 0.125]]
    np.testing.assert_allclose(jnp.exp(MIXTURE.log_probs()), expected, rtol=1e-5)
    np.testing.assert_allclose(jnp.exp(MIXTURE.log_prob(jnp.array([3, 2]))), [0.025, 0.125], rtol=1e-5)
    entropy = [-sum(p * np.log(p) for p in row) for row in expected]
    np.testing.assert_allclose(MIXTURE.entropy(), entropy, rtol=1e-5)


def test_all_agents_are_called_or_none():
    batch = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (20_000, *leaf.shape)), MIXTURE)
    action = np.asarray(jax.jit(lambda batch: batch.sample(KEY))(batch))
    np.testing.assert_array_equal(action[:, 0] >= 2, action[:, 1] >= 2)
    frequency = np.stack([np.bincount(column, minlength=4) for column in action.T]) / 20_000
    np.testing.assert_allclose(frequency, jnp.exp(MIXTURE.log_probs()), atol=0.015)
    np.testing.assert_array_equal(action, batch.transform(batch.noise(KEY)))


def test_the_mode_is_that_of_the_chosen_policy():
    np.testing.assert_array_equal(MIXTURE.mode(), [0, 1])
    np.testing.assert_array_equal(MIXTURE.replace(switch=categorical([0.4, 0.6])).mode(), [2, 2])


@pytest.mark.parametrize(
    ("half", "mode"), [(slice(0, 2), [0, 1]), (slice(2, 4), [2, 2])], ids=["no call left", "forced to call"]
)
def test_a_half_that_is_masked_out_is_not_drawn(half, mode):
    masked = MIXTURE.mask(jnp.zeros((2, 4), bool).at[:, half].set(True))
    np.testing.assert_array_equal(masked.mode(), mode)
    np.testing.assert_allclose(jnp.exp(masked.log_probs())[:, half].sum(axis=-1), 1.0, rtol=1e-5)
    assert np.isfinite(masked.entropy()).all()
    assert MIXTURE.mask(None) is MIXTURE


def test_actions_that_the_world_forbids_are_so_in_both_halves():
    masked = MIXTURE.mask(jnp.array([[True, False] * 2, [False, True] * 2]))
    np.testing.assert_allclose(jnp.exp(masked.log_probs()), [[0.75, 0, 0.25, 0], [0, 0.75, 0, 0.25]], atol=1e-6)


def table(values):
    values = jnp.asarray(values, jnp.float32)
    return QFunction(init=lambda key: values, apply=lambda params, carry, inputs: (carry, inputs.observation @ params))


@pytest.mark.exhaustive
def test_policy_of_epsilon_greedy_parts_has_leaves_with_the_axes_of_the_batch():
    team_of = table([[1.0, 0.0], [0.0, 1.0]])
    switch = QFunction(
        init=team_of.init, apply=lambda params, carry, inputs: (carry, inputs.observation[..., 0, :] @ params)
    )
    policy = make_switched(
        make_epsilon_greedy(table([[1.0, 0.0]] * 2), initial_epsilon=0.0),
        make_epsilon_greedy(table([[0.0, 1.0]] * 2), initial_epsilon=0.0),
        make_epsilon_greedy(switch, initial_epsilon=0.5),
    )
    # The first environment is in the first state, where calls are worth nothing; one agent is a team as well.
    observation = jnp.eye(2)[:, None]
    carry, mixture = act(
        policy,
        policy.init(KEY),
        policy.initial_carry((2, 1)),
        PolicyInput(observation=observation, first=jnp.ones(2, bool)),
    )
    assert jax.tree.leaves(carry) == [] and isinstance(mixture.switch, EpsilonGreedy)
    assert all(leaf.shape[0] == 2 for leaf in jax.tree.leaves(mixture))
    np.testing.assert_array_equal(mixture.mode(), [[0], [3]])
    np.testing.assert_allclose(jnp.exp(mixture.log_probs()), [[[0.75, 0, 0, 0.25]], [[0.25, 0, 0, 0.75]]], atol=1e-6)
