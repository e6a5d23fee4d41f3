"""SAC on problems with one step, whose best action is known, and on targets worked out by hand."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.data.buffers import make_uniform_buffer
from jaxagents.learners.replay import with_replay
from jaxagents.learners.sac import make_agent, make_sac
from jaxagents.losses.mpo import mpo
from jaxagents.losses.q import deterministic_actor_loss, single_critic_loss, single_q_target, twin_q_target
from jaxagents.networks.heads import TanhNormalHead
from jaxagents.networks.recurrent import GRU
from jaxagents.networks.torsos import MLP
from jaxagents.ops.distributions import TanhNormal, greedy_action, smoothed_action
from jaxagents.ops.schedules import linear_schedule
from jaxagents.policies.actor_critic import act, make_policy
from jaxagents.types import (
    Box,
    Collector,
    Discrete,
    Policy,
    PolicyInput,
    Rollout,
    Sample,
    Stateful,
)
from jaxagents.values.q_function import TwinQ, make_twin_q
from tests.fakes import make_transition, make_world

KEY = jax.random.key(0)
STATES = Box((1,))
ACTIONS = Box((1,), -2.0, 2.0)
HEAD = TanhNormalHead(action_dim=1, state_dependent_scale=True)
POLICY = make_policy(STATES, ACTIONS, encoder=MLP((16,), "relu"), head=HEAD)
TWIN_Q = make_twin_q(STATES, ACTIONS, encoder=MLP((32,), "relu"))

# Critics `offset_i + slope action`, and a policy of one location with the scale 0.1, whatever the observation.
LINEAR_Q = TwinQ(
    init=lambda key: {"offset": jnp.array([3.0, 5.0]), "slope": jnp.array([2.0, 2.0])},
    apply=lambda params, observation, action: (
        params["offset"][:, None] + params["slope"][:, None] * action[None, ..., 0]
    ),
)


def _constant(params, carry, inputs):
    loc = jnp.broadcast_to(params, (*inputs.observation.shape[:-1], 1))
    return carry, TanhNormal(loc=loc, scale=jnp.full_like(loc, 0.1), low=-2.0, high=2.0)


CONSTANT_POLICY = Policy(init=lambda key: jnp.float32(0.5), initial_carry=lambda shape: (), apply=_constant)


MPO = {
    "improve": mpo,
    "target": twin_q_target,
    "target_policy": True,
    "initial_temperature": {"temperature": 1.0, "loc": 1.0, "scale": 10.0},
    "num_actions": 3,
}


def transitions(observation, action, reward, terminated, truncated):
    """Returns sequences with leaves `[n, B, ...]` from arrays `[n, B]`."""
    return make_transition(
        observation=observation[..., None],
        action=action[..., None],
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        first=jnp.ones(reward.shape, bool),
    )


def sample(reward, terminated, truncated, weight=1.0):
    reward = jnp.asarray(reward, jnp.float32)[:, None]
    flags = [jnp.asarray(flag, bool)[:, None] for flag in (terminated, truncated)]
    return Sample(
        transition=transitions(jnp.zeros(reward.shape), jnp.ones(reward.shape), reward, *flags),
        weight=jnp.full(1, weight),
    )


def make_linear(**options):
    rates = optax.sgd(0.01), optax.sgd(0.1), optax.sgd(0.1)
    return make_sac(CONSTANT_POLICY, LINEAR_Q, *rates, ACTIONS, **({"discount": 0.5} | options))


@pytest.mark.slow
def test_solves_a_bandit_in_one_program():
    """The best action is the observation itself; the entropy settles at its target."""

    def rollout(key):
        observation_key, action_key = jax.random.split(key)
        observation = jax.random.uniform(observation_key, (1, 64), minval=-1.0)
        action = jax.random.uniform(action_key, (1, 64), minval=-1.99, maxval=1.99)
        flags = jnp.ones((1, 64), bool), jnp.zeros((1, 64), bool)
        # Actions of policies are those before their squashing to (-2, 2).
        transition = transitions(
            observation, jnp.arctanh(0.5 * action), -4.0 * jnp.square(action - observation), *flags
        )
        return Rollout(transition=transition, carry=())

    sac = make_sac(POLICY, TWIN_Q, *[optax.adam(5e-3)] * 3, ACTIONS)
    buffer = make_uniform_buffer(capacity=64 * 12, batch_size=64)
    learner = with_replay(sac, buffer, rollout(KEY), updates_per_rollout=50)
    update, state = jax.jit(learner.update, donate_argnums=0), learner.init(KEY)
    for index in range(12):
        rollout_key, update_key = jax.random.split(jax.random.fold_in(KEY, index))
        state, metrics = update(state, update_key, rollout(rollout_key))
    assert update._cache_size() == 1
    observation = jnp.linspace(-0.9, 0.9, 7)[:, None]
    _, distribution = act(POLICY, state.params, (), PolicyInput(observation=observation, first=jnp.ones(7, bool)))
    np.testing.assert_allclose(2.0 * jnp.tanh(distribution.mode()), observation, atol=0.2)
    np.testing.assert_allclose(metrics["entropy"].value, math.log(2.0) - 1.0, atol=0.3)


@pytest.mark.parametrize(
    ("terminated", "truncated", "bootstrap", "reward"),
    [([0, 0], [0, 0], 0.25, 2.0), ([0, 1], [0, 0], 0.0, 2.0), ([0, 0], [1, 0], 0.5, 1.0), ([1, 0], [0, 0], 0.0, 1.0)],
)
def test_targets_at_ends_by_hand(terminated, truncated, bootstrap, reward):
    learner = make_linear()
    state = learner.init(KEY)
    state = state.replace(target_critic={"offset": jnp.array([7.0, 4.0]), "slope": jnp.zeros(2)})
    _, metrics = learner.update(state, KEY, sample([1.0, 2.0], terminated, truncated))
    _, distribution = act(
        CONSTANT_POLICY, state.params, (), PolicyInput(observation=jnp.zeros((1, 1)), first=jnp.ones(1, bool))
    )
    next_key, _ = jax.random.split(KEY)
    log_prob = distribution.log_prob(distribution.sample(jax.random.fold_in(next_key, 0)))
    target = reward + bootstrap * (4.0 - 1.0 * float(log_prob[0]))
    # The critics say 5 and 7 of the action 1.
    expected = 0.5 * (abs(5.0 - target) + abs(7.0 - target))
    np.testing.assert_allclose(metrics["priority"], [expected], rtol=1e-5)
    np.testing.assert_allclose(metrics["critic_loss"], 0.5 * ((5.0 - target) ** 2 + (7.0 - target) ** 2), rtol=1e-5)


def test_agent_acts_with_the_parameters_of_its_learner():
    agent = make_agent(
        make_world(None, None, STATES, ACTIONS, 1),
        policy=lambda observation_space, action_space: POLICY,
        value=lambda observation_space, action_space: TWIN_Q,
        policy_optimizer=lambda num_steps: optax.sgd(0.1),
        q_optimizer=lambda num_steps: optax.sgd(0.1),
        temperature_optimizer=lambda num_steps: optax.sgd(0.1),
        buffer=make_uniform_buffer(capacity=8, batch_size=2),
        normalize_observations=True,
    )
    rollout = Rollout(transition=sample([1.0, 2.0], [0, 0], [0, 0]).transition, carry=())
    learner = agent.make_learner(
        Collector(init=lambda key, params: (), collect=lambda *state: (*state[:1], rollout, {}), steps_per_collect=2),
        10,
    )
    state, metrics = jax.jit(learner.update)(learner.init(KEY), KEY, rollout)
    assert float(metrics["critic_loss"].count) == 1.0
    assert jax.tree.structure(agent.policy.init(KEY)) == jax.tree.structure(state.params)


def test_every_part_moves_the_right_way():
    learner = make_linear(target_update_rate=0.25)
    before = learner.init(KEY)
    after, _ = learner.update(before, KEY, sample([100.0], [1], [0]))
    assert np.all(after.critic["offset"] > before.critic["offset"])  # Towards the target of 100.
    assert float(after.params) > float(before.params)  # The critics rise with the action.
    np.testing.assert_allclose(
        after.target_critic["offset"], 0.75 * before.critic["offset"] + 0.25 * after.critic["offset"], rtol=1e-6
    )


@pytest.mark.parametrize(("target_entropy", "sign"), [(5.0, 1.0), (-20.0, -1.0)])
def test_temperature_moves_the_entropy_to_its_target(target_entropy, sign):
    learner = make_linear(target_entropy=target_entropy)
    state, _ = learner.update(learner.init(KEY), KEY, sample([0.0], [1], [0]))
    assert sign * float(state.log_temperature) > 0.0


def test_losses_and_targets_are_slots_whose_numbers_are_arrays():
    """Critics say 5 and 7 of the action; of the target 9, absolute errors times 3 are 18."""

    def absolute(q, target, *, scale):
        return scale * jnp.sum(jnp.abs(q - target[None]), axis=0)

    learner = make_linear(
        critic_loss=partial(absolute, scale=3.0),
        actor_loss=lambda q, log_prob, temperature: q[0],  # Upside down: the policy avoids what is valued.
        target=lambda reward, discount, next_q, next_log_prob, temperature: reward + 8.0,
    )
    before = learner.init(KEY)
    after, metrics = learner.update(before, KEY, sample([1.0], [0], [0]))
    np.testing.assert_allclose(metrics["critic_loss"], 18.0, rtol=1e-6)
    assert float(before.settings.numbers["critic_loss"]["scale"]) == 3.0
    assert float(after.params) < float(before.params)


@pytest.mark.parametrize(
    ("trainable", "learning"),
    [
        ({"policy": False, "critic": True, "temperature": True}, {"offset", "slope", "temperature"}),
        ({"policy": True, "critic": {"offset": False, "slope": True}, "temperature": False}, {"policy", "slope"}),
        (lambda parts: {name: name == "policy" for name in parts}, {"policy"}),
    ],
)
def test_what_is_not_trainable_stays_and_takes_no_room_in_optimisers(trainable, learning):
    def parts(state):
        return {"policy": state.params, **state.critic, "temperature": state.log_temperature}

    learner = make_sac(CONSTANT_POLICY, LINEAR_Q, *[optax.adam(0.1)] * 3, ACTIONS, trainable=trainable)
    before = learner.init(KEY)
    after, _ = jax.jit(learner.update)(before, KEY, sample([100.0], [1], [0]))
    same = jax.tree.map(lambda old, new: bool(np.array_equal(old, new)), parts(before), parts(after))
    assert {name for name, is_same in same.items() if not is_same} == learning
    # A count for each of the three, and two moments of what learns.
    assert len(jax.tree.leaves(after.opt_states)) == 3 + 2 * len(learning)


def test_trainable_must_fit_the_parts():
    with pytest.raises(ValueError, match="`trainable` must be a prefix pytree of bool of the parameters"):
        make_linear(trainable={"policy": True}).init(KEY)


def test_numbers_may_be_schedules_and_slots_may_remember():
    """A target entropy that falls from 5 to -20 turns the temperature; the targets count what they saw."""
    counting = Stateful(
        init=lambda num_updates: jnp.float32(num_updates),
        apply=lambda memory, reward, *others: (reward + memory, jnp.float32(reward.size)),
        update=lambda memory, summary: memory + summary,
    )
    learner = make_linear(
        target_entropy=linear_schedule(start=5.0, end=-20.0, num_updates=1), target=counting, num_updates=3
    )
    update, before = jax.jit(learner.update), learner.init(KEY)
    first, metrics = update(before, KEY, sample([1.0], [0], [0]))
    # Critics say 5 and 7 of the action; the target is 1 + 3.
    np.testing.assert_allclose(metrics["critic_loss"], 0.5 * (1.0 + 9.0), rtol=1e-6)
    second, _ = update(first, KEY, sample([1.0], [0], [0]))
    assert float(before.log_temperature) < float(first.log_temperature) > float(second.log_temperature)
    assert float(second.settings.memory["target"]) == 5.0 and update._cache_size() == 1


DETERMINISTIC = {
    "target": twin_q_target,
    "actor_loss": deterministic_actor_loss,
    "action": greedy_action,
    "next_action": greedy_action,
    "target_policy": True,
}


def test_deterministic_targets_follow_the_target_policy_by_hand():
    """Target critics say 7 and 4 plus the action, which is -1 for the target policy."""
    target_critic = {"offset": jnp.array([7.0, 4.0]), "slope": jnp.ones(2)}
    for target, worth in ((twin_q_target, 3.0), (single_q_target, 6.0)):
        learner = make_linear(**(DETERMINISTIC | {"target": target}))
        state = learner.init(KEY).replace(target_critic=target_critic, target_params=jnp.float32(-1.0))
        _, metrics = jax.jit(learner.update)(state, KEY, sample([1.0], [0], [0]))
        # The critics say 5 and 7 of the action 1.
        expected = abs(5.0 - (1.0 + 0.5 * worth)) + abs(7.0 - (1.0 + 0.5 * worth))
        np.testing.assert_allclose(metrics["priority"], [0.5 * expected], rtol=1e-6)


def test_delayed_policies_and_targets_move_every_other_time():
    learner = make_linear(**DETERMINISTIC, policy_period=2, target_period=2, target_update_rate=0.5)
    update, state, moved = jax.jit(learner.update), learner.init(KEY), []
    for _ in range(4):
        after, _ = update(state, KEY, sample([100.0], [1], [0]))
        parts = ("params", "target_params", "target_critic", "critic")
        moved.append([not np.array_equal(*map(_first, (getattr(state, p), getattr(after, p)))) for p in parts])
        state = after
    assert moved == [[False, False, False, True], [True, True, True, True]] * 2 and update._cache_size() == 1
    assert float(state.params) > float(state.target_params) > 0.5


def test_rates_fall_over_the_run_where_the_policy_moves_now_and_then():
    """The critics stay, and rise by 2 with the action: the policy moves by 2 in units of the rate that is due."""
    fall = optax.chain(optax.scale_by_schedule(optax.linear_schedule(1.0, 0.0, 10)), optax.sgd(0.1))
    learner = make_sac(CONSTANT_POLICY, LINEAR_Q, fall, optax.sgd(0.0), fall, ACTIONS, policy_period=5, **DETERMINISTIC)
    update, state, steps = jax.jit(learner.update), learner.init(KEY), []
    for _ in range(10):
        after, _ = update(state, KEY, sample([1.0], [1], [0]))
        steps.append(float(after.params - state.params))
        state = after
    np.testing.assert_allclose(steps, [0.0] * 4 + [0.2 * 0.6] + [0.0] * 4 + [0.2 * 0.1], atol=1e-6)


def _first(tree):
    return jax.tree.leaves(tree)[0]


def test_one_critic_of_ddpg_learns_alone():
    learner = make_linear(**(DETERMINISTIC | {"critic_loss": single_critic_loss, "target": single_q_target}))
    before = learner.init(KEY)
    after, _ = jax.jit(learner.update)(before, KEY, sample([100.0], [1], [0]))
    moved = np.asarray(after.critic["offset"] != before.critic["offset"])
    np.testing.assert_array_equal(moved, [True, False])


@pytest.mark.parametrize(
    "options", [{"next_action": smoothed_action, "policy_period": 2}, {"critic_loss": single_critic_loss}]
)
def test_deterministic_policies_solve_a_bandit(options):
    """The best action is the observation itself."""

    def rollout(key):
        observation_key, action_key = jax.random.split(key)
        observation = jax.random.uniform(observation_key, (1, 64), minval=-1.0)
        action = jax.random.uniform(action_key, (1, 64), minval=-1.99, maxval=1.99)
        reward = -4.0 * jnp.square(action - observation)
        flags = jnp.ones((1, 64), bool), jnp.zeros((1, 64), bool)
        return Rollout(transition=transitions(observation, jnp.arctanh(0.5 * action), reward, *flags), carry=())

    td3 = make_sac(POLICY, TWIN_Q, *[optax.adam(5e-3)] * 3, ACTIONS, **(DETERMINISTIC | options))
    learner = with_replay(
        td3, make_uniform_buffer(capacity=64 * 12, batch_size=64), rollout(KEY), updates_per_rollout=50
    )
    update, state = jax.jit(learner.update, donate_argnums=0), learner.init(KEY)
    for index in range(12):
        rollout_key, update_key = jax.random.split(jax.random.fold_in(KEY, index))
        state, _ = update(state, update_key, rollout(rollout_key))
    assert update._cache_size() == 1
    observation = jnp.linspace(-0.9, 0.9, 7)[:, None]
    _, distribution = act(POLICY, state.params, (), PolicyInput(observation=observation, first=jnp.ones(7, bool)))
    np.testing.assert_allclose(2.0 * jnp.tanh(distribution.mode()), observation, atol=0.25)


def test_weights_scale_the_critic_loss():
    losses = [
        float(make_linear().update(make_linear().init(KEY), KEY, sample([9.0], [1], [0], weight))[1]["critic_loss"])
        for weight in (1.0, 0.25)
    ]
    np.testing.assert_allclose(losses[1], 0.25 * losses[0], rtol=1e-6)


@pytest.mark.parametrize("name", ["sac", "td3", "mpo"])
def test_rows_without_weight_change_nothing(name):
    """Of two rows, the second one has weight 0, such as a step behind an imagined end."""
    options = {"sac": {}, "td3": DETERMINISTIC, "mpo": MPO}[name]
    learner = make_sac(POLICY, TWIN_Q, *[optax.sgd(0.1)] * 3, ACTIONS, **options)
    update, before = jax.jit(learner.update), learner.init(KEY)
    flags, weight, states = jnp.zeros((1, 2), bool), jnp.array([1.0, 0.0]), []
    for other in (0.25, 3.0):
        numbers = jnp.array([[0.5, other]])
        batch = Sample(transition=transitions(numbers, numbers, numbers, flags, flags), weight=weight)
        states.append(update(before, KEY, batch)[0])
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), *states)
    assert not np.array_equal(_first(before.params), _first(states[0].params))


def test_target_entropy_defaults_to_the_paper_and_follows_the_units():
    for space, expected in ((Box((3,), -1.0, 1.0), -3.0), (Box((1,), 0.0, 4.0), math.log(2.0) - 1.0)):
        learner = make_sac(CONSTANT_POLICY, LINEAR_Q, optax.sgd(1.0), optax.sgd(1.0), optax.sgd(1.0), space)
        np.testing.assert_allclose(learner.init(KEY).settings.numbers["target_entropy"], expected, rtol=1e-6)


def test_init_keeps_given_parameters_and_holds_no_buffer_twice():
    learner = make_linear()
    state = learner.init(KEY, jnp.float32(0.75))
    assert float(state.params) == 0.75
    jax.jit(learner.update, donate_argnums=0)(state, KEY, sample([0.0], [1], [0]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_linear(discount=-0.1), "`discount` must be in"),
        (lambda: make_linear(policy_period=0), "`policy_period` must be at least 1, got 0"),
        (lambda: make_linear(initial_temperature=0.0), "`initial_temperature` must be positive"),
        (
            lambda: make_sac(POLICY, TWIN_Q, optax.sgd(1.0), optax.sgd(1.0), optax.sgd(1.0), Discrete(2)),
            "`action_space` must be a bounded Box",
        ),
        (
            lambda: make_sac(
                make_policy(STATES, ACTIONS, encoder=MLP((4,)), memory=GRU(4)), TWIN_Q, *[optax.sgd(1.0)] * 3, ACTIONS
            ),
            "`policy` must be feed-forward",
        ),
    ],
)
def test_refuses_what_it_cannot_train(make, message):
    with pytest.raises(ValueError, match=message):
        make()
