"""The jumanji adapter: limits, joint actions, fields, and teams."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.adapters import jumanji

KEY = jax.random.key(0)


@functools.cache
def snake():
    environment = jumanji.make_environment("Snake-v1", fields="grid", num_rows=4, num_cols=4, max_steps=3)
    return environment, jax.jit(environment.step)


def play_snake(choose):
    environment, step = snake()
    state, timestep = environment.reset(KEY, environment.sample_task(KEY))
    timesteps = [timestep]
    for _ in range(3):
        state, timestep = step(KEY, state, choose(timestep.action_mask))
        timesteps.append(timestep)
    return state, timesteps


@pytest.mark.slow
def test_snake_survives_to_the_limit_and_is_truncated():
    _, timesteps = play_snake(jnp.argmax)
    assert [bool(t.truncated) for t in timesteps] == [False, False, False, True]
    assert not bool(timesteps[-1].terminated)
    assert timesteps[0].observation.shape == (4, 4, 5)


def test_snake_that_hits_the_wall_is_terminated():
    _, timesteps = play_snake(lambda mask: jnp.zeros((), jnp.int32))
    masks = [bool(t.action_mask[0]) for t in timesteps]
    first_wall = masks.index(False)
    assert bool(timesteps[first_wall + 1].terminated) and not bool(timesteps[first_wall + 1].truncated)


def test_render():
    state, timesteps = play_snake(jnp.argmax)
    rows = snake()[0].render(state).splitlines()[1:-1]
    head = tuple(np.argwhere(timesteps[-1].observation[..., 1])[0])
    assert rows[head[0]][head[1] + 1] == "@"


def test_actions_of_several_parts_become_one_index():
    environment = jumanji.make_environment("Minesweeper-v0")
    assert environment.action_space.num_values == 100
    state, timestep = environment.reset(KEY, environment.sample_task(KEY))
    assert timestep.action_mask.shape == (100,) and bool(timestep.action_mask.all())
    _, timestep = environment.step(KEY, state, jnp.asarray(57))
    assert np.argwhere(~timestep.action_mask).tolist() == [[57]]
    assert np.argwhere(timestep.observation["board"] >= 0).tolist() == [[5, 7]] or bool(timestep.terminated)


@pytest.mark.exhaustive
def test_teams_have_an_agent_axis_and_end_by_truncation():
    environment = jumanji.make_environment("LevelBasedForaging-v0", max_steps=2)
    step = jax.jit(environment.step)
    state, timestep = environment.reset(KEY, environment.sample_task(KEY))
    assert timestep.observation["agents_view"].shape == (2, 12) and timestep.observation["step_count"].shape == (2,)
    for _ in range(2):
        state, timestep = step(KEY, state, jnp.zeros(2, jnp.int32))
    assert bool(timestep.truncated) and not bool(timestep.terminated)
    assert timestep.reward.shape == (2,) and timestep.action_mask.shape == (2, 6)


def test_refuses_unknown_fields():
    with pytest.raises(
        ValueError, match=r"`fields` must be fields of the observation of Snake-v1, got \['gird'\]; try"
    ):
        jumanji.make_environment("Snake-v1", fields="gird")
