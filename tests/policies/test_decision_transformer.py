"""What a decision transformer is told, step by step and in sequences, and what it does with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks.windows import StepTokens
from jaxagents.policies.actor_critic import act
from jaxagents.policies.decision_transformer import condition_on_returns, make_decision_transformer
from jaxagents.types import Box, Discrete, PolicyInput, Sample
from tests.fakes import make_sample, make_transition

KEY = jax.random.key(0)
POLICY = make_decision_transformer(
    Box((2,)), Discrete(3), target_return=10.0, encoder=StepTokens(features=8, num_layers=2, num_steps=3)
)
T, B = 7, 2


@pytest.fixture(scope="module")
def params():
    # At the start the head says nothing.
    params = POLICY.init(KEY)
    return jax.tree.map(lambda leaf: leaf + 0.3 * jax.random.normal(KEY, leaf.shape), params)


def inputs(**changes):
    observation_key, reward_key, action_key = jax.random.split(KEY, 3)
    fields = {
        "observation": jax.random.normal(observation_key, (T, B, 2)),
        "first": jnp.zeros((T, B), bool).at[0].set(True).at[4, 1].set(True),
        "previous_action": jax.random.randint(action_key, (T, B), 0, 3),
        "previous_reward": jax.random.uniform(reward_key, (T, B)),
    }
    return PolicyInput(**fields | changes)


@pytest.fixture(scope="module")
def apply():
    return jax.jit(POLICY.apply)


def test_a_sequence_without_a_past_is_seen_as_its_steps_are_one_by_one(params, apply):
    given = jax.tree.map(lambda leaf: leaf[:3], inputs())
    start = POLICY.initial_carry((B,))
    short = jax.tree.map(lambda leaf: leaf[:, :0] if leaf.ndim == 3 else leaf, start)
    _, whole = apply(params, short, given)
    _, stepwise = apply(params, start, given)
    np.testing.assert_allclose(whole.logits, stepwise.logits, atol=1e-5)
    with pytest.raises(ValueError, match="`sequence_length` must be at most the 3 steps that are seen, got 7; try 3"):
        POLICY.apply(params, short, inputs())


def test_it_sees_its_window_and_its_episode_only(params, apply):
    """A changed first observation reaches the third step; the second environment begins anew at step 4."""

    def logits(observation):
        return np.asarray(apply(params, POLICY.initial_carry((B,)), inputs(observation=observation))[1].logits)

    observation = inputs().observation
    early = np.abs(logits(observation.at[0, 0].add(1.0)) - logits(observation))[:, 0].max(-1)
    assert np.all(early[:3] > 1e-6) and np.all(early[3:] < 1e-6)
    across = np.abs(logits(observation.at[3, 1].add(1.0)) - logits(observation))[:, 1].max(-1)
    assert np.all(across[:3] < 1e-6) and across[3] > 1e-6 and np.all(across[4:] < 1e-6)


def test_rewards_are_taken_off_the_target(params):
    carry, given = POLICY.initial_carry((1,)), inputs()
    rewards = [0.0, 2.0, 3.0]
    for t, reward in enumerate(rewards):
        one = jax.tree.map(lambda leaf, t=t: leaf[t, :1], given).replace(previous_reward=jnp.array([reward]))
        carry, _ = act(POLICY, params, carry, one)
    np.testing.assert_allclose(carry.target, [5.0])
    np.testing.assert_allclose(carry.return_to_go[0, :, 0], [8.0, 5.0])
    assert int(carry.age[0]) == 3


def test_sequences_are_told_the_returns_that_were_reached():
    sample = make_sample(
        observation=jnp.zeros((3, 1, 1)),
        action=jnp.array([[2], [1], [0]]),
        reward=jnp.array([[1.0], [2.0], [4.0]]),
        first=jnp.array([[True], [False], [True]]),
        extras={"return_to_go": jnp.array([[3.0], [2.0], [4.0]])},
    )
    carry, given, mask = condition_on_returns(POLICY.initial_carry((1,)), sample)
    np.testing.assert_allclose(carry.target, [3.0])
    np.testing.assert_array_equal(given.previous_action[:, 0], [0, 2, 1])
    np.testing.assert_array_equal(given.previous_reward[:, 0], [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(mask[:, 0], [True, True, False])


@pytest.mark.parametrize("begin", [0, 2, 4])
def test_a_policy_acts_as_its_sequences_are_scored(params, apply, begin):
    """One episode with a return of 10, as asked for: what is seen at the third step of a sequence, and at its first.

    A sequence may begin inside the episode: an action before the steps that are seen is not seen, either."""
    action = jnp.array([[2], [1], [0], [2], [1], [2], [1]])
    reward = jnp.array([[1.0], [2.0], [0.5], [3.0], [1.5], [1.0], [1.0]])
    left = jnp.flip(jnp.cumsum(jnp.flip(reward)))[:, None]
    transition = make_transition(
        observation=jax.random.normal(KEY, (7, 1, 2)),
        action=action,
        reward=reward,
        next_observation=jnp.zeros((7, 1, 2)),
        first=jnp.arange(7)[:, None] == 0,
        extras={"return_to_go": left},
    )
    previous = [jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]]) for x in (action, reward)]
    acted = PolicyInput(transition.observation, transition.first, None, *previous)
    _, playing = apply(params, POLICY.initial_carry((1,)), acted)
    sequence = jax.tree.map(lambda leaf: leaf[begin : begin + 3], transition)
    carry, given, _ = condition_on_returns(POLICY.initial_carry((1,)), Sample(sequence, jnp.ones(1)))
    _, scored = POLICY.apply(params, carry, given)
    np.testing.assert_allclose(scored.logits[-1], playing.logits[begin + 2], atol=1e-5)
    if begin == 0:
        np.testing.assert_allclose(scored.logits, playing.logits[:3], atol=1e-5)


def test_bad_settings_are_refused(params):
    with pytest.raises(ValueError, match="`return_scale` must be positive, got 0.0"):
        make_decision_transformer(Box((2,)), Discrete(3), target_return=1.0, return_scale=0.0)
    with pytest.raises(ValueError, match="`observation_space` must be a Box of rank 1"):
        make_decision_transformer(Box((2, 2)), Discrete(3), target_return=1.0)
    with pytest.raises(ValueError, match="`action_space` must be Discrete or a bounded Box, got Box"):
        make_decision_transformer(Box((2,)), Box((1,)), target_return=1.0)
    with pytest.raises(ValueError, match="the heads divide the features, got 9, 2, 2 and 20; try 64"):
        StepTokens(features=9)
    with pytest.raises(ValueError, match="`previous_reward` and `previous_action` must be told"):
        POLICY.apply(params, POLICY.initial_carry((B,)), inputs(previous_reward=None))
