"""The switch between independent agents and a central learner: targets by hand, and who learns from what."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.data.buffers import make_uniform_buffer
from jaxagents.environments.calls import with_calls
from jaxagents.environments.coordination import make_two_step_game
from jaxagents.environments.teams import agent_ids, team_view
from jaxagents.learners.dqn import make_dqn
from jaxagents.learners.mansa import make_agent, make_switching, see_team, split_sample
from jaxagents.learners.qmix import make_value_decomposition
from jaxagents.networks.mixers import MonotonicMixer, SumMixer
from jaxagents.networks.teams import Entry
from jaxagents.networks.torsos import MLP
from jaxagents.ops.schedules import linear_schedule
from jaxagents.rollouts.evaluate import make_evaluator
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.training.program import make_program, run_updates
from jaxagents.types import Box, Mean
from jaxagents.values.q_function import QFunction, make_q_function
from tests.fakes import make_sample, require_agreement

KEY = jax.random.key(0)
SPACE = Box((3,))
NUM_ACTIONS = 2


def table(observation_space, action_space):
    """Makes one table of values, `[size of the observation, actions]`."""
    shape = (*observation_space.shape, action_space.num_values)
    return QFunction(
        init=lambda key: jnp.zeros(shape), apply=lambda params, carry, inputs: (carry, inputs.observation @ params)
    )


AGENTS = QFunction(
    init=lambda key: jnp.zeros((3, 2)), apply=lambda params, carry, inputs: (carry, inputs.observation @ params)
)


def make_learner(optimizer=None, *, num_agents=2, axis_name=None, **options):
    optimizer = optax.sgd(1.0) if optimizer is None else optimizer
    options = {"discount": 0.5, "huber_delta": 1e6, "axis_name": axis_name} | options
    return make_switching(
        make_dqn(AGENTS, optimizer, **options),
        make_value_decomposition(
            AGENTS, SumMixer(), optimizer, num_agents=num_agents, observation_space=SPACE, **options
        ),
        make_dqn(see_team(table, num_agents, SPACE), optimizer, **options),
        num_actions=NUM_ACTIONS,
        switching_cost=0.25,
        axis_name=axis_name,
    )


def two_steps(num_agents=2, **changes):
    """Returns two steps of two environments, from place 0 to 2: one calls in the first, the other in the second."""
    place = jnp.eye(3)[jnp.array([0, 1, 2])]

    def of_all(values):
        return jnp.broadcast_to(values[:, None, None], (2, 2, num_agents, 3))

    action = jnp.array([[[2, 3], [0, 1]], [[1, 0], [3, 3]]], jnp.int32)[..., :num_agents]
    sample = make_sample(
        weight=jnp.array([1.0, 0.5]),
        observation=of_all(place[:2]),
        action=action,
        reward=jnp.array([[[1.0, 3.0], [4.0, 6.0]], [[10.0, 30.0], [40.0, 60.0]]])[..., :num_agents],
        next_observation=of_all(place[1:]),
        first=jnp.zeros((2, 2), bool),
    )
    return sample.replace(transition=sample.transition.replace(**changes))


# Of the switch, by place: not to call, to call; both agents see the place, so every value counts twice.
SWITCH = jnp.concatenate([jnp.array([[1.0, 2.0], [3.0, 5.0], [7.0, 9.0]])] * 2) / 2
TERMINATED = jnp.array([[False, True], [False, False]])
ONLY_ALONE = jnp.ones((2, 2, 2, 4), bool).at[:, 0, :, 2:].set(False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "errors"),
    [
        # The first pays 0.25 at once, the second half of it a step later; then a quarter of the best of place 2.
        ({}, [2.0 - 0.25 + 0.5 * 20.0 + 0.25 * 9.0 - 2.0, 5.0 + 0.5 * (50.0 - 0.25) + 0.25 * 9.0 - 1.0]),
        ({"terminated": TERMINATED}, [2.0 - 0.25 + 0.5 * 20.0 + 0.25 * 9.0 - 2.0, 5.0 - 1.0]),
        # Truncated after the first step: the value of place 1.
        ({"truncated": TERMINATED}, [2.0 - 0.25 + 0.5 * 20.0 + 0.25 * 9.0 - 2.0, 5.0 + 0.5 * 5.0 - 1.0]),
        # No call is left to the first: its successor is worth 7.
        (
            {"extras": {"next_action_mask": ONLY_ALONE}},
            [2.0 - 0.25 + 0.5 * 20.0 + 0.25 * 7.0 - 2.0, 5.0 + 0.5 * (50.0 - 0.25) + 0.25 * 9.0 - 1.0],
        ),
        # The second agent of the first environment only pads: it has no reward.
        (
            {"extras": {"agent_mask": jnp.ones((2, 2, 2), bool).at[:, 0, 1].set(False)}},
            [1.0 - 0.25 + 0.5 * 10.0 + 0.25 * 9.0 - 2.0, 5.0 + 0.5 * (50.0 - 0.25) + 0.25 * 9.0 - 1.0],
        ),
    ],
    ids=["two steps", "terminated", "truncated", "no call left", "padded"],
)
@pytest.mark.parametrize("double", [True, False])
def test_errors_of_the_switch_by_hand(double, changes, errors):
    samples, call = split_sample(two_steps(**changes), num_actions=NUM_ACTIONS, switching_cost=0.25)
    learner = make_dqn(see_team(table, 2, SPACE), optax.sgd(0.0), discount=0.5, double=double)
    state = learner.init(KEY, {"network": SWITCH})
    _, metrics = learner.update(state, KEY, samples["switch"])
    np.testing.assert_allclose(metrics["priority"], errors, rtol=1e-6)
    np.testing.assert_array_equal(call, [True, False])


def test_agents_learn_the_actions_of_the_world_from_their_own_steps():
    mask = jnp.ones((2, 2, 2, 4), bool).at[:, :, 0, 1::2].set(False).at[:, 0, :, 2:].set(False)
    samples, _ = split_sample(
        two_steps(extras={"next_action_mask": mask}), num_actions=NUM_ACTIONS, switching_cost=0.25
    )
    np.testing.assert_array_equal(samples["independent"].weight, [0.0, 0.5])
    np.testing.assert_array_equal(samples["team"].weight, [1.0, 0.0])
    np.testing.assert_array_equal(samples["switch"].weight, [1.0, 0.5])
    for name in ("independent", "team"):
        transition = samples[name].transition
        np.testing.assert_array_equal(transition.action, [[[0, 1], [0, 1]], [[1, 0], [1, 1]]])
        np.testing.assert_array_equal(transition.extras["next_action_mask"], [[[[1, 0], [1, 1]]] * 2] * 2)
    np.testing.assert_array_equal(samples["switch"].transition.action, [[1, 0], [0, 1]])
    np.testing.assert_array_equal(
        samples["switch"].transition.extras["next_action_mask"], [[[True, False], [True, True]]] * 2
    )


UPDATE = jax.jit(make_learner().update)


def moved(action):
    """Returns whose parameters an update on these actions of both environments changes."""
    batch = two_steps(action=jnp.asarray(action, jnp.int32))
    state = make_learner().init(KEY)
    new, _ = UPDATE(state, KEY, batch)
    return {
        name: any(
            bool(jnp.any(before != after))
            for before, after in zip(
                jax.tree.leaves(state.params[name]["network"]), jax.tree.leaves(part["network"]), strict=True
            )
        )
        for name, part in new.params.items()
    }


def test_no_gradient_flows_from_the_steps_of_the_other():
    alone, called = [[0, 1], [1, 0]], [[2, 3], [3, 2]]
    assert moved([alone, called]) == {"independent": True, "team": False, "switch": True}
    assert moved([called, alone]) == {"independent": False, "team": True, "switch": True}


def test_what_agents_learn_by_hand():
    new, metrics = UPDATE(make_learner().init(KEY), KEY, two_steps())
    # Of the second environment, its weight is 0.5, and a mean over four: 4 + 20 and 6 + 30.
    np.testing.assert_allclose(new.params["independent"]["network"][0], [0.5 * 24 / 4, 0.5 * 36 / 4], rtol=1e-6)
    # Of the first one, a mean over two: 2 + 10 for both agents, whose values add up.
    np.testing.assert_allclose(new.params["team"]["network"]["agents"][0], [6.0, 6.0], rtol=1e-6)
    # The errors of the switch are 11.75 and 29.875; of the team 12, of the agents 24 and 36.
    np.testing.assert_allclose(metrics["priority"], [12.0, 30.0], rtol=1e-6)
    assert float(metrics["call_rate"]) == 0.5
    losses = [float(metrics[f"{name}_loss"]) for name in ("independent", "team", "switch")]
    np.testing.assert_allclose(metrics["loss"], sum(losses), rtol=1e-6)


@pytest.mark.exhaustive
def test_devices_agree_with_one_device():
    alone, shared = (make_learner(optax.adam(0.1), axis_name=axis) for axis in (None, "device"))
    require_agreement(
        alone,
        shared,
        alone.init(KEY),
        two_steps(),
        lambda state, metrics: (state.params, metrics["loss"], metrics["call_rate"]),
    )


@pytest.mark.exhaustive
def test_a_team_of_one_learns_too():
    learner = make_learner(num_agents=1)
    _, metrics = learner.update(learner.init(KEY), KEY, two_steps(num_agents=1))
    # Of the team 1 + 5, more than the switch's by the cost; of the agent 4 + 20.
    np.testing.assert_allclose(metrics["priority"], [6.0, 24.0], rtol=1e-6)


def agent_of(game, *, view=False, **options):
    def encoder(size):
        return Entry(entry="own", encoder=MLP((size,))) if view else MLP((size,))

    options = {
        "buffer": make_uniform_buffer(capacity=512, batch_size=32),
        "switching_cost": 0.1,
        "normalize_observations": True,
    } | options
    return make_agent(
        game,
        value=partial(make_q_function, encoder=encoder(16)),
        mixer=MonotonicMixer(embedding_size=8),
        switch=partial(make_q_function, encoder=MLP((16,))),
        optimizer=lambda num_updates: optax.adam(0.003),
        **options,
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("view", [False, True], ids=["shared", "separate, sees the team"])
def test_teams_call_no_more_than_their_budget_in_one_program(view):
    game = agent_ids(make_two_step_game())
    game = with_calls(team_view(game) if view else game, max_calls=1)
    agent = agent_of(game, view=view, share_parameters=not view)
    collector = make_rollout_collector(game, agent.policy, num_envs=16, num_steps=2)
    program = make_program(collector, agent.make_learner(collector, 4))
    run = jax.jit(partial(run_updates, program))
    state = program.init(KEY)
    for num_updates in (1, 3):
        state, metrics = run(state, num_updates)
    assert run._cache_size() == 1
    values = {name: float(value.value) for name, value in metrics.items() if isinstance(value, Mean)}
    assert all(np.isfinite(values[name]) for name in values) and 0.0 < values["train/call_rate"] < 1.0
    assert 0.0 < values["rollout/calls"] <= 1.0 and 0.0 < values["rollout/call_rate"] <= 0.5
    evaluate = make_evaluator(game, agent.policy, num_episodes=2)
    results = jax.jit(evaluate)(state.learner.params, KEY)
    assert (results["calls"] <= 1.0).all() and (results["call_rate"] == results["calls"] / 2).all()


@pytest.mark.exhaustive
def test_teams_win_the_game_and_call_only_where_it_is_decided():
    game = with_calls(agent_ids(make_two_step_game(num_chores=2)))
    agent = agent_of(
        game,
        buffer=make_uniform_buffer(capacity=131072, batch_size=128),
        updates_per_rollout=8,
        discount=0.99,
        huber_delta=100.0,
        epsilon=linear_schedule(start=1.0, end=0.05, num_updates=1000),
        switch_epsilon=linear_schedule(start=0.5, end=0.05, num_updates=4000),
        normalize_observations=False,
    )
    collector = make_rollout_collector(game, agent.policy, num_envs=32, num_steps=4)
    program = make_program(collector, agent.make_learner(collector, 1000))
    state, _ = jax.jit(partial(run_updates, program))(program.init(KEY), 1000)
    results = jax.jit(make_evaluator(game, agent.policy, num_episodes=1))(state.learner.params, KEY)
    assert float(results["episode_return"][0]) == 9.0 and float(results["calls"][0]) <= 2.0


def test_refused_settings():
    game = agent_ids(make_two_step_game())
    with pytest.raises(ValueError, match="`environment` must have actions that call .* got 'two-step-game' without"):
        agent_of(game)
    with pytest.raises(ValueError, match="`switching_cost` must not be negative, got -0.1; try 0"):
        agent_of(with_calls(game), switching_cost=-0.1)
    with pytest.raises(ValueError, match=r"`epsilon` must be in \[0, 1\], got 2"):
        agent_of(with_calls(game), switch_epsilon=linear_schedule(start=2.0, end=0.0))
    with pytest.raises(ValueError, match="`num_actions` must be at least 1, got 0"):
        make_switching(None, None, None, num_actions=0, switching_cost=0.0)
