"""Mistakes in an environment of one's own are named: shapes, types, forms, spaces and ends."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from jaxagents.environments import coordination, tmaze
from jaxagents.environments.checks import check_environment, describe_not_finite, require_shapes
from jaxagents.types import Box, Discrete

MAZE = tmaze.make_environment(2)


def changed(**fields):
    """Returns the maze whose time steps have other fields after a step."""

    def step(key, state, action):
        state, timestep = MAZE.step(key, state, action)
        return state, timestep.replace(**{name: change(getattr(timestep, name)) for name, change in fields.items()})

    return dataclasses.replace(MAZE, step=step)


def other_state(key, state, action):
    state, timestep = MAZE.step(key, state, action)
    return jax.tree.map(lambda leaf: leaf * 1.0, state), timestep


def test_worlds_as_they_are_pass():
    check_environment(MAZE)
    require_shapes(coordination.make_two_step_game())


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            dataclasses.replace(MAZE, observation_space=Box((5,))),
            r"`observation` of `reset` must be float32 \[5\], got float32 \[4\]",
        ),
        (
            dataclasses.replace(MAZE, observation_space={"a": Box((4,)), "b": Discrete(2)}),
            r"`observation` of `reset` must have the 2 arrays of its space, got 1",
        ),
        (dataclasses.replace(MAZE, num_agents=2), r"`observation` of `reset` must be float32 \[2, 4\]"),
        (changed(reward=lambda reward: reward[None]), r"`reward` of `step` must be float32 \[\], got float32 \[1\]"),
        (changed(terminated=jnp.float32), r"`terminated` of `step` must be bool \[\], got float32 \[\]"),
        (
            changed(action_mask=lambda mask: jnp.ones(3, bool)),
            r"`action_mask` of `step` must be bool \[4\], got bool \[3\]",
        ),
        (
            dataclasses.replace(MAZE, step=other_state),
            r"`step` must return a state like that of `reset`, got float32 \[\] at \.\w.* and not (int32|bool) \[\]",
        ),
        (changed(info=lambda info: {}), r"a time step like that of `reset`, got nothing at \.info\['success'\]"),
        (
            dataclasses.replace(MAZE, step=lambda key, state, action: (state, 0.0)),
            r"`step` must return \(state, TimeStep\), got a ShapeDtypeStruct",
        ),
    ],
)
def test_another_form_is_named(environment, message):
    with pytest.raises(ValueError, match=message):
        require_shapes(environment)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            dataclasses.replace(MAZE, observation_space=Box((4,), 0.0, 0.5)),
            r"`observation` must lie in its space, 0.0 to 0.5, got 0.0 to 1.0",
        ),
        (
            changed(terminated=jnp.zeros_like, truncated=jnp.zeros_like),
            r"`step` must end the episode within `max_steps`, 9, got one of t-maze that goes on",
        ),
        (changed(reward=lambda reward: reward + 1.0), "with a reward of 0, got t-maze, which goes on; try .*absorbing"),
    ],
)
def test_broken_promises_are_named(environment, message):
    with pytest.raises(ValueError, match=message):
        check_environment(environment)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, None),
        ({"reward": lambda reward: reward + jnp.nan}, "`reward` of t-maze in step 1 of an episode"),
        ({"observation": lambda observation: observation / 0.0}, "`observation` of t-maze in step 1 of an episode"),
    ],
)
def test_a_world_that_gives_nan_is_told_from_a_policy_that_does(fields, found):
    assert describe_not_finite(changed(**fields), jax.random.key(0), num_episodes=2) == found
