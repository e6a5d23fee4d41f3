"""Perfect play of tic-tac-toe: known positions, and that it never loses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments import tic_tac_toe
from jaxagents.environments.adapters.pgx import make_environment
from jaxagents.environments.opponents import against

PLACES = 3 ** np.arange(9)


@pytest.mark.parametrize(
    ("board", "moves"),
    [
        ([0] * 9, range(9)),  # The game is a draw whatever is opened with.
        ([2, 0, 0, 0, 0, 0, 0, 0, 0], [4]),  # A corner is answered with the centre,
        ([0, 0, 0, 0, 2, 0, 0, 0, 0], [0, 2, 6, 8]),  # the centre with a corner.
        ([1, 1, 0, 2, 2, 0, 0, 0, 0], [2]),  # Win before blocking;
        ([2, 2, 0, 0, 1, 0, 0, 0, 0], [2]),  # block.
        ([1, 0, 0, 0, 2, 0, 0, 0, 2], [2, 6]),  # The fork threatens nothing yet: the corners hold.
    ],
)
def test_best_moves_of_known_positions(board, moves):
    np.testing.assert_array_equal(np.flatnonzero(tic_tac_toe.best_moves()[np.dot(board, PLACES)]), list(moves))


@pytest.mark.slow
def test_nobody_wins_against_it():
    environment = against(make_environment("tic_tac_toe"), tic_tac_toe.make_perfect_player())

    def play(key):
        task_key, reset_key, run_key = jax.random.split(key, 3)
        state, timestep = environment.reset(reset_key, environment.sample_task(task_key))

        def step(loop, key):
            state, timestep = loop
            action_key, step_key = jax.random.split(key)
            action = jax.random.categorical(action_key, jnp.where(timestep.action_mask, 0.0, -jnp.inf))
            following = environment.step(step_key, state, action)
            return following, following[1].reward

        (_, timestep), rewards = jax.lax.scan(step, (state, timestep), jax.random.split(run_key, 5))
        return rewards.sum(), timestep.terminated

    returns, over = jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), 64))
    assert bool(over.all()) and float(returns.max()) <= 0.0 and float(returns.mean()) < -0.5
