"""Rewards of a discriminator: by hand, as the learner inside gets them, and what they say of who played."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct

from jaxagents.learners.adversarial import with_discriminator
from jaxagents.losses.imitation import discriminator_loss, gail_reward
from jaxagents.networks.torsos import MLP
from jaxagents.types import REPLICATED, Array, Box, Collector, Discrete, Learner, Rollout, Sample, Transition
from jaxagents.values.discriminator import Discriminator, make_discriminator

KEY = jax.random.key(0)
SLOPE = Discriminator(init=lambda key: jnp.float32(0.0), apply=lambda params, seen, action: params * seen[..., 0])


@struct.dataclass
class Heard:
    params: Array


LISTENER = Learner(
    init=lambda key, start=None: Heard(params=jnp.zeros((2, 3))),
    update=lambda state, key, batch: (Heard(params=batch.transition.reward), {"loss": jnp.float32(0.0)}),
)


def transition(observation):
    nothing = jnp.zeros(observation.shape)
    return Transition(
        observation=observation[..., None],
        action=nothing.astype(jnp.int32),
        behavior_log_prob=nothing,
        reward=nothing - 9.0,
        terminated=nothing > 0,
        truncated=nothing > 0,
        next_observation=observation[..., None],
        first=nothing > 0,
    )


ROLLOUT = Rollout(transition=transition(jnp.array([[-1.0, -2.0, -3.0], [-1.0, -2.0, 3.0]])), carry=())
DATA = Collector(
    init=lambda key, params: jnp.zeros(2),
    collect=lambda state, params, key: (state, Sample(transition(jnp.array([[1.0, 3.0]])), jnp.ones(2)), {}),
    steps_per_collect=2,
)


def test_losses_and_rewards():
    logit = np.array([-1.0, 0.0, 2.0])
    probability = 1.0 / (1.0 + np.exp(-logit))
    np.testing.assert_allclose(discriminator_loss(logit, logit)[0], -np.log(probability), rtol=1e-6)
    np.testing.assert_allclose(discriminator_loss(logit, logit)[1], -np.log(1.0 - probability), rtol=1e-6)
    np.testing.assert_allclose(gail_reward(logit), -np.log(1.0 - probability), rtol=1e-6)


@pytest.mark.parametrize("reward", [gail_reward, lambda logit: 3.0 * logit])
def test_the_learner_inside_is_paid_by_the_new_discriminator(reward):
    """Observations are 2 on average where they are demonstrated, and -1 where they are played: the slope rises by
    a half of 2 + 1, at a rate of 0.1, from zero."""
    learner = with_discriminator(LISTENER, SLOPE, optax.sgd(0.1), DATA, reward=reward)
    state, metrics = jax.jit(learner.update)(learner.init(KEY), KEY, ROLLOUT)
    np.testing.assert_allclose(state.discriminator, 0.1 * 0.5 * (2.0 + 1.0), rtol=1e-5)
    np.testing.assert_allclose(state.params, reward(0.15 * ROLLOUT.transition.observation[..., 0]), rtol=1e-5)
    np.testing.assert_allclose(metrics["discriminator_loss"], 2.0 * np.log(2.0), rtol=1e-5)
    axes = learner.partition(state)
    assert axes.demonstrations == 0 and axes.discriminator == REPLICATED


def test_more_steps_tell_them_apart():
    learner = with_discriminator(LISTENER, SLOPE, optax.adam(0.1), DATA, num_steps=50)
    _, metrics = learner.update(learner.init(KEY), KEY, ROLLOUT)
    assert float(metrics["discriminator_accuracy"]) > 0.8
    with pytest.raises(ValueError, match="`num_steps` must be at least 1, got 0"):
        with_discriminator(LISTENER, SLOPE, optax.adam(0.1), DATA, num_steps=0)


def test_discriminators_see_actions():
    for space, actions in ((Discrete(3), [0, 2]), (Box((1,), -1.0, 1.0), [[0.0], [1.0]])):
        judge = make_discriminator(Box((2,)), space, encoder=MLP((8,)))
        logits = judge.apply(judge.init(KEY), jnp.zeros((2, 2)), jnp.asarray(actions))
        assert logits.shape == (2,) and float(logits[0]) != float(logits[1])
    with pytest.raises(ValueError, match="`action_space` must be Discrete or a bounded Box of rank 1"):
        make_discriminator(Box((2,)), Box((1,)), encoder=MLP((8,)))
