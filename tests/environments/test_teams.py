"""What agents see of themselves and of their team."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.teams import agent_ids, require_agents, team_view
from jaxagents.environments.timesteps import first_timestep
from jaxagents.environments.vectorized import vectorize
from jaxagents.types import Box, Discrete, TimeStep
from tests.fakes import make_world

KEY = jax.random.key(0)


def make_team(*, world_state=None):
    """Two agents see `[10 i + t, 1]`; the second dies in the first step, and the episode ends with the third."""

    def info(time):
        fields = {"agent_mask": jnp.stack([jnp.ones((), bool), time == 0])}
        return fields if world_state is None else fields | {"world_state": world_state + time}

    def observe(time):
        return jnp.stack([jnp.array([0.0, 10.0]) + time, jnp.ones(2)], axis=-1)

    def step(key, time, action):
        time = time + 1
        return time, TimeStep(
            observation=observe(time),
            reward=jnp.ones(2),
            terminated=time >= 3,
            truncated=jnp.zeros((), bool),
            info=info(time),
        )

    def reset(key, task):
        time = jnp.zeros(())
        return time, first_timestep(observe(time), reward_shape=(2,), info=info(time))

    return make_world(reset, step, Box((2,)), Discrete(2), 3, num_agents=2)


def test_ids_are_appended():
    environment = agent_ids(make_team())
    state, timestep = environment.reset(KEY, ())
    np.testing.assert_array_equal(timestep.observation, [[0, 1, 1, 0], [10, 1, 0, 1]])
    _, timestep = environment.step(KEY, state, jnp.zeros(2, jnp.int32))
    np.testing.assert_array_equal(timestep.observation, [[1, 1, 1, 0], [11, 1, 0, 1]])
    assert environment.observation_space == Box((4,))


def test_the_team_sees_the_living():
    environment = team_view(make_team())
    state, timestep = environment.reset(KEY, ())
    assert environment.observation_space == {"own": Box((2,)), "team": Box((4,))}
    np.testing.assert_array_equal(timestep.observation["own"], [[0, 1], [10, 1]])
    np.testing.assert_array_equal(timestep.observation["team"], [[0, 1, 10, 1]] * 2)
    _, timestep = environment.step(KEY, state, jnp.zeros(2, jnp.int32))
    np.testing.assert_array_equal(timestep.observation["own"], [[1, 1], [11, 1]])
    np.testing.assert_array_equal(timestep.observation["team"], [[1, 1, 0, 0]] * 2)


def test_the_team_sees_the_state_of_the_world_where_it_is_told():
    environment = team_view(agent_ids(make_team(world_state=jnp.array([5.0, 6.0, 7.0]))))
    state, timestep = environment.reset(KEY, ())
    np.testing.assert_array_equal(timestep.observation["team"], [[5, 6, 7]] * 2)
    assert environment.observation_space["team"] == Box((3,)) and "world_state" not in timestep.info
    _, timestep = environment.step(KEY, state, jnp.zeros(2, jnp.int32))
    np.testing.assert_array_equal(timestep.observation["team"], [[6, 7, 8]] * 2)


def test_automatic_resets_keep_who_was_alive_in_the_successor():
    batch = vectorize(make_team())
    state, _ = batch.reset(KEY, jnp.arange(2))
    draws, shared = batch.draw(KEY, jnp.arange(2), 3)
    for t in range(3):
        state, timestep = batch.step(
            state, jnp.zeros((2, 2), jnp.int32), jax.tree.map(lambda leaf, t=t: leaf[t], draws), shared
        )
    # A new episode has begun; the successor of the last step was one of a single survivor.
    np.testing.assert_array_equal(timestep.info["agent_mask"], [[True, True]] * 2)
    np.testing.assert_array_equal(timestep.info["next_agent_mask"], [[True, False]] * 2)


@pytest.mark.parametrize("wrapper", [agent_ids, team_view])
def test_wrappers_refuse_what_is_no_team_of_vectors(wrapper):
    team = make_team()
    with pytest.raises(ValueError, match=f"`{wrapper.__name__}` must have an agent axis, got 'world' without one"):
        wrapper(replace(team, num_agents=0))
    with pytest.raises(ValueError, match="must have vectors as observations, .*; try `flatten_observation`"):
        wrapper(replace(team, observation_space=Box((2, 2))))


@pytest.mark.parametrize("name", ["reward", "observation", "agent_mask", "action_mask"])
def test_numbers_of_agents_that_disagree_are_refused(name):
    team = make_team()
    require_agents(team)

    def reset(key, task):
        state, timestep = team.reset(key, task)
        if name == "agent_mask":
            return state, timestep.replace(info={"agent_mask": jnp.ones(3, bool)})
        shape = {"reward": (3,), "observation": (3, 2), "action_mask": (3, 2)}[name]
        return state, timestep.replace(**{name: jnp.ones(shape)})

    with pytest.raises(ValueError, match=f"`{name}.*` of 'world' must have the 2 agents of `num_agents` .* got shape"):
        require_agents(replace(team, reset=reset))
