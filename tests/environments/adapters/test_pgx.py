"""The pgx adapter on tic-tac-toe: players, masks, rewards, and the two views of a game."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.adapters import pgx
from jaxagents.environments.opponents import against
from jaxagents.environments.wrappers import alternating
from tests.fakes import play_actions

KEY = jax.random.key(0)


@functools.cache
def game():
    return pgx.make_environment("tic_tac_toe")


def task_opened_by(player):
    """Returns a task in which `player` opens."""
    for seed in range(100):
        task = game().sample_task(jax.random.key(seed))
        if int(game().reset(KEY, task)[1].player) == player:
            return task
    raise AssertionError("no such task")


def play(environment, task, actions):
    step = jax.jit(environment.step)
    return play_actions(environment.reset, step, task, actions, KEY)


def test_players_take_turns_and_fields_fill_up():
    _, timesteps = play(game(), task_opened_by(1), [4, 0])
    assert [int(t.player) for t in timesteps] == [1, 0, 1]
    assert [np.flatnonzero(~np.asarray(t.action_mask)).tolist() for t in timesteps] == [[], [4], [0, 4]]


def test_observation_is_that_of_the_player_who_acts_next():
    _, timesteps = play(game(), task_opened_by(0), [4, 0])
    own, theirs = np.asarray(timesteps[2].observation).transpose(2, 0, 1)
    assert np.argwhere(own).tolist() == [[1, 1]] and np.argwhere(theirs).tolist() == [[0, 0]]


@pytest.mark.parametrize("opener", [0, 1])
def test_three_in_a_row_wins(opener):
    _, timesteps = play(game(), task_opened_by(opener), [0, 3, 1, 4, 2, 5])
    assert not any(bool(t.terminated) for t in timesteps[:5])
    assert bool(timesteps[5].terminated) and not bool(timesteps[5].truncated)
    expected = [1.0, -1.0] if opener == 0 else [-1.0, 1.0]
    assert timesteps[5].reward.tolist() == expected
    assert timesteps[6].reward.tolist() == [0.0, 0.0] and bool(timesteps[6].terminated)


def test_an_illegal_action_loses():
    _, timesteps = play(game(), task_opened_by(0), [4, 4])
    assert bool(timesteps[2].terminated) and timesteps[2].reward.tolist() == [1.0, -1.0]


def test_render():
    state, _ = play(game(), task_opened_by(0), [4, 0])
    assert game().render(state) == "+---+\n|O..|\n|.X.|\n|...|\n+---+"


def test_alternating_pays_the_winner_and_changes_perspective():
    _, timesteps = play(alternating(game()), task_opened_by(1), [0, 3, 1, 4, 2])
    assert [float(t.reward) for t in timesteps] == [0, 0, 0, 0, 0, 1]
    assert [float(t.info["perspective"]) for t in timesteps[1:]] == [-1] * 5


def lowest_allowed(key, observation, action_mask):
    return jnp.argmax(action_mask).astype(jnp.int32)


@functools.cache
def single_agent():
    return against(game(), lowest_allowed)


def test_against_wins():
    # The opponent fills 0 and 1 while the agent takes the diagonal 4, 2, 6.
    task = {"seat": jnp.asarray(0, jnp.int32), "game": task_opened_by(0)}
    _, timesteps = play(single_agent(), task, [4, 2, 6, 8])
    assert [float(t.reward) for t in timesteps] == [0, 0, 0, 1, 0]
    assert [bool(t.info["success"]) for t in timesteps] == [False, False, False, True, True]
    assert np.flatnonzero(~np.asarray(timesteps[2].action_mask)).tolist() == [0, 1, 2, 4]


def test_against_loses_in_the_opponents_move_as_the_second_player():
    task = {"seat": jnp.asarray(1, jnp.int32), "game": task_opened_by(0)}
    _, timesteps = play(single_agent(), task, [8, 7])
    # The opponent opens with 0 and completes the row 0, 1, 2 in answer to the agent's second move.
    assert np.flatnonzero(~np.asarray(timesteps[0].action_mask)).tolist() == [0]
    assert [float(t.reward) for t in timesteps] == [0, 0, -1]
    assert bool(timesteps[2].terminated) and not bool(timesteps[2].info["success"])


def test_max_steps_truncates_a_game():
    environment = pgx.make_environment("tic_tac_toe", max_steps=2)
    _, timesteps = play(environment, task_opened_by(0), [4, 0])
    assert bool(timesteps[2].truncated) and not bool(timesteps[2].terminated)


def test_games_for_one_have_a_scalar_reward_and_no_player():
    environment = pgx.make_environment("2048")
    _, timestep = jax.eval_shape(lambda: environment.reset(KEY, environment.sample_task(KEY)))
    assert environment.num_players == 1 and timestep.reward.shape == () and timestep.player is None
