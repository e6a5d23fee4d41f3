"""PPG: when its auxiliary phase comes, what it changes, and what it leaves as it was."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.environments import tmaze
from jaxagents.learners.ppg import make_agent
from jaxagents.networks.recurrent import GRU
from jaxagents.networks.torsos import MLP
from jaxagents.ops.returns import lambda_returns
from jaxagents.policies.actor_critic import make_actor_critic
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.types import PolicyInput

KEY = jax.random.key(0)
WORLD = tmaze.make_environment(2)
PERIOD = 2


def make(axis_name=None, policy_rate=0.0, rate=0.1, **options):
    """Returns an agent; the first optimiser that it makes is that of the policy phase."""
    optimizers = iter([policy_rate, rate])
    policy = partial(make_actor_critic, encoder=MLP((8,)), shared=True)
    sizes = {"num_minibatches": 2, "auxiliary_period": PERIOD, "auxiliary_epochs": 1, "auxiliary_minibatches": 1}
    return make_agent(
        WORLD,
        policy=options.pop("policy", policy),
        optimizer=lambda num_steps: optax.sgd(next(optimizers)),
        axis_name=axis_name,
        **(sizes | options),
    )


def start(agent):
    collector = make_rollout_collector(WORLD, agent.policy, num_envs=4, num_steps=6)
    learner = agent.make_learner(collector, 8)
    state = learner.init(KEY)
    collect = jax.jit(collector.collect)
    world = collector.init(KEY, state.params)
    rollouts = []
    for index in range(PERIOD):
        world, rollout, _ = collect(world, state.params, jax.random.fold_in(KEY, index))
        rollouts.append(rollout)
    return learner, state, rollouts


@pytest.mark.slow
def test_one_phase_by_its_definition():
    """A step of gradient descent on values and divergence of both rollouts, of which the policy phase changes none."""
    learner, state, rollouts = start(make())
    update = jax.jit(learner.update)
    first, metrics = update(state, KEY, rollouts[0])
    assert float(metrics["auxiliary_loss"].count) == 0.0
    jax.tree.map(np.testing.assert_array_equal, first.params, state.params)
    second, metrics = update(first, KEY, rollouts[1])
    network = make_actor_critic(WORLD.observation_space, WORLD.action_space, encoder=MLP((8,)), shared=True)
    carry = network.initial_carry((4,))

    def values(params, observation):
        inputs = PolicyInput(observation=observation, first=jnp.zeros(observation.shape[:2], bool))
        return network.apply(params, carry, inputs)[2]

    def loss(params):
        losses = []
        for rollout in rollouts:
            seen = rollout.transition
            following = values(state.params, seen.next_observation)
            target = lambda_returns(
                seen.reward, seen.terminated, seen.truncated, following, discount=0.99, trace_decay=0.95
            )
            losses.append(0.5 * jnp.square(values(params, seen.observation) - target))
        return jnp.mean(jnp.stack(losses))

    # The divergence from the policy itself has no slope at the start of the phase.
    expected, slope = jax.value_and_grad(loss)(state.params)
    np.testing.assert_allclose(metrics["auxiliary_loss"].value, expected, rtol=1e-5)
    moved = jax.tree.map(lambda old, slope: old - 0.1 * slope, state.params, slope)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), second.params, moved)
    # The value teaches the torso of the policy.
    assert any(np.any(leaf) for leaf in jax.tree.leaves(slope["actor"]["torso"]))


def test_the_policy_phase_trains_no_torso_by_the_value():
    policy = partial(make_actor_critic, encoder=MLP((8,)), shared=True)
    network = policy(WORLD.observation_space, WORLD.action_space, detach_value=True)
    inputs = PolicyInput(observation=jnp.ones((1, 2, 4)), first=jnp.ones((1, 2), bool))
    carry = network.initial_carry((2,))
    slope = jax.grad(lambda params: network.apply(params, carry, inputs)[2].sum())(network.init(KEY))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(slope["actor"]))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(slope["critic"]))


@pytest.mark.exhaustive
def test_devices_agree_with_one_device():
    options = {"policy_rate": 0.05, "auxiliary_minibatches": 2, "auxiliary_epochs": 2}
    alone, state, rollouts = start(make(**options))
    learner, *_ = start(make(axis_name="device", **options))
    one, update = state, jax.jit(alone.update)
    for rollout in rollouts:
        one, _ = update(one, KEY, rollout)
    memory = jax.tree.map(lambda leaf: jnp.stack(jnp.split(leaf, 2, axis=2)), state.memory)
    halves = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state).replace(memory=memory)
    many = jax.jit(jax.vmap(learner.update, (0, None, 0), axis_name="device"))
    for rollout in rollouts:
        parts = jax.tree.map(lambda leaf: jnp.stack(jnp.split(leaf, 2, axis=1)), rollout)
        halves, _ = many(halves, KEY, parts)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, jnp.stack([b, b]), rtol=1e-3, atol=1e-6), halves.params, one.params
    )


@pytest.mark.slow
def test_seeds_side_by_side_compute_no_phase_before_it_is_due():
    learner, state, rollouts = start(make(policy_rate=0.05))
    states = jax.vmap(learner.init)(jax.random.split(KEY, 2))
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), rollouts[0])
    update = jax.vmap(learner.update, (0, None, 0))
    choices = [eqn for eqn in jax.make_jaxpr(update)(states, KEY, both).eqns if eqn.primitive.name == "cond"]
    assert len(choices) == 1 and choices[0].invars[0].aval.shape == ()


def test_a_run_shorter_than_a_period_has_rates_that_decay():
    options = {"auxiliary_period": 16, "auxiliary_epochs": 2, "auxiliary_minibatches": 3}
    policy = partial(make_actor_critic, encoder=MLP((8,)), shared=True)
    sizes = []
    agent = make_agent(
        WORLD, policy=policy, optimizer=lambda num_steps: sizes.append(num_steps) or optax.sgd(0.1), **options
    )
    agent.make_learner(make_rollout_collector(WORLD, agent.policy, num_envs=4, num_steps=4), 3)
    assert sizes[-1] == 2 * 3  # One phase's steps, though none comes: a schedule over none is refused.


@pytest.mark.parametrize("options", [{"memory": GRU(hidden_size=4), "shared": True}, {"shared": False}])
def test_policies_with_memory_or_two_torsos_are_refused(options):
    with pytest.raises(ValueError, match="`policy` must be an actor-critic of one torso without memory for PPG"):
        make(policy=partial(make_actor_critic, encoder=MLP((8,)), **options))
