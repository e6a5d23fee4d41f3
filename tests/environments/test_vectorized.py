"""Batches of environments: what a reset replaces, what it keeps, and where random streams come from."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.timesteps import first_timestep, with_successor
from jaxagents.environments.vectorized import vectorize
from jaxagents.types import Box, Discrete, TimeStep
from tests.fakes import make_world

KEY = jax.random.key(0)
B, T = 6, 12


def random_integer(key):
    """Draws up to 2^20, in fewer operations to compile than `randint`."""
    return (jax.random.bits(key) >> 12).astype(jnp.int32)


def make_walk():
    """Episodes of 2, 3 or 4 steps; observation (task, steps, noise).

    The task is a large random number and fixes length (its remainder by 3) and kind of the end (odd: truncated); the
    reward of a step is its number; the mask says which of the steps 0 .. 4 comes next.
    """

    def view(state, **fields):
        observation = jnp.stack([state["task"].astype(jnp.float32), state["steps"].astype(jnp.float32), state["noise"]])
        return state, TimeStep(
            observation=observation,
            action_mask=jnp.arange(5) == state["steps"],
            player=state["steps"] % 2,
            info={"task": state["task"]},
            **fields,
        )

    def reset(key, task):
        state = {"task": task, "steps": jnp.zeros((), jnp.int32), "noise": random_integer(key).astype(jnp.float32)}
        return view(state, reward=jnp.zeros(()), terminated=jnp.zeros((), bool), truncated=jnp.zeros((), bool))

    def step(key, state, action):
        steps = state["steps"] + 1
        over = steps == 2 + state["task"] % 3
        odd = state["task"] % 2 == 1
        state = {"task": state["task"], "steps": steps, "noise": random_integer(key).astype(jnp.float32)}
        return view(state, reward=steps.astype(jnp.float32), terminated=over & ~odd, truncated=over & odd)

    def sample_task(key, level=None):
        drawn = random_integer(key)
        return drawn if level is None else jnp.full_like(drawn, level)

    return make_world(reset, step, Box((3,)), Discrete(5), 4, sample_task=sample_task)


WALK = make_walk()


@partial(jax.jit, static_argnames="reset_pool")
def roll(index, key, *, reset_pool=None):
    """Returns the time steps of a reset [B] and of T steps [T, B], and the pool."""
    batch = vectorize(WALK, reset_pool=reset_pool)
    reset_key, draw_key = jax.random.split(key)
    state, start = batch.reset(reset_key, index)
    draws, shared = batch.draw(draw_key, index, T)
    _, steps = jax.lax.scan(
        lambda state, draws: batch.step(state, jnp.zeros(index.shape, jnp.int32), draws, shared), state, draws
    )
    return start, steps, shared


@pytest.fixture(scope="module", params=[None, 3], ids=["fresh", "pool"])
def rolled(request):
    return request.param, *roll(jnp.arange(B), KEY, **({"reset_pool": request.param} if request.param else {}))


def test_ended_steps_keep_reward_flags_info_and_the_true_successor(rolled):
    _, start, steps, _ = rolled
    acted_in = np.concatenate([start.observation[None], steps.observation[:-1]])
    ended = np.asarray(steps.terminated | steps.truncated)
    assert 5 < ended.sum() < ended.size and steps.terminated.any() and steps.truncated.any()
    task, number = acted_in[..., 0].astype(int), acted_in[..., 1] + 1
    np.testing.assert_array_equal(ended, number == 2 + task % 3)
    np.testing.assert_array_equal(steps.terminated, ended & (task % 2 == 0))
    np.testing.assert_array_equal(steps.truncated, ended & (task % 2 == 1))
    np.testing.assert_array_equal(steps.reward, number)
    np.testing.assert_array_equal(steps.info["task"], task)
    successor = steps.info["next_observation"]
    np.testing.assert_array_equal(successor[..., 0], task)
    np.testing.assert_array_equal(successor[..., 1], number)
    np.testing.assert_array_equal(steps.info["next_action_mask"], np.arange(5) == number[..., None])


def test_ended_steps_show_a_new_episode_and_others_their_successor(rolled):
    _, start, steps, _ = rolled
    ended = np.asarray(steps.terminated | steps.truncated)
    np.testing.assert_array_equal(steps.observation[ended][:, 1], 0.0)
    np.testing.assert_array_equal(steps.action_mask[ended], [[True] + [False] * 4] * ended.sum())
    np.testing.assert_array_equal(steps.player[ended], 0)
    np.testing.assert_array_equal(steps.observation[~ended], steps.info["next_observation"][~ended])
    np.testing.assert_array_equal(steps.action_mask[~ended], steps.info["next_action_mask"][~ended])
    np.testing.assert_array_equal(start.info["next_observation"], start.observation)
    np.testing.assert_array_equal(start.info["next_action_mask"], start.action_mask)


def test_fresh_resets_are_all_different_and_a_pool_is_all_there_is(rolled):
    reset_pool, start, steps, pool = rolled
    ended = np.asarray(steps.terminated | steps.truncated)
    tasks, starts = steps.observation[ended][:, 0], steps.observation[ended]
    assert len(np.unique(start.observation[:, 0])) == B
    if reset_pool is None:
        assert len(np.unique(tasks)) == ended.sum() and not set(np.unique(tasks)) & set(
            np.asarray(start.observation[:, 0])
        )
    else:
        pooled = np.asarray(pool[1].observation)
        assert pooled.shape == (reset_pool, 3)
        # The whole reset is taken, and every member of the pool is.
        assert {tuple(row) for row in np.asarray(starts)} == {tuple(row) for row in pooled}


def test_pool_is_drawn_anew_by_every_draw():
    *_, pool = roll(jnp.arange(B), KEY, reset_pool=3)
    *_, other = roll(jnp.arange(B), jax.random.key(1), reset_pool=3)
    assert not set(np.asarray(pool[1].info["task"]).tolist()) & set(np.asarray(other[1].info["task"]).tolist())


def test_noise_of_every_step_and_environment_is_its_own(rolled):
    *_, steps, _ = rolled
    noise = np.asarray(steps.info["next_observation"][..., 2])
    assert len(np.unique(noise)) == noise.size


def test_trajectories_depend_on_the_global_index_only():
    start, steps, _ = roll(jnp.arange(B), KEY)
    index = np.array([4, 1])
    some_start, some_steps, _ = roll(jnp.asarray(index), KEY)
    jax.tree.map(lambda whole, part: np.testing.assert_array_equal(whole[index], part), start, some_start)
    jax.tree.map(lambda whole, part: np.testing.assert_array_equal(whole[:, index], part), steps, some_steps)


def test_level_reaches_the_tasks_of_every_episode():
    @jax.jit
    def tasks(index):
        batch = vectorize(WALK, reset_pool=3, level=7)
        _, (_, pooled) = batch.draw(KEY, index, 1)
        return batch.reset(KEY, index)[1].info["task"], pooled.info["task"]

    start, pooled = tasks(jnp.arange(1))
    np.testing.assert_array_equal(start, [7])
    np.testing.assert_array_equal(pooled, [7, 7, 7])


def test_environments_without_masks_and_players_have_none():
    bare = lambda out: (out[0], out[1].replace(action_mask=None, player=None))  # noqa: E731
    environment = dataclasses.replace(
        WALK, reset=lambda key, task: bare(WALK.reset(key, task)), step=lambda *args: bare(WALK.step(*args))
    )

    def reset_and_step(index):
        batch = vectorize(environment)
        state, start = batch.reset(KEY, index)
        draws, shared = batch.draw(KEY, index, 1)
        return start, batch.step(state, index, jax.tree.map(lambda leaf: leaf[0], draws), shared)[1]

    for timestep in jax.eval_shape(reset_and_step, jnp.arange(2)):
        assert timestep.action_mask is None and timestep.player is None
        assert set(timestep.info) == {"task", "next_observation"}


def test_with_successor_adds_observation_and_mask():
    timestep = first_timestep(jnp.zeros(2), action_mask=jnp.array([True, False]), info={"success": jnp.zeros((), bool)})
    successor = first_timestep(jnp.ones(2), action_mask=jnp.array([False, True]))
    both = with_successor(timestep, successor)
    np.testing.assert_array_equal(both.observation, 0.0)
    np.testing.assert_array_equal(both.info["next_observation"], 1.0)
    np.testing.assert_array_equal(both.info["next_action_mask"], [False, True])
    assert set(both.info) == {"success", "next_observation", "next_action_mask"}


@pytest.mark.parametrize("reset_pool", [0, -1])
def test_refuses_an_empty_pool(reset_pool):
    with pytest.raises(ValueError, match=f"`reset_pool` must be at least 1 or null, got {reset_pool}; try 64"):
        vectorize(WALK, reset_pool=reset_pool)
