"""DQN on a corridor whose action values are known."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.data.buffers import make_prioritized_buffer, make_uniform_buffer
from jaxagents.learners.dqn import make_agent, make_dqn
from jaxagents.learners.replay import with_replay
from jaxagents.ops.schedules import linear_schedule
from jaxagents.policies.actor_critic import act
from jaxagents.policies.epsilon_greedy import make_epsilon_greedy
from jaxagents.types import Box, Collector, Discrete, PolicyInput, Rollout, Sample, Stateful, Transition
from jaxagents.values.q_function import QFunction
from tests.fakes import make_transition, make_world, with_numbers

KEY = jax.random.key(0)
NUM_STATES = 4
# One table of values, [states, actions].
TABLE = QFunction(
    init=lambda key: jnp.zeros((NUM_STATES, 2)),
    apply=lambda params, carry, inputs: (carry, inputs.observation @ params),
)


def corridor():
    """Returns every step of a corridor of four states, one per environment: right (1) at the end gives 1 and ends."""
    state, action = (grid.reshape(1, -1) for grid in np.meshgrid(np.arange(NUM_STATES), np.arange(2), indexing="ij"))
    next_state = np.clip(state + 2 * action - 1, 0, NUM_STATES - 1)
    terminated = (state == NUM_STATES - 1) & (action == 1)
    return Transition(
        observation=jnp.asarray(np.eye(NUM_STATES, dtype=np.float32)[state]),
        action=jnp.asarray(action, jnp.int32),
        behavior_log_prob=jnp.full(state.shape, jnp.log(0.5)),
        reward=jnp.asarray(terminated, jnp.float32),
        terminated=jnp.asarray(terminated),
        truncated=jnp.ones(state.shape, bool) & ~jnp.asarray(terminated),
        next_observation=jnp.asarray(np.eye(NUM_STATES, dtype=np.float32)[next_state]),
        first=jnp.ones(state.shape, bool),
    )


CORRIDOR = corridor()
# With a discount of 0.5: right from state s is worth 0.5^(3 - s), left the discounted best of the state before.
EXPECTED = np.array([[0.0625, 0.125], [0.0625, 0.25], [0.125, 0.5], [0.25, 1.0]])


def weighted(transition, weight=1.0):
    return Sample(transition=transition, weight=jnp.full(transition.reward.shape[1], weight))


@pytest.mark.slow
@pytest.mark.parametrize("make_buffer", [make_uniform_buffer, make_prioritized_buffer])
def test_learns_the_values_of_the_corridor_in_one_program(make_buffer):
    batch = Rollout(transition=CORRIDOR, carry=())
    epsilon = linear_schedule(start=1.0, end=0.05, num_updates=1_000)
    dqn = make_dqn(TABLE, optax.adam(0.05), discount=0.5, target_update_rate=0.2, epsilon=epsilon)
    learner = with_replay(dqn, make_buffer(capacity=800, batch_size=8), batch, updates_per_rollout=20)
    update, state = jax.jit(learner.update, donate_argnums=0), learner.init(KEY)
    for index in range(50):
        state, metrics = update(state, jax.random.fold_in(KEY, index), batch)
    assert update._cache_size() == 1
    np.testing.assert_allclose(state.params["network"], EXPECTED, atol=0.03)
    assert float(metrics["loss"].value) < 1e-3
    policy = make_epsilon_greedy(TABLE)
    _, distribution = act(
        policy, state.params, (), PolicyInput(observation=jnp.eye(NUM_STATES), first=jnp.ones(NUM_STATES, bool))
    )
    np.testing.assert_array_equal(distribution.mode(), 1)
    np.testing.assert_allclose(jnp.exp(distribution.log_prob(jnp.ones(NUM_STATES, int))), 0.975, rtol=1e-5)


def one_step(observation, action, reward, terminated, truncated, next_observation):
    """Returns a sequence of one-hot states of one environment, leaves `[n, 1, ...]`."""
    eye = np.eye(NUM_STATES, dtype=np.float32)
    column = lambda values, dtype: jnp.asarray(values, dtype)[:, None]  # noqa: E731
    return make_transition(
        observation=jnp.asarray(eye[observation])[:, None],
        action=column(action, jnp.int32),
        reward=column(reward, jnp.float32),
        terminated=column(terminated, bool),
        truncated=column(truncated, bool),
        next_observation=jnp.asarray(eye[next_observation])[:, None],
    )


NETWORK = jnp.arange(8.0).reshape(NUM_STATES, 2)


def updated(transition, *, weight=1.0, target=None, extras=None, **options):
    """Takes one step of plain gradient descent of rate 1 from `NETWORK`."""
    learner = make_dqn(TABLE, optax.sgd(1.0), **({"discount": 0.5, "huber_delta": 1e6} | options))
    state = learner.init(KEY, {"network": NETWORK, "epsilon": jnp.float32(0.0)})
    state = state.replace(target_network=NETWORK if target is None else target)
    transition = transition.replace(extras=extras or {})
    return learner.update(state, KEY, weighted(transition, weight))


@pytest.mark.exhaustive
def test_loss_and_target_are_slots_whose_numbers_are_arrays():
    """Half of half the square of the error to the reward alone, 3, goes half of the way there from 1."""

    def scaled(value, target, *, scale):
        return 0.5 * scale * jnp.square(value - target)

    learner = make_dqn(TABLE, optax.sgd(1.0), loss=partial(scaled, scale=0.5), target=lambda view: view.reward)
    state = learner.init(KEY, {"network": NETWORK})
    assert float(state.settings.numbers["loss"]["scale"]) == 0.5
    state, _ = learner.update(state, KEY, weighted(one_step([0], [1], [3.0], [0], [0], [1])))
    np.testing.assert_allclose(state.network, NETWORK.at[0, 1].set(2.0), rtol=1e-6)


@pytest.mark.parametrize(
    ("terminated", "truncated", "target"),
    [
        ([0, 0, 0], [0, 0, 0], 1.0 + 0.5 * 2.0 + 0.25 * 4.0 + 0.125 * 7.0),  # Bootstraps from state 3.
        ([0, 1, 0], [0, 0, 0], 1.0 + 0.5 * 2.0),
        ([0, 0, 0], [0, 1, 0], 1.0 + 0.5 * 2.0 + 0.25 * 5.0),  # Bootstraps from state 2, the true successor.
    ],
)
def test_n_step_targets_at_ends_by_hand(terminated, truncated, target):
    transition = one_step([0, 1, 0], [1, 1, 0], [1.0, 2.0, 4.0], terminated, truncated, [1, 2, 3])
    state, metrics = updated(transition)
    # Q(0, 1) is 1; a gradient step of rate 1 on half the square takes the whole error, and changes nothing else.
    np.testing.assert_allclose(state.network, NETWORK.at[0, 1].set(target), rtol=1e-6)
    np.testing.assert_allclose(metrics["priority"], [abs(target - 1.0)], rtol=1e-6)


def test_double_selects_by_the_online_network():
    transition = one_step([0], [0], [0.0], [0], [0], [2])
    target = NETWORK.at[2].set(jnp.array([10.0, 2.0]))
    for double, value in ((True, 2.0), (False, 10.0)):
        state, _ = updated(transition, double=double, target=target)
        np.testing.assert_allclose(state.network[0, 0], 0.5 * value)


def test_mask_of_the_successor_restricts_the_maximum():
    transition = one_step([0], [0], [0.0], [0], [0], [2])
    state, _ = updated(transition, extras={"next_action_mask": jnp.array([[[True, False]]])})
    np.testing.assert_allclose(state.network[0, 0], 0.5 * 4.0)


def test_the_opponent_values_the_successor_where_the_perspective_changes():
    transition = one_step([0], [0], [1.0], [0], [0], [2])
    state, _ = updated(transition, extras={"perspective": jnp.array([[-1.0]])})
    np.testing.assert_allclose(state.network[0, 0], 1.0 - 0.5 * 5.0)


@pytest.mark.parametrize("normalize_observations", [False, True])
def test_agent_acts_with_what_its_learner_learns(normalize_observations):
    steps = []
    agent = make_agent(
        make_world(None, None, Box((NUM_STATES,)), Discrete(2), 1),
        value=lambda observation_space, action_space: TABLE,
        optimizer=lambda num_steps: steps.append(num_steps) or optax.adam(0.05),
        buffer=make_uniform_buffer(capacity=80, batch_size=8),
        updates_per_rollout=5,
        normalize_observations=normalize_observations,
        epsilon=0.0,
    )
    rollout = Rollout(transition=CORRIDOR, carry=())
    learner = agent.make_learner(
        Collector(init=lambda key, params: (), collect=lambda *state: (*state[:1], rollout, {}), steps_per_collect=8),
        10,
    )
    assert steps[-1] == 50
    state, _ = jax.jit(learner.update)(learner.init(KEY), KEY, rollout)
    assert jax.tree.structure(agent.policy.init(KEY)) == jax.tree.structure(state.params)
    _, distribution = act(
        agent.policy, state.params, (), PolicyInput(observation=jnp.eye(NUM_STATES), first=jnp.ones(NUM_STATES, bool))
    )
    assert int(distribution.mode()[-1]) == 1


def test_weights_scale_the_step_and_huber_bounds_it():
    transition = one_step([0], [0], [8.0], [1], [0], [0])
    assert float(updated(transition, weight=0.25)[0].network[0, 0]) == 2.0
    assert float(updated(transition, huber_delta=1.0)[0].network[0, 0]) == 1.0


def test_target_network_moves_by_the_rate_in_the_period():
    transition = one_step([0], [0], [8.0], [1], [0], [0])
    state, _ = updated(transition, target_update_rate=0.25)
    np.testing.assert_allclose(state.target_network, NETWORK + 0.25 * (state.network - NETWORK))
    learner = make_dqn(TABLE, optax.sgd(0.1), target_update_period=3, target_update_rate=1.0)
    state, history = learner.init(KEY), []
    for _ in range(6):
        state, _ = learner.update(state, KEY, weighted(transition))
        history.append(bool(np.array_equal(state.target_network, state.network)))
    assert history == [False, False, True, False, False, True]


def test_epsilon_falls_linearly_to_its_end():
    learner = make_dqn(TABLE, optax.sgd(0.1), epsilon=linear_schedule(start=0.9, end=0.1, num_updates=4))
    update, state, epsilons = jax.jit(learner.update), learner.init(KEY), []
    for _ in range(6):
        epsilons.append(float(state.params["epsilon"]))
        state, _ = update(state, KEY, weighted(one_step([0], [0], [8.0], [1], [0], [0])))
    np.testing.assert_allclose(epsilons, [0.9, 0.7, 0.5, 0.3, 0.1, 0.1], rtol=1e-6)


def test_slots_may_remember():
    """A target that adds how many steps were seen so far."""
    counting = Stateful(
        init=lambda num_updates: jnp.float32(num_updates),
        apply=lambda memory, view: (view.reward + memory, jnp.float32(view.reward.size)),
        update=lambda memory, summary: memory + summary,
    )
    learner = make_dqn(TABLE, optax.sgd(1.0), huber_delta=1e6, target=counting, num_updates=5)
    state = learner.init(KEY)
    for target in (7.0, 8.0):
        state, _ = learner.update(state, KEY, weighted(one_step([0], [0], [2.0], [0], [0], [1])))
        np.testing.assert_allclose(state.network[0, 0], target)


def test_hyperparameters_are_arrays_of_the_state_and_are_used():
    transition = one_step([0], [0], [0.0], [0], [0], [2])
    learner = make_dqn(TABLE, optax.sgd(1.0), huber_delta=1e6)
    update = jax.jit(learner.update)
    for discount in (0.5, 0.2):
        state = learner.init(KEY, {"network": NETWORK})
        state = with_numbers(state, discount=discount)
        np.testing.assert_allclose(update(state, KEY, weighted(transition))[0].network[0, 0], discount * 5.0, rtol=1e-6)
    assert update._cache_size() == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"discount": 1.1}, "`discount` must be in \\[0, 1\\], got 1.1"),
        ({"epsilon": linear_schedule(start=1.0, end=-0.5)}, "`epsilon` must be in \\[0, 1\\], got -0.5"),
        ({"num_steps": 0}, "`num_steps` must be at least 1, got 0"),
        ({"burn_in": -1}, "`burn_in` must not be negative, got -1"),
        ({"huber_delta": 0.0}, "`huber_delta` must be positive"),
        ({"target_update_period": 0}, "`target_update_period` must be positive"),
    ],
)
def test_refuses_numbers_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        make_dqn(TABLE, optax.sgd(0.1), **options)
