"""Random openings: how many moves, whose turn it is after them, and that no game ends in them."""

import jax
import numpy as np
import pytest

from jaxagents.environments.adapters.pgx import make_environment
from jaxagents.environments.openings import random_openings
from jaxagents.environments.wrappers import alternating, flatten_observation
from jaxagents.types import Box, Environment

GAME = alternating(flatten_observation(make_environment("tic_tac_toe")))


def test_games_open_with_up_to_so_many_random_moves():
    opened = random_openings(GAME, 3)
    keys = jax.random.split(jax.random.key(0), 200)
    state, timestep = jax.jit(jax.vmap(lambda key: opened.reset(key, opened.sample_task(key))))(keys)
    stones = np.asarray(timestep.observation).reshape(200, 9, 2).astype(int)
    played = stones.sum((1, 2))
    assert set(played) == {0, 1, 2, 3} and np.all(np.bincount(played) > 25)
    # Own stones and those of the opponent: after an odd number of moves it is the second player's turn.
    np.testing.assert_array_equal(stones[:, :, 1].sum(1) - stones[:, :, 0].sum(1), played % 2)
    np.testing.assert_array_equal(np.asarray(timestep.action_mask), stones.sum(2) == 0)
    np.testing.assert_array_equal(state.player, timestep.player)
    assert len({tuple(board) for board in stones[played == 1].reshape(-1, 18)}) == 9
    assert not np.any(timestep.terminated) and np.all(np.asarray(timestep.info["perspective"]) == 1.0)


def test_no_game_ends_in_its_opening():
    opened = random_openings(GAME, 9)
    keys = jax.random.split(jax.random.key(1), 100)
    _, timestep = jax.jit(jax.vmap(lambda key: opened.reset(key, opened.sample_task(key))))(keys)
    assert not np.any(timestep.terminated) and np.all(np.asarray(timestep.reward) == 0.0)
    assert np.asarray(timestep.observation).sum(1).max() >= 7


def test_bad_settings_are_refused():
    assert random_openings(GAME, 0) is GAME
    with pytest.raises(ValueError, match="`max_moves` must not be negative, got -1"):
        random_openings(GAME, -1)
    walk = Environment("walk", None, None, None, Box((1,)), Box((1,), -1.0, 1.0), max_steps=1)
    with pytest.raises(ValueError, match="`action_space` must be Discrete for random openings"):
        random_openings(walk, 1)
