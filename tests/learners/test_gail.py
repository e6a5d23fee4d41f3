"""Rewards of a discriminator: by hand, as the learner inside gets them, and what they say of who played."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.learners.gail import with_discriminator
from jaxagents.learners.mt_csirl import make_common_reward, task_and_common
from jaxagents.losses.imitation import airl_reward, discriminator_loss, gail_reward
from jaxagents.networks.torsos import MLP
from jaxagents.ops.distributions import Categorical
from jaxagents.types import (
    REPLICATED,
    Box,
    Collector,
    Discrete,
    Policy,
    Rollout,
    Sample,
)
from jaxagents.values.discriminator import Discriminator, make_discriminator, make_reward_discriminator
from tests.fakes import LISTENER, make_transition

KEY = jax.random.key(0)
SLOPE = Discriminator(
    init=lambda key: jnp.float32(0.0),
    apply=lambda params, step, log_prob: params * step.observation[..., 0],
    absorbing=lambda params: -2.0 * params,
)


# Two actions, each as likely as the other.
EVEN = Policy(
    init=lambda key: (),
    initial_carry=lambda shape: (),
    apply=lambda params, carry, inputs: (carry, Categorical(logits=jnp.zeros((*inputs.first.shape, 2)))),
)


def transition(observation):
    nothing = jnp.zeros(observation.shape)
    return make_transition(observation=observation[..., None], action=nothing.astype(jnp.int32), reward=nothing - 9.0)


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
    learner = with_discriminator(LISTENER, SLOPE, optax.sgd(0.1), DATA, EVEN, reward=reward)
    state, metrics = jax.jit(learner.update)(learner.init(KEY), KEY, ROLLOUT)
    np.testing.assert_allclose(state.discriminator, 0.1 * 0.5 * (2.0 + 1.0), rtol=1e-5)
    np.testing.assert_allclose(state.params, reward(0.15 * ROLLOUT.transition.observation[..., 0]), rtol=1e-5)
    np.testing.assert_allclose(metrics["discriminator_loss"], 2.0 * np.log(2.0), rtol=1e-5)
    axes = learner.partition(state)
    assert axes.demonstrations == 0 and axes.discriminator == REPLICATED


def test_ends_are_followed_by_the_absorbing_state():
    """One of six played steps ends, with three absorbing steps after it: 6 + 3 steps, whose slopes are -6 and 3 * -2,
    a half of which is taken away; the demonstrations, without an end, add a half of 2: 1 + 0.5 * 12 / 9 in all."""
    learner = with_discriminator(
        LISTENER, SLOPE, optax.sgd(0.1), DATA, EVEN, reward=airl_reward, absorbing_discount=0.75
    )
    ends = jnp.zeros((2, 3), bool).at[1, 2].set(True)
    batch = ROLLOUT.replace(transition=ROLLOUT.transition.replace(terminated=ends))
    state, _ = learner.update(learner.init(KEY), KEY, batch)
    slope = 0.1 * (1.0 + 0.5 * 12.0 / 9.0)
    np.testing.assert_allclose(state.discriminator, slope, rtol=1e-5)
    paid = slope * np.array([[-1.0, -2.0, -3.0], [-1.0, -2.0, 3.0 - 3.0 * 2.0]])
    np.testing.assert_allclose(state.params, paid, rtol=1e-5)
    with pytest.raises(ValueError, match=r"`absorbing_discount` must be in \[0, 1\), got 1.0; try 0.99, or null"):
        with_discriminator(LISTENER, SLOPE, optax.sgd(0.1), DATA, EVEN, absorbing_discount=1.0)


def test_more_steps_tell_them_apart():
    learner = with_discriminator(LISTENER, SLOPE, optax.adam(0.1), DATA, EVEN, num_steps=50)
    _, metrics = learner.update(learner.init(KEY), KEY, ROLLOUT)
    assert float(metrics["discriminator_accuracy"]) > 0.8
    with pytest.raises(ValueError, match="`num_steps` must be at least 1, got 0"):
        with_discriminator(LISTENER, SLOPE, optax.adam(0.1), DATA, EVEN, num_steps=0)


def test_discriminators_see_actions():
    for space, actions in ((Discrete(3), [0, 2]), (Box((1,), -1.0, 1.0), [[0.0], [1.0]])):
        judge = make_discriminator(Box((2,)), space, encoder=MLP((8,)))
        steps = transition(jnp.zeros(2)).replace(observation=jnp.zeros((2, 2)), action=jnp.asarray(actions))
        params = judge.init(KEY)
        logits = judge.apply(params, steps, None)
        assert logits.shape == (2,) and float(logits[0]) != float(logits[1])
        # Where all else is zero, the absorbing state is still another one.
        still = judge.apply(params, steps.replace(action=jnp.zeros_like(steps.action)), None)
        assert float(judge.absorbing(params)) != float(still[0])
    with pytest.raises(ValueError, match="`action_space` must be Discrete or a bounded Box of rank 1"):
        make_discriminator(Box((2,)), Box((1,)), encoder=MLP((8,)))


def test_the_reward_of_airl_is_apart_from_its_shaping_and_from_the_policy():
    """Two steps of one episode, the second of which terminates: potentials of both states cancel, but for the end."""
    judge = make_reward_discriminator(Box((1,)), Discrete(2), encoder=MLP((8,)), discount=0.5)
    params, steps = judge.init(KEY), transition(jnp.array([1.0, 3.0]))
    steps = steps.replace(next_observation=jnp.array([[3.0], [7.0]]), terminated=jnp.array([False, True]))
    log_prob = jnp.log(jnp.array([0.5, 0.25]))
    plain = make_discriminator(Box((1,)), Discrete(2), encoder=MLP((8,))).apply(params["reward"], steps, None)
    shaped = judge.apply(params, steps, log_prob) - plain + log_prob
    # `0.5 h(3) - h(1)` and `-h(3)`: the value of 7 is not asked.
    moved = judge.apply(params, steps.replace(next_observation=jnp.array([[3.0], [-7.0]])), log_prob)
    np.testing.assert_allclose(moved, judge.apply(params, steps, log_prob), rtol=1e-6)
    first = judge.apply(params, steps.replace(terminated=jnp.array([True, True])), log_prob) - plain + log_prob
    np.testing.assert_allclose(shaped[0] - first[0], -0.5 * shaped[1], rtol=1e-4)
    np.testing.assert_allclose(airl_reward(shaped), shaped)


def test_airl_asks_the_policy_how_likely_demonstrations_are():
    """A judge that says the log-probability alone: of two equal actions it is -log 2, of those that were played 0."""
    judge = SLOPE._replace(apply=lambda params, step, log_prob: params - log_prob, asks_policy=True)
    learner = with_discriminator(LISTENER, judge, optax.sgd(0.0), DATA, EVEN, reward=airl_reward)
    state, metrics = learner.update(learner.init(KEY), KEY, ROLLOUT)
    np.testing.assert_allclose(metrics["discriminator_loss"], np.log(1.5) + np.log(2.0), rtol=1e-5)
    np.testing.assert_allclose(state.params, jnp.zeros((2, 3)))
    remembering = EVEN._replace(initial_carry=lambda shape: jnp.zeros(shape))
    with pytest.raises(ValueError, match="`policy` must be feed-forward for demonstrations of single steps"):
        with_discriminator(LISTENER, judge, optax.sgd(0.0), DATA, remembering)


def test_a_common_reward_is_paid_beside_that_of_the_task_and_kept_for_the_next_stage():
    """The slope rises to 0.15 as above; the world pays -9."""
    make = partial(with_discriminator, LISTENER, SLOPE, optax.sgd(0.1), DATA, EVEN)
    pay = partial(task_and_common, scale=2.0)
    learner, kept = make(pay=pay), make(pay=pay, frozen=True)
    state, _ = learner.update(learner.init(KEY), KEY, ROLLOUT)
    np.testing.assert_allclose(state.params, -9.0 + 2.0 * 0.15 * ROLLOUT.transition.observation[..., 0], rtol=1e-5)
    begun = kept.init(jax.random.key(1), state)
    np.testing.assert_array_equal(begun.discriminator, state.discriminator)
    fresh = jax.tree.leaves(LISTENER.init(jax.random.split(jax.random.key(1), 3)[0]))
    assert all(map(np.array_equal, jax.tree.leaves(begun.inner), fresh))
    twice = ROLLOUT.replace(transition=transition(2.0 * ROLLOUT.transition.observation[..., 0]))
    after, metrics = jax.jit(kept.update)(begun, KEY, twice)
    np.testing.assert_array_equal(after.discriminator, state.discriminator)
    np.testing.assert_allclose(after.params, -9.0 + 2.0 * 0.3 * ROLLOUT.transition.observation[..., 0], rtol=1e-5)
    assert "discriminator_loss" not in metrics


def test_a_common_reward_sees_nothing_of_the_task():
    judge = make_common_reward(Box((3,)), Box((1,), -1.0, 1.0), encoder=MLP((8,)), observed=[0, 2])
    params = judge.init(KEY)
    steps = transition(jnp.zeros(3)).replace(
        observation=jnp.array([[1.0, 5.0, 2.0], [1.0, -5.0, 2.0], [1.5, 5.0, 2.0]]), action=jnp.full((3, 1), 0.5)
    )
    reward = judge.apply(params, steps, None)
    assert reward[0] == reward[1] and reward[0] != reward[2] and judge.asks_policy
    log_prob = jnp.array([0.5, -1.0, 2.0])
    np.testing.assert_allclose(judge.apply(params, steps, log_prob), reward - log_prob, rtol=1e-6)
    with pytest.raises(ValueError, match=r"`observed` must be indices from 0 to 2 of a vector, got \[3\]"):
        make_common_reward(Box((3,)), Box((1,), -1.0, 1.0), encoder=MLP((8,)), observed=[3])
