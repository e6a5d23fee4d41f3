"""Calls of a central learner: doubled actions, budgets, and calls that the world draws."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.calls import with_calls
from jaxagents.environments.coordination import make_two_step_game
from jaxagents.environments.teams import agent_ids, team_view
from jaxagents.environments.timesteps import first_timestep
from jaxagents.types import Box, Discrete, TimeStep
from tests.fakes import make_world

KEY = jax.random.key(0)
MASK = jnp.array([[True, True, False], [True, False, True]])


def make_pair(action_mask=MASK, max_steps=4):
    """Two agents whose reward is what the world hears of their actions."""

    def reset(key, task):
        del key, task
        observation = jnp.zeros((2, 1))
        return jnp.int32(0), first_timestep(observation, reward_shape=(2,), action_mask=action_mask)

    def step(key, time, action):
        del key
        timestep = TimeStep(
            observation=jnp.full((2, 1), time + 1, jnp.float32),
            reward=action.astype(jnp.float32),
            terminated=time + 1 >= max_steps,
            truncated=jnp.zeros((), bool),
            action_mask=action_mask,
        )
        return time + 1, timestep

    return make_world(reset, step, Box((1,)), Discrete(3), max_steps, num_agents=2)


def play(environment, actions, key=KEY):
    """Returns the time steps of a reset and of these joint actions."""
    state, timestep = environment.reset(key, environment.sample_task(key))
    timesteps = [timestep]
    for index, action in enumerate(actions):
        state, timestep = environment.step(jax.random.fold_in(key, index), state, jnp.array(action, jnp.int32))
        timesteps.append(timestep)
    return timesteps


def metric(timesteps, name):
    return [float(timestep.info["metrics"][name]) for timestep in timesteps]


def test_the_world_hears_the_same_actions_and_calls_are_counted():
    environment = with_calls(make_pair())
    timesteps = play(environment, [(1, 2), (4, 5), (3, 3), (0, 0)])
    assert environment.action_space == Discrete(6)
    np.testing.assert_array_equal([t.reward for t in timesteps], [[0, 0], [1, 2], [1, 2], [0, 0], [0, 0]])
    assert metric(timesteps, "calls") == [0, 0, 1, 2, 2]
    np.testing.assert_allclose(metric(timesteps, "call_rate"), [0, 0, 1 / 2, 2 / 3, 2 / 4])
    for timestep in timesteps:
        np.testing.assert_array_equal(timestep.action_mask, np.concatenate([MASK, MASK], axis=-1))
    assert play(with_calls(make_pair(None)), [])[0].action_mask is None


@pytest.mark.parametrize("action_mask", [MASK, None], ids=["masked", "free"])
def test_a_budget_is_shown_and_ends_calls(action_mask):
    environment = with_calls(make_pair(action_mask), max_calls=2)
    timesteps = play(environment, [(0, 0), (3, 3), (3, 3)])
    world = MASK if action_mask is not None else jnp.ones((2, 3), bool)
    for timestep, left in zip(timesteps, [1.0, 1.0, 0.5, 0.0], strict=True):
        np.testing.assert_array_equal(timestep.observation[:, 1], [left, left])
        np.testing.assert_array_equal(timestep.action_mask, np.concatenate([world, world & (left > 0)], axis=-1))
    assert environment.observation_space == Box((2,))


def test_a_budget_is_seen_by_the_team_where_there_is_a_view_of_it():
    environment = with_calls(team_view(make_pair()), max_calls=4)
    _, timestep = play(environment, [(3, 3)])
    np.testing.assert_array_equal(timestep.observation["own"], [[1], [1]])
    np.testing.assert_array_equal(timestep.observation["team"], [[1, 1, 0.75]] * 2)
    assert environment.observation_space == {"own": Box((1,)), "team": Box((3,))}


def test_nothing_is_called_after_the_end():
    timesteps = play(with_calls(make_pair(max_steps=1), max_calls=2), [(3, 3), (3, 3)])
    assert metric(timesteps, "calls") == [0, 1, 1] and metric(timesteps, "call_rate") == [0, 1, 1]
    np.testing.assert_array_equal(timesteps[2].observation, timesteps[1].observation)


def test_calls_that_the_world_draws_leave_one_half():
    environment = with_calls(make_pair(max_steps=400), call_probability=0.25)

    def play_one(key):
        def step(carry, key):
            state, timestep = carry
            action = jnp.argmax(timestep.action_mask, axis=-1).astype(jnp.int32)
            following = environment.step(key, state, action)
            return following, timestep.action_mask

        return jax.lax.scan(step, environment.reset(key, environment.sample_task(key)), jax.random.split(key, 400))

    (_, last), masks = jax.jit(play_one)(KEY)
    called = np.asarray(masks[:, 0, 3])
    np.testing.assert_array_equal(masks[..., 3:], called[:, None, None] & np.asarray(MASK)[None])
    np.testing.assert_array_equal(masks[..., :3], ~called[:, None, None] & np.asarray(MASK)[None])
    np.testing.assert_allclose(last.info["metrics"]["call_rate"], called.mean(), rtol=1e-6)
    np.testing.assert_allclose(called.mean(), 0.25, atol=0.07)


def test_the_first_draw_is_that_of_the_task():
    environment = with_calls(make_pair(), call_probability=0.5)
    tasks = [environment.sample_task(jax.random.key(seed)) for seed in range(8)]
    assert len({bool(task["call"]) for task in tasks}) == 2
    for task in tasks:
        mask = environment.reset(KEY, task)[1].action_mask
        np.testing.assert_array_equal(mask[:, 3:], MASK & task["call"])


def test_refuses_what_cannot_be_doubled():
    game = agent_ids(make_two_step_game())
    with pytest.raises(ValueError, match="`environment` of `with_calls` must have an agent axis, got 'two-step-game'"):
        with_calls(replace(game, num_agents=0))
    with pytest.raises(ValueError, match="must have one discrete action per agent, got Box"):
        with_calls(replace(game, action_space=Box((1,))))
    with pytest.raises(ValueError, match="`max_calls` must be at least 1 or null, got 0"):
        with_calls(game, max_calls=0)
    with pytest.raises(ValueError, match=r"`call_probability` must be in \[0, 1\] or null, got 1.5"):
        with_calls(game, call_probability=1.5)
    with pytest.raises(ValueError, match="must have vectors .* to show what is left of `max_calls`"):
        with_calls(replace(game, observation_space=Box((2, 2))), max_calls=1)
