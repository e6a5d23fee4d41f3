"""PPO of recurrent policies: whole sequences, and carries of the steps at which they were."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.learners.ppo import make_ppo
from jaxagents.networks.recurrent import GRU, LRU
from jaxagents.networks.torsos import MLP
from jaxagents.ops.distributions import Categorical
from jaxagents.policies.actor_critic import act, as_policy, make_actor_critic
from jaxagents.types import ActorCritic, Box, Discrete, PolicyInput, Rollout, Transition
from tests.fakes import make_transition

KEY = jax.random.key(0)

KEY = jax.random.key(0)


def episodes(policy, params, num_steps=8, num_envs=4):
    """Returns a rollout of random observations and actions, the policy applied to one step after the other."""
    generator = np.random.default_rng(1)
    shape = (num_steps, num_envs)
    observation = jnp.asarray(generator.normal(size=(*shape, 3)), jnp.float32)
    action = jnp.asarray(generator.integers(0, 2, shape), jnp.int32)
    first = jnp.asarray(generator.random(shape) < 0.25)
    step = jax.jit(
        lambda carry, *inputs: act(policy, params, carry, PolicyInput(observation=inputs[0], first=inputs[1]))
    )
    carries, log_probs = [jax.tree.map(lambda leaf: leaf + 0.5, policy.initial_carry((num_envs,)))], []
    for t in range(num_steps):
        carry, distribution = step(carries[-1], observation[t], first[t])
        carries.append(carry)
        log_probs.append(distribution.log_prob(action[t]))
    transition = Transition(
        observation=observation,
        action=action,
        behavior_log_prob=jnp.stack(log_probs),
        reward=jnp.asarray(generator.normal(size=shape), jnp.float32),
        terminated=jnp.concatenate([first[1:], first[:1]]),
        truncated=jnp.zeros(shape, bool),
        next_observation=jnp.roll(observation, -1, axis=0),
        first=first,
    )
    return Rollout(transition=transition, carry=jax.tree.map(lambda *leaves: jnp.stack(leaves), *carries))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "lengths"),
    [(GRU(hidden_size=4), (None, 2)), (LRU(hidden_size=4, state_size=3), (4,))],
    ids=["gru", "lru"],
)
def test_sequences_stay_whole_and_start_from_their_carries(memory, lengths):
    """At a learning rate of zero the policy is the one that acted, if every step sees what it saw then."""
    made = make_actor_critic(Box((3,)), Discrete(2), encoder=MLP(()), memory=memory, shared=True)
    generator = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(generator.normal(size=leaf.shape), jnp.float32), jax.eval_shape(made.init, KEY)
    )
    rollout = episodes(as_policy(made), params)

    def measure(sequence_length):
        options = {"num_minibatches": 2, "num_epochs": 2, "normalize_advantages": False}
        learner = make_ppo(made, optax.sgd(0.0), sequence_length=sequence_length, **options)
        return learner.update(learner.init(KEY, params), KEY, rollout)[1]

    measured = jax.jit(lambda: [measure(length) for length in lengths])()
    for metrics in measured:
        assert float(metrics["approximate_kl"]) < 1e-7 and float(metrics["clip_fraction"]) == 0.0
        for name in set(metrics) - {"gradient_norm", "approximate_kl"}:
            np.testing.assert_allclose(metrics[name], measured[0][name], rtol=1e-3, atol=1e-5, err_msg=name)
    # Shorter sequences cut the gradient through time.
    norms = {float(metrics["gradient_norm"]) for metrics in measured}
    assert len(norms) == len(lengths)


def apply_sum(params, carry, inputs):
    """The value is `params` times the sum of the observations of the episode."""

    def step(total, step_inputs):
        observation, first = step_inputs
        total = jnp.where(first, 0.0, total) + observation
        return total, total

    carry, total = jax.lax.scan(step, carry, (inputs.observation, inputs.first))
    return carry, Categorical(logits=jnp.zeros((*total.shape, 2))), params * total


def column(values, dtype=jnp.float32):
    """Returns `[T, 1]`."""
    return jnp.asarray(values, dtype)[:, None]


@pytest.mark.exhaustive
def test_recurrent_values_of_successors_use_the_carry_after_the_step():
    made = ActorCritic(init=lambda key: jnp.float32(2.0), initial_carry=jnp.zeros, apply=apply_sum)
    transition = make_transition(
        observation=column([1.0, 10.0, 100.0]),
        action=column([0, 0, 0], jnp.int32),
        behavior_log_prob=jnp.full((3, 1), jnp.log(0.5)),
        truncated=column([0, 1, 0], bool),
        next_observation=column([10.0, 20.0, 200.0]),
        first=column([0, 0, 1], bool),
    )
    # The carry before the rollout is 5, and 100 is the first observation of a new episode.
    rollout = Rollout(transition=transition, carry=column([5.0, 6.0, 16.0, 100.0]))
    learner = make_ppo(
        made,
        optax.sgd(0.0),
        num_epochs=1,
        num_minibatches=1,
        normalize_advantages=False,
        entropy_coefficient=0.0,
        trace_decay=0.0,
        discount=1.0,
    )
    _, metrics = jax.jit(learner.update)(learner.init(KEY), KEY, rollout)
    value = 2.0 * np.array([6.0, 16.0, 100.0])
    next_value = 2.0 * np.array([16.0, 36.0, 300.0])
    np.testing.assert_allclose(metrics["value_loss"], 0.5 * np.mean((next_value - value) ** 2), rtol=1e-5)
    np.testing.assert_allclose(metrics["policy_loss"], -np.mean(next_value - value), rtol=1e-5)
