"""The T-maze: what is seen, what memory is worth, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments import tmaze
from tests.fakes import play_actions

KEY = jax.random.key(0)
UP_TASK = {"goal": jnp.asarray(tmaze.UP, jnp.int32), "corridor_length": jnp.asarray(2, jnp.int32)}
DOWN_TASK = {**UP_TASK, "goal": jnp.asarray(tmaze.DOWN, jnp.int32)}


def play(environment, task, actions):
    return play_actions(environment.reset, environment.step, task, actions, KEY)


def test_cue_shows_once_then_corridor_then_junction():
    _, timesteps = play(tmaze.make_environment(2), UP_TASK, [tmaze.FORWARD, tmaze.FORWARD])
    observations = [t.observation.tolist() for t in timesteps]
    assert observations == [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert play(tmaze.make_environment(2), DOWN_TASK, [])[1][0].observation.tolist() == [0, 1, 0, 0]


def test_cue_is_gone_after_a_step_that_stays_at_the_start():
    _, timesteps = play(tmaze.make_environment(2), UP_TASK, [tmaze.BACK])
    assert timesteps[1].observation.tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize(("turn", "reward"), [(tmaze.UP, 1.0), (tmaze.DOWN, -0.1)])
def test_turn_at_the_junction_ends_with_success_or_not(turn, reward):
    _, timesteps = play(tmaze.make_environment(2), UP_TASK, [tmaze.FORWARD, tmaze.FORWARD, turn])
    last = timesteps[-1]
    np.testing.assert_allclose(last.reward, reward, rtol=1e-6)
    assert bool(last.terminated) and not bool(last.truncated)
    assert bool(last.info["success"]) == (turn == tmaze.UP)


def test_turn_in_the_corridor_runs_into_the_wall_and_back_walks_back():
    actions = [tmaze.UP, tmaze.FORWARD, tmaze.DOWN, tmaze.BACK, tmaze.BACK]
    state, timesteps = play(tmaze.make_environment(2), UP_TASK, actions)
    assert int(state.inner.position) == 0
    assert not any(bool(t.terminated) for t in timesteps)


def test_step_penalty_and_truncation():
    environment = tmaze.make_environment(2, step_penalty=0.25, max_steps=3)
    _, timesteps = play(environment, UP_TASK, [tmaze.BACK] * 4)
    assert [float(t.reward) for t in timesteps] == [0, -0.25, -0.25, -0.25, 0]
    assert [bool(t.truncated) for t in timesteps] == [False, False, False, True, True]
    assert not bool(timesteps[-1].terminated) and not bool(timesteps[-1].info["success"])


def success_rate(choose, num_episodes=200):
    """Success of the policy that walks to the junction and turns as `choose(key, goal)` says."""
    environment = tmaze.make_environment(3)

    def episode(key):
        task_key, choice_key = jax.random.split(key)
        task = environment.sample_task(task_key)
        state, _ = environment.reset(key, task)
        for _ in range(3):
            state, _ = environment.step(key, state, jnp.asarray(tmaze.FORWARD))
        _, timestep = environment.step(key, state, choose(choice_key, task["goal"]))
        return timestep.info["success"]

    return float(jax.jit(jax.vmap(episode))(jax.random.split(KEY, num_episodes)).mean())


def test_memory_solves_it_and_guessing_succeeds_half_the_time():
    assert success_rate(lambda key, goal: goal) == 1.0
    for guess in (tmaze.UP, tmaze.DOWN):
        assert 0.35 < success_rate(lambda key, goal, guess=guess: jnp.asarray(guess)) < 0.65


def test_levels_are_corridor_lengths():
    environment = tmaze.make_environment((3, 7))
    assert environment.max_steps == 24
    assert int(environment.sample_task(KEY, 1)["corridor_length"]) == 7
    drawn = jax.jit(jax.vmap(environment.sample_task))(jax.random.split(KEY, 32))
    assert np.unique(drawn["corridor_length"]).tolist() == [3, 7]


def test_render():
    environment = tmaze.make_environment(2)
    state, _ = play(environment, DOWN_TASK, [tmaze.FORWARD])
    assert environment.render(state) == "  .\n.@.\n  G"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"corridor_length": 0}, "`corridor_length` must be at least 1, got 0"),
        ({"corridor_length": ()}, "`corridor_length` must be at least 1"),
        ({"corridor_length": 5, "max_steps": 5}, "`max_steps` must leave time for 6 steps, got 5; try 18"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        tmaze.make_environment(**arguments)
