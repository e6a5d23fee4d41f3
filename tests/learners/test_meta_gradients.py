"""Meta-gradients against finite differences, by hand, and where a discount that is too low loses the prize."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.environments.timesteps import first_timestep
from jaxagents.learners.meta_gradients import (
    halves,
    make_agent,
    open_squared_loss,
    policy_gradient_objective,
    with_meta_gradients,
)
from jaxagents.learners.ppo import make_ppo, values_of
from jaxagents.losses.policy_gradient import policy_gradient_loss
from jaxagents.networks.torsos import MLP
from jaxagents.ops.advantages import generalized_advantage
from jaxagents.policies.actor_critic import as_policy, make_actor_critic
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.training.program import make_program, run_updates
from jaxagents.types import Box, Discrete, Learner, TimeStep
from tests.fakes import make_rollout, make_world

KEY = jax.random.key(0)
A2C = {"num_epochs": 1, "num_minibatches": 1, "normalize_advantages": False, "loss": policy_gradient_loss}


def make_patience():
    """Returns a world in which 0.3 is paid for action 0 at once, and 1 three steps after action 1."""

    def show(state):
        return jax.nn.one_hot(state, 4)

    def step(key, state, action):
        at_once = (state == 0) & (action == 0)
        reward = jnp.where(at_once, 0.3, jnp.where(state == 3, 1.0, 0.0))
        over = at_once | (state == 3)
        after = TimeStep(observation=show(state + 1), reward=reward, terminated=over, truncated=jnp.zeros((), bool))
        return state + 1, after

    return make_world(lambda key, task: (jnp.int32(0), first_timestep(show(0))), step, Box((4,)), Discrete(2), 4)


WORLD = make_patience()
NETWORK = make_actor_critic(WORLD.observation_space, WORLD.action_space, encoder=MLP((8,)))


@pytest.fixture(scope="module")
def rollout():
    collector = make_rollout_collector(WORLD, as_policy(NETWORK), num_envs=8, num_steps=8)
    params = NETWORK.init(KEY)
    return jax.jit(collector.collect)(collector.init(KEY, params), params, KEY)[1]


@pytest.mark.parametrize("optimizer", [optax.sgd(1.0), optax.adam(0.05, eps_root=1e-2)], ids=["sgd", "adam"])
def test_gradients_are_finite_differences_through_the_update(rollout, optimizer):
    earlier, later = halves(rollout)

    def objective(params, rollout):
        # Without anything that stops gradients, which differences would see.
        distribution, value, _ = values_of(NETWORK, params, rollout)
        log_prob = distribution.log_prob(rollout.transition.action)
        return jnp.mean(jnp.square(value - 0.5) - (rollout.transition.reward - 0.2) * log_prob)

    inner = make_ppo(NETWORK, optimizer, discount=0.6, trace_decay=0.7, value_loss=open_squared_loss, **A2C)
    # An optimiser that keeps the gradient in its state.
    keep = optax.GradientTransformation(
        init=lambda params: params,
        update=lambda grads, state, params=None: (jax.tree.map(jnp.zeros_like, grads), grads),
    )
    learner = with_meta_gradients(inner, objective, keep)
    state = learner.init(KEY)
    found = jax.jit(learner.update)(state, KEY, rollout)[0].opt_state

    @jax.jit
    def value(discount, trace_decay):
        numbers = state.inner.settings.numbers | {"discount": discount, "trace_decay": trace_decay}
        key = jax.random.split(KEY)[0]
        after, _ = inner.update(
            state.inner.replace(settings=state.inner.settings.replace(numbers=numbers)), key, earlier
        )
        return objective(after.params, later)

    start, step = {"discount": 0.6, "trace_decay": 0.7}, 2e-2
    for name, share in start.items():
        high, low = (value(**{**start, name: share + sign * step}) for sign in (1.0, -1.0))
        # The slope of a sigmoid is p (1 - p).
        expected = float(high - low) / (2.0 * step) * share * (1.0 - share)
        assert abs(expected) > 1e-5
        np.testing.assert_allclose(found[name], expected, rtol=0.03, err_msg=name)


def test_the_objective_is_the_gradient_of_the_policy_alone(rollout):
    params, numbers = NETWORK.init(KEY), {"discount": 0.9, "trace_decay": 0.8}
    grads = jax.grad(policy_gradient_objective, argnums=1)(NETWORK, params, rollout, **numbers)
    assert all(float(jnp.abs(leaf).max()) == 0.0 for leaf in jax.tree.leaves(grads["critic"]))
    # Of the logits of one state, the gradient is the mean of A (p - chosen).
    transition = rollout.transition
    distribution, value, next_value = values_of(NETWORK, params, rollout)
    ends = transition.terminated, transition.truncated
    advantage = generalized_advantage(transition.reward, value, next_value, *ends, **numbers)
    chosen = jax.nn.one_hot(transition.action, 2)
    expected = jnp.mean(advantage[..., None] * (jnp.exp(distribution.log_probs()) - chosen), axis=(0, 1))
    bias = grads["actor"]["head"]["params"]["Dense_0"]["bias"]
    np.testing.assert_allclose(bias, expected, rtol=1e-4, atol=1e-6)


def test_a_meta_step_by_hand():
    """Updates add the discount s to the parameter p, of which the square counts: `2 (p + s) s (1 - s)` per logit."""
    state_of = make_ppo(NETWORK, optax.sgd(0.1), **A2C).init(KEY)
    numbers = state_of.settings.replace(numbers={"discount": jnp.float32(0.25)})
    start = state_of.replace(params=jnp.float32(0.5), settings=numbers)

    def add(state, key, batch):
        del key, batch
        return state.replace(params=state.params + state.settings.numbers["discount"]), {}

    inner = Learner(init=lambda key, start_=None: start, update=add)
    learner = with_meta_gradients(
        inner, lambda params, rollout: jnp.square(params), optax.sgd(1.0), learned=["discount"]
    )
    state, metrics = learner.update(learner.init(KEY), KEY, make_rollout((2, 1)))
    logit = np.log(0.25 / 0.75) - 2.0 * 0.75 * 0.25 * 0.75
    discount = 1.0 / (1.0 + np.exp(-logit))
    np.testing.assert_allclose(state.logits["discount"], logit, rtol=1e-6)
    np.testing.assert_allclose(metrics["discount"], discount, rtol=1e-6)
    np.testing.assert_allclose(metrics["meta_objective"], 0.75**2, rtol=1e-6)
    np.testing.assert_allclose(state.params, 0.75 + discount, rtol=1e-6)


def test_halves_keep_the_carries_before_their_steps():
    earlier, later = halves(make_rollout(reward=jnp.arange(4.0)[:, None], carry=jnp.arange(5.0)[:, None]))
    np.testing.assert_array_equal(earlier.transition.reward[:, 0], [0, 1])
    np.testing.assert_array_equal(later.transition.reward[:, 0], [2, 3])
    np.testing.assert_array_equal(earlier.carry[:, 0], [0, 1, 2])
    np.testing.assert_array_equal(later.carry[:, 0], [2, 3, 4])


@pytest.mark.exhaustive
def test_a_discount_that_is_too_low_rises_until_waiting_pays():
    """0.5^3 is less than 0.3: with a discount of 0.5 the prize is left, and 0.67 would be enough."""

    def train(meta_rate):
        agent = make_agent(
            WORLD,
            policy=partial(make_actor_critic, encoder=MLP((16,))),
            optimizer=lambda steps: optax.adam(1e-2, eps_root=1e-8),
            meta_optimizer=lambda steps: optax.adam(meta_rate),
            learned=["discount"],
            discount=0.5,
            entropy_coefficient=0.05,
            **A2C,
        )
        collector = make_rollout_collector(WORLD, agent.policy, num_envs=32, num_steps=16)
        program = make_program(collector, agent.make_learner(collector, 150))
        state, metrics = jax.jit(partial(run_updates, program, num_updates=150))(program.init(KEY))
        last = jax.jit(program.update)(state)[1]
        return float(last["rollout/episode_return"].value), float(last["train/discount"])

    assert train(0.0)[0] < 0.5
    reached, discount = train(5e-2)
    assert reached > 0.85 and discount > 0.67, (reached, discount)


def test_what_does_not_fit_is_refused(rollout):
    inner = make_ppo(NETWORK, optax.sgd(0.1), **A2C)
    objective = partial(policy_gradient_objective, NETWORK)
    with pytest.raises(ValueError, match="`learned` must name a hyper-parameter, got none"):
        with_meta_gradients(inner, objective, optax.sgd(0.1), learned=[])
    with pytest.raises(ValueError, match=r"must be hyper-parameters without schedules, got \['decay'\]; try \['clip"):
        with_meta_gradients(inner, objective, optax.sgd(0.1), learned=["decay"]).init(KEY)
    with pytest.raises(ValueError, match="`num_steps` must be even to be halved, got 7; try 8"):
        halves(jax.tree.map(lambda leaf: leaf[:-1], rollout))
    with pytest.raises(ValueError, match="`policy` must have a critic for meta-gradients, got a Policy without one"):
        make_agent(
            WORLD,
            policy=lambda *spaces: as_policy(NETWORK),
            optimizer=lambda steps: optax.sgd(0.1),
            meta_optimizer=lambda steps: optax.sgd(0.1),
        )
