"""Offline actor-critics on linear critics whose steps are known by hand, and on a bandit of fixed data."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.learners.offline import OfflineState, make_offline_actor_critic
from jaxagents.losses.offline import (
    advantage_weighted_policy_loss,
    behavior_cloning_policy_loss,
    calibrated_gap,
    calibrated_sum,
    conservative_sum,
    soft_policy_loss,
    state_value_target,
)
from jaxagents.networks.recurrent import GRU
from jaxagents.networks.torsos import MLP
from jaxagents.ops.distributions import TanhNormal, greedy_action, smoothed_action
from jaxagents.policies.actor_critic import make_policy
from jaxagents.types import Box, Policy, Sample
from jaxagents.values.q_function import TwinQ
from jaxagents.values.state_value import StateValue
from tests.fakes import make_sample

KEY = jax.random.key(0)
ACTIONS = Box((1,), -2.0, 2.0)
# Critics `offset_i + slope action`, a policy of one location with the scale 0.1, and one value of all states.
LINEAR_Q = TwinQ(
    init=lambda key: {"offset": jnp.array([3.0, 5.0]), "slope": jnp.array([2.0, 2.0])},
    apply=lambda params, observation, action: (
        params["offset"][:, None] + params["slope"][:, None] * action[None, ..., 0]
    ),
)
ONE_VALUE = StateValue(
    init=lambda key: jnp.float32(4.0), apply=lambda params, seen: jnp.broadcast_to(params, seen.shape[:-1])
)


def _constant(params, carry, inputs):
    loc = jnp.broadcast_to(params, (*inputs.observation.shape[:-1], 1))
    return carry, TanhNormal(loc=loc, scale=jnp.full_like(loc, 0.1), low=-2.0, high=2.0)


POLICY = Policy(init=lambda key: jnp.float32(0.5), initial_carry=lambda shape: (), apply=_constant)
TD3 = {"action": greedy_action, "next_action": partial(smoothed_action, scale=0.0), "policy_period": 2}
ALGORITHMS = {
    "td3_bc": TD3 | {"policy_loss": behavior_cloning_policy_loss},
    "cql": {"critic_term": partial(conservative_sum, coefficient=0.2), "policy_loss": soft_policy_loss},
    "cal_ql": {"critic_term": partial(calibrated_sum, coefficient=0.2), "policy_loss": soft_policy_loss},
    "co_rft": TD3
    | {
        "critic_term": partial(calibrated_gap, coefficient=0.02),
        "policy_loss": behavior_cloning_policy_loss,
    },
    "iql": {"target": state_value_target},
    "awac": {"policy_loss": partial(advantage_weighted_policy_loss, inverse_temperature=3.0)},
}


def make(name="awac", rates=(0.01, 0.1), **options):
    state_value = ONE_VALUE if name == "iql" else None
    optimizers = [optax.sgd(rate) for rate in rates]
    return make_offline_actor_critic(
        POLICY, LINEAR_Q, state_value, *optimizers, ACTIONS, **(ALGORITHMS[name] | {"discount": 0.5} | options)
    )


def sample(action=(1.0,), reward=(1.0,), terminated=(False,), return_to_go=(0.0,)):
    shape = (1, len(reward))
    nothing = jnp.zeros(shape)
    return make_sample(
        weight=jnp.ones(len(reward)),
        observation=nothing[..., None],
        action=jnp.asarray(action, jnp.float32).reshape(*shape, 1),
        reward=jnp.asarray(reward, jnp.float32)[None],
        terminated=jnp.asarray(terminated)[None],
        first=nothing == 0,
        extras={"return_to_go": jnp.asarray(return_to_go, jnp.float32)[None]},
    )


def test_values_of_states_by_hand():
    """Critics say 5 and 7 of the action; the value 4 is below, and the target of the critics is 1 + 0.5 (4 + 0.14)."""
    learner = make("iql")
    before = learner.init(KEY)
    after, metrics = jax.jit(learner.update)(before, KEY, sample())
    value = 4.0 + 0.1 * 2.0 * 0.7 * (5.0 - 4.0)
    np.testing.assert_allclose(after.value, value, rtol=1e-6)
    target = 1.0 + 0.5 * value
    np.testing.assert_allclose(metrics["critic_loss"], 0.5 * ((5 - target) ** 2 + (7 - target) ** 2), rtol=1e-5)
    np.testing.assert_allclose(after.critic["offset"], [3 - 0.1 * (5 - target), 5 - 0.1 * (7 - target)], rtol=1e-5)
    # The weight exp(3 (5 - value)) of the likelihood's slope (action - location) / scale^2.
    np.testing.assert_allclose(after.params, 0.5 + 0.01 * np.exp(3 * (5 - value)) * 0.5 / 0.01, rtol=1e-4)


def test_deterministic_targets_and_policies_by_hand():
    """Of the greedy action 0.5, target critics say 4 and 6; the policy moves in every second update."""
    learner = make("td3_bc")
    update, before = jax.jit(learner.update), learner.init(KEY)
    first, metrics = update(before, KEY, sample())
    target = 1.0 + 0.5 * 4.0
    np.testing.assert_allclose(metrics["priority"], [0.5 * (abs(5 - target) + abs(7 - target))], rtol=1e-5)
    assert float(first.params) == 0.5 and float(first.target_params) == 0.5
    second, _ = update(first, KEY, sample())
    slope, offset = second.critic["slope"][0], second.critic["offset"][0]
    value = slope * 2.5 / abs(offset + slope * 0.5)
    distance = 2 * (np.tanh(0.5) - np.tanh(1.0)) * (1 - np.tanh(0.5) ** 2)
    np.testing.assert_allclose(second.params, 0.5 + 0.01 * (value - distance), rtol=1e-5)
    assert update._cache_size() == 1


@pytest.mark.exhaustive
def test_unseen_actions_are_held_down_and_the_datas_up():
    """All else equal, the term turns the slopes of critics towards the action of the data."""
    for name in ("cql", "cal_ql"):
        gains = []
        for action in (2.0, -2.0):
            state, _ = make(name, discount=0.0).update(
                make(name).init(KEY),
                KEY,
                sample(action=[action], reward=[0.0], terminated=[True], return_to_go=[-99.0]),
            )
            plain, _ = make("awac", discount=0.0).update(
                make("awac").init(KEY), KEY, sample(action=[action], reward=[0.0], terminated=[True])
            )
            gains.append(np.asarray(state.critic["slope"] - plain.critic["slope"]))
        assert np.all(gains[0] > gains[1]), name


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.slow
def test_it_finds_the_best_actions_of_the_data_in_one_program(name):
    """Rewards are highest at 0.5 and no action above 0.6 is in the data, whose mean is far below."""
    action = jnp.linspace(-1.5, 0.6, 64)
    batch = sample(action, -4.0 * jnp.square(action - 0.5), jnp.ones(64, bool), -4.0 * jnp.square(action - 0.5))
    quadratic = TwinQ(
        init=lambda key: {"best": jnp.array([0.0, 0.1]), "height": jnp.zeros(2)},
        apply=lambda params, seen, action: (
            params["height"][:, None] - 4.0 * jnp.square(action[None, ..., 0] - params["best"][:, None])
        ),
    )
    learner = make_offline_actor_critic(
        POLICY, quadratic, ONE_VALUE if name == "iql" else None, *[optax.adam(0.02)] * 2, ACTIONS, **ALGORITHMS[name]
    )
    update, state = jax.jit(learner.update), learner.init(KEY).replace(params=jnp.float32(-1.0))
    for index in range(300):
        state, _ = update(state, jax.random.fold_in(KEY, index), batch)
    assert update._cache_size() == 1
    assert abs(float(state.params) - 0.5) < 0.45, float(state.params)


@pytest.mark.exhaustive
def test_what_was_learned_survives_a_change_of_stage():
    learner = make("iql")
    state, _ = learner.update(learner.init(KEY), KEY, sample())
    later = learner.init(KEY, state)
    assert isinstance(later, OfflineState) and int(later.num_updates) == 0
    for name in ("params", "critic", "value", "target_critic"):
        jax.tree.map(np.testing.assert_array_equal, getattr(later, name), getattr(state, name))


@pytest.mark.parametrize("name", ["awac", "iql"])
def test_advantages_are_of_critics_of_one_kind(name):
    """AWAC: both by the online critics, so that a constant cancels; IQL: target critics minus the state's value."""
    learner = make(name, rates=(0.01, 0.0), action=greedy_action)  # The critics stay as they are.
    update, state = jax.jit(learner.update), learner.init(KEY)

    def policy_after(**changes):
        raised = {
            key: {**getattr(state, key), "offset": getattr(state, key)["offset"] + c} for key, c in changes.items()
        }
        return float(update(state.replace(**raised), KEY, sample())[0].params)

    plain = policy_after()
    np.testing.assert_allclose(policy_after(critic=1.0), plain, rtol=1e-6)
    targets = policy_after(target_critic=1.0)
    assert targets == plain if name == "awac" else targets > plain
    # Online critics say 5 of the data's action, and 4 of the policy's, or of the state: the weight is exp(3 (5 - 4)).
    np.testing.assert_allclose(plain, 0.5 + 0.01 * np.exp(3.0) * 0.5 / 0.01, rtol=1e-4)


def test_steps_without_weight_change_nothing():
    """Of two steps, the second one has weight 0; `td3_bc` divides values by their mean magnitude."""
    seeing = LINEAR_Q._replace(
        apply=lambda params, observation, action: (
            LINEAR_Q.apply(params, observation, action) + observation[None, ..., 0]
        )
    )
    for name in ("td3_bc", "awac", "iql", "cql"):
        options = ALGORITHMS[name] | {"discount": 0.5, "policy_period": 1}
        rates = optax.sgd(0.01), optax.sgd(0.1)
        learner = make_offline_actor_critic(
            POLICY, seeing, ONE_VALUE if name == "iql" else None, *rates, ACTIONS, **options
        )
        update, before = jax.jit(learner.update), learner.init(KEY)
        states = []
        for other in (0.0, 1.5):
            batch = sample((1.0, other), (1.0, other), (False, False), (0.0, 0.0))
            seen = batch.transition.observation.at[0, 1].set(other)
            batch = Sample(transition=batch.transition.replace(observation=seen), weight=jnp.array([1.0, 0.0]))
            states.append(update(before, KEY, batch)[0])
        jax.tree.map(np.testing.assert_array_equal, *states)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="`num_sampled` must be at least 1, got 0"):
        make(num_sampled=0)
    with pytest.raises(ValueError, match=r"`discount` must be in \[0, 1\], got 1.5"):
        make(discount=1.5)
    recurrent = make_policy(Box((1,)), ACTIONS, encoder=MLP((4,)), memory=GRU(4))
    with pytest.raises(ValueError, match="`policy` must be feed-forward, got one with a carry"):
        make_offline_actor_critic(recurrent, LINEAR_Q, None, optax.sgd(0.1), optax.sgd(0.1), ACTIONS)
