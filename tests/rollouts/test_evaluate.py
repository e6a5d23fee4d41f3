"""Evaluation on an environment whose every return follows from its task."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.timesteps import first_timestep
from jaxagents.ops.distributions import Categorical
from jaxagents.rollouts.evaluate import make_evaluator, play_episode
from jaxagents.types import Box, Discrete, Policy, TimeStep
from tests.fakes import make_world

KEY = jax.random.key(0)
E = 64


def make_lamp():
    """Episodes of 1 to 5 steps, the task; every step is worth the task plus ten times the action.

    Steps after the end go on giving rewards. Those of even length succeed; action 2 is never allowed.
    """

    def reset(key, task):
        state = {"length": task, "steps": jnp.zeros((), jnp.int32)}
        observation = jnp.zeros(1, jnp.float32)
        no = jnp.zeros((), bool)
        return state, first_timestep(observation, action_mask=jnp.array([True, True, False]), info={"success": no})

    def step(key, state, action):
        state = {"length": state["length"], "steps": state["steps"] + 1}
        timestep = TimeStep(
            observation=state["steps"].astype(jnp.float32)[None],
            reward=(state["length"] + 10 * action).astype(jnp.float32),
            terminated=state["steps"] == state["length"],
            truncated=jnp.zeros((), bool),
            action_mask=jnp.array([True, True, False]),
            info={"success": (state["steps"] == state["length"]) & (state["length"] % 2 == 0)},
        )
        return state, timestep

    def sample_task(key, level=None):
        drawn = 1 + (jax.random.bits(key) % 5).astype(jnp.int32)
        return drawn if level is None else jnp.full_like(drawn, level)

    return make_world(
        reset, step, Box((1,)), Discrete(3), 5, render=lambda state: str(state["steps"]), sample_task=sample_task
    )


LAMP = make_lamp()


def apply_constant(params, carry, inputs):
    return carry, Categorical(logits=jnp.broadcast_to(params, (*inputs.first.shape, 3))).mask(inputs.action_mask)


CONSTANT = Policy(init=lambda key: jnp.zeros(3), initial_carry=lambda batch_shape: (), apply=apply_constant)


def apply_counting(params, carry, inputs):
    """Takes action 1 from the second step on, as its memory, zero where `first`, tells the steps of the episode."""
    carry = jnp.where(inputs.first[0], 0, carry)
    logits = jax.nn.one_hot(jnp.minimum(carry, 1), 3)[None]
    return carry + 1, Categorical(logits=logits).mask(inputs.action_mask)


def apply_alternating(params, carry, inputs):
    """Takes the action that it did not take before: 1 first, then 0."""
    wanted = 1 - inputs.previous_action
    return carry, Categorical(logits=jax.nn.one_hot(wanted, 3) + 0.0 * inputs.previous_reward[..., None])


def test_policies_are_told_what_they_did_before():
    alternating = Policy(init=lambda key: (), initial_carry=lambda batch_shape: (), apply=apply_alternating)
    results = jax.jit(make_evaluator(LAMP, alternating, num_episodes=3, level=3))((), jax.random.key(0))
    # Actions 1, 0, 1 of three steps that are worth 3 each besides.
    np.testing.assert_array_equal(results["episode_return"], 3 * 3 + 10 + 0 + 10)
    frames = play_episode(LAMP, alternating, (), jax.random.key(0), level=2)
    np.testing.assert_array_equal([timestep.reward for _, timestep in frames], [0, 12, 2])


COUNTING = Policy(
    init=lambda key: (), initial_carry=lambda batch_shape: jnp.full(batch_shape, 7, jnp.int32), apply=apply_counting
)


@pytest.fixture(scope="module")
def greedy():
    return jax.jit(make_evaluator(LAMP, CONSTANT, num_episodes=E))


@pytest.fixture(scope="module")
def results(greedy):
    return greedy(jnp.array([1.0, 0.5, 9.0]), KEY)


def test_results_follow_from_the_tasks_and_stop_at_the_end(results):
    assert set(results) == {"episode_return", "episode_length", "success", "finished"}
    assert all(value.shape == (E,) and value.dtype == jnp.float32 for value in results.values())
    length = np.asarray(results["episode_length"])
    assert set(length) == {1, 2, 3, 4, 5}
    np.testing.assert_array_equal(results["episode_return"], length**2)
    np.testing.assert_array_equal(results["success"], length % 2 == 0)
    np.testing.assert_array_equal(results["finished"], 1.0)


def test_tasks_are_fixed_by_the_key_whatever_the_policy(greedy, results):
    other = greedy(jnp.array([0.0, 0.5, 9.0]), KEY)
    np.testing.assert_array_equal(other["episode_length"], results["episode_length"])
    # The best allowed action is now the one of value 10.
    np.testing.assert_array_equal(other["episode_return"], results["episode_length"] * (10 + results["episode_length"]))
    elsewhere = greedy(jnp.array([1.0, 0.5, 9.0]), jax.random.key(1))
    assert not np.array_equal(elsewhere["episode_length"], results["episode_length"])


def test_samples_follow_the_distribution(results):
    params = jnp.log(jnp.array([0.75, 0.25, 1.0]))
    sampled = jax.jit(make_evaluator(LAMP, CONSTANT, num_episodes=E, greedy=False))
    first, second = sampled(params, KEY), sampled(params, KEY)
    np.testing.assert_array_equal(first["episode_return"], second["episode_return"])
    length = np.asarray(first["episode_length"])
    np.testing.assert_array_equal(length, results["episode_length"])
    ones = (np.asarray(first["episode_return"]) - length**2) / 10.0
    deviation = np.sqrt(0.75 * 0.25 / length.sum())
    assert abs(ones.sum() / length.sum() - 0.25) < 4 * deviation
    # Neither do episodes share their noise, nor the steps of one episode.
    long = ones[length == 5]
    assert len(set(long)) > 1 and np.any((long > 0) & (long < 5))


def test_unfinished_episodes_are_cut_and_told(results):
    cut = jax.jit(make_evaluator(LAMP, CONSTANT, num_episodes=E, max_steps=2))(jnp.array([1.0, 0.5, 9.0]), KEY)
    whole = np.asarray(results["episode_length"])
    np.testing.assert_array_equal(cut["episode_length"], np.minimum(whole, 2))
    np.testing.assert_array_equal(cut["finished"], whole <= 2)
    np.testing.assert_array_equal(cut["episode_return"], whole * np.minimum(whole, 2))


def test_memory_runs_through_an_episode_and_level_fixes_its_task():
    results = jax.jit(make_evaluator(LAMP, COUNTING, num_episodes=3, level=4))((), KEY)
    np.testing.assert_array_equal(results["episode_length"], 4.0)
    np.testing.assert_array_equal(results["episode_return"], 4 * 4 + 10 * 3)


def test_success_is_left_out_where_the_world_does_not_tell():
    silent = lambda out: (out[0], out[1].replace(info={}))  # noqa: E731
    environment = dataclasses.replace(
        LAMP, reset=lambda key, task: silent(LAMP.reset(key, task)), step=lambda *args: silent(LAMP.step(*args))
    )
    evaluate = make_evaluator(environment, CONSTANT, num_episodes=2)
    assert set(jax.eval_shape(evaluate, jnp.zeros(3), KEY)) == {"episode_return", "episode_length", "finished"}


def test_metrics_of_the_world_are_told_as_they_stand_at_the_end():
    def tell(state, timestep):
        return state, timestep.replace(info={"metrics": {"doubled": 2 * state["steps"]}})

    environment = dataclasses.replace(
        LAMP, reset=lambda key, task: tell(*LAMP.reset(key, task)), step=lambda *args: tell(*LAMP.step(*args))
    )
    results = jax.jit(make_evaluator(environment, CONSTANT, num_episodes=E))(jnp.array([1.0, 0.5, 9.0]), KEY)
    assert set(results) == {"episode_return", "episode_length", "doubled", "finished"}
    np.testing.assert_array_equal(results["doubled"], 2.0 * np.asarray(results["episode_length"]))
    assert results["doubled"].dtype == jnp.float32


def test_one_episode_is_played_frame_by_frame():
    frames = play_episode(LAMP, COUNTING, (), KEY, level=3)
    assert [int(state["steps"]) for state, _ in frames] == [0, 1, 2, 3]
    assert [float(timestep.reward) for _, timestep in frames] == [0.0, 3.0, 13.0, 13.0]
    assert [bool(timestep.terminated) for _, timestep in frames] == [False, False, False, True]
    assert len(play_episode(LAMP, COUNTING, (), KEY, level=3, max_steps=1)) == 2


def test_one_episode_may_be_sampled():
    params = jnp.log(jnp.array([0.5, 0.5, 1.0]))
    environment = dataclasses.replace(LAMP, max_steps=30)
    frames = play_episode(environment, CONSTANT, params, KEY, greedy=False, level=30)
    assert {float(timestep.reward) for _, timestep in frames[1:]} == {30.0, 40.0}


def test_refuses_no_episodes_and_several_streams_of_rewards():
    with pytest.raises(ValueError, match="`num_episodes` must be at least 1, got 0"):
        make_evaluator(LAMP, CONSTANT, num_episodes=0)
    with pytest.raises(ValueError, match="got 2 players in 'world'; wrap it in `against`"):
        make_evaluator(dataclasses.replace(LAMP, num_players=2), CONSTANT, num_episodes=1)
