"""Imitation against the gradient by hand, an expert's labels, and what goes with which batches."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import log_softmax, softmax

from jaxagents.data.buffers import make_uniform_buffer
from jaxagents.data.datasets import make_dataset_collector
from jaxagents.environments.adapters.gymnax import make_environment
from jaxagents.learners.imitation import make_agent, make_imitation
from jaxagents.losses.imitation import squared_distance
from jaxagents.networks.torsos import MLP
from jaxagents.ops.distributions import Categorical, TanhNormal
from jaxagents.policies.actor_critic import make_actor_critic
from jaxagents.policies.scripted import make_cartpole_expert
from jaxagents.rollouts.demonstrations import make_demonstrations, make_labelled_collector
from jaxagents.training.program import make_program
from jaxagents.types import Policy
from tests.fakes import make_sample

KEY = jax.random.key(0)
CARTPOLE = make_environment("CartPole-v1")
DATA = make_demonstrations(CARTPOLE, make_cartpole_expert(), num_rows=4, num_steps=16)
MAKE = partial(
    make_agent,
    CARTPOLE,
    policy=partial(make_actor_critic, encoder=MLP((8,))),
    optimizer=lambda num_updates: optax.adam(1e-2),
)
LOGITS = Policy(
    init=lambda key: jnp.zeros(3),
    initial_carry=lambda shape: (),
    apply=lambda params, carry, inputs: (carry, Categorical(logits=jnp.broadcast_to(params, (*inputs.first.shape, 3)))),
)


def test_one_step_is_the_gradient_of_the_likelihood_by_hand():
    action, weight = np.array([[0, 0, 1, 2]]), np.array([1.0, 1.0, 2.0, 0.0])
    batch = make_sample((1, 4), observation=jnp.zeros((1, 4, 1)), action=jnp.asarray(action), weight=weight)
    start = jnp.array([0.3, -0.2, 0.1])
    learner = make_imitation(LOGITS, optax.sgd(0.5))
    state, metrics = jax.jit(learner.update)(learner.init(KEY, start), KEY, batch)
    chosen = np.eye(3)[action[0]]
    gradient = (weight[:, None] * (softmax(start) - chosen)).mean(0)
    np.testing.assert_allclose(state.params, np.asarray(start) - 0.5 * gradient, rtol=1e-5)
    np.testing.assert_allclose(metrics["loss"], -(weight * log_softmax(start)[action[0]]).mean(), rtol=1e-5)


def test_distances_are_means_over_the_numbers_of_squashed_actions():
    distribution = TanhNormal(loc=jnp.arctanh(jnp.array([[0.5, -0.5]])), scale=jnp.ones((1, 2)))
    action = jnp.arctanh(jnp.array([[0.25, 0.5]]))
    np.testing.assert_allclose(squared_distance(distribution, action), [0.5 * (0.0625 + 1.0)], rtol=1e-5)


@pytest.mark.slow
def test_it_imitates_a_data_set_in_one_program():
    agent = MAKE()
    collector = make_dataset_collector(CARTPOLE, agent.policy, dataset=DATA, batch_size=32)
    program = make_program(collector, agent.make_learner(collector, 60))
    update, state = jax.jit(program.update), program.init(KEY)
    losses = []
    for _ in range(60):
        state, metrics = update(state)
        losses.append(float(metrics["train/loss"]))
    assert update._cache_size() == 1
    assert np.mean(losses[:5]) > 0.5 > 0.4 > np.mean(losses[-10:])


def test_labels_are_the_experts_whatever_the_policy_does():
    agent, expert = MAKE(buffer=make_uniform_buffer(capacity=64, batch_size=4)), make_cartpole_expert()
    collector = make_labelled_collector(CARTPOLE, agent.policy, expert=expert, num_envs=2, num_steps=8)
    params = agent.policy.init(KEY)
    _, rollout, _ = jax.jit(collector.collect)(collector.init(KEY, params), params, KEY)
    gains = np.array([0.5, 1.0, 15.0, 3.0])
    np.testing.assert_array_equal(rollout.transition.action, np.asarray(rollout.transition.observation) @ gains > 0)


def test_samples_and_rollouts_are_not_taken_for_each_other():
    data = make_dataset_collector(CARTPOLE, None, dataset=DATA, batch_size=4)
    with pytest.raises(ValueError, match="`buffer` must be null where batches are samples of a data set"):
        MAKE(buffer=make_uniform_buffer(capacity=64, batch_size=4)).make_learner(data, 1)
    agent = MAKE()
    played = make_labelled_collector(CARTPOLE, agent.policy, expert=make_cartpole_expert(), num_envs=2, num_steps=2)
    with pytest.raises(ValueError, match="`buffer` must be given where batches are rollouts, got null; try collector"):
        agent.make_learner(played, 1)
    with pytest.raises(ValueError, match="`updates_per_rollout` must be 1 without a buffer, got 4"):
        MAKE(updates_per_rollout=4)
