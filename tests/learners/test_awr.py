"""AWR: PPO's learner over a replay buffer, with regression to the better actions."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.data.buffers import make_uniform_buffer
from jaxagents.environments import tmaze
from jaxagents.learners.awr import make_agent
from jaxagents.losses.policy_gradient import advantage_weighted_loss
from jaxagents.networks.recurrent import GRU
from jaxagents.networks.torsos import MLP
from jaxagents.policies.actor_critic import make_actor_critic

KEY = jax.random.key(0)


def test_better_actions_weigh_more_up_to_a_bound():
    log_prob, advantage = jnp.array([-1.0, -2.0, -3.0]), jnp.array([0.0, -1.0, 1000.0])
    options = {"temperature": 0.5, "max_weight": 20.0}
    loss = partial(advantage_weighted_loss, **options)
    np.testing.assert_allclose(loss(log_prob, 0.0, advantage), [1.0, 2.0 * np.exp(-2.0), 60.0], rtol=1e-6)
    slope = jax.grad(lambda log_prob: loss(log_prob, 0.0, advantage).sum())(log_prob)
    np.testing.assert_allclose(slope, [-1.0, -np.exp(-2.0), -20.0], rtol=1e-6)


def make(memory=None):
    return make_agent(
        tmaze.make_environment(2),
        policy=partial(make_actor_critic, encoder=MLP((8,)), memory=memory, shared=True),
        optimizer=lambda num_steps: optax.adam(1e-3),
        buffer=make_uniform_buffer(capacity=64, batch_size=4, sequence_length=3),
        updates_per_rollout=2,
        loss=partial(advantage_weighted_loss, temperature=1.0, max_weight=20.0),
    )


def test_policies_with_memory_are_refused():
    with pytest.raises(ValueError, match="`policy` must be an actor-critic without memory for AWR"):
        make(GRU(hidden_size=4))
