"""A learner with a pool: what is added when, counted how, and acted with."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.data.buffers import make_uniform_buffer
from jaxagents.environments.adapters.pgx import make_environment
from jaxagents.environments.wrappers import flatten_observation
from jaxagents.learners import dqn
from jaxagents.learners.opponents import make_agent, with_opponents
from jaxagents.learners.optimizers import make_adam
from jaxagents.networks.torsos import MLP
from jaxagents.rollouts.opponents import make_opponents_collector
from jaxagents.training.program import make_program
from jaxagents.values.q_function import make_q_function
from tests.fakes import COUNTING, make_rollout

SHAPE = (2, 2)


def batch(reward, terminated, opponent):
    return make_rollout(
        reward=jnp.array(reward), terminated=jnp.array(terminated), extras={"opponent": jnp.array(opponent)}
    )


def test_former_parameters_are_added_and_games_counted():
    learner = with_opponents(COUNTING, capacity=3, add_every=2, decay=0.5)
    state = learner.init(jax.random.key(0), jnp.zeros(2))
    played = batch([[0.0, 1.0], [-1.0, 0.0]], [[False, True], [True, True]], [[0, 0], [0, 0]])
    step = jax.jit(learner.update)
    state, metrics = step(state, jax.random.key(1), played)
    # Won, lost and drawn: (1.5 + 0.5) / (3 + 1).
    assert float(metrics["pool_size"]) == 1.0 and float(metrics["pool_score"]) == 0.5
    np.testing.assert_allclose(state.pool.games, [3, 0, 0])
    state, _ = step(state, jax.random.key(1), played)
    np.testing.assert_allclose(state.pool.games, [4.5, 0, 0])
    np.testing.assert_allclose(state.pool.params[:2], [[0, 0], [2, 2]])
    won = batch([[1.0, 1.0], [1.0, 1.0]], [[True, True], [True, True]], [[1, 1], [1, 1]])
    state, metrics = step(state, jax.random.key(1), won)
    np.testing.assert_allclose(metrics["pool_least_score"], 0.5)
    np.testing.assert_allclose(metrics["pool_score"], (0.5 + 4.5 / 5) / 2)
    acting = learner.acting(state)
    np.testing.assert_array_equal(acting["params"], state.params)
    np.testing.assert_array_equal(acting["pool"].num_added, 2)


def test_a_stage_goes_on_from_parameters():
    state = with_opponents(COUNTING, capacity=2).init(jax.random.key(0), jnp.full(2, 7.0))
    np.testing.assert_array_equal(state.pool.params[0], [7.0, 7.0])


@pytest.mark.exhaustive
def test_q_learning_plays_against_its_former_selves():
    """A replay buffer takes the shapes of rollouts that only the pool can play."""
    game = flatten_observation(make_environment("tic_tac_toe"))
    inner = partial(
        dqn.make_agent,
        value=partial(make_q_function, encoder=MLP(hidden_sizes=(4,))),
        optimizer=make_adam,
        buffer=make_uniform_buffer(capacity=64, batch_size=4),
    )
    agent = make_agent(game, inner=inner, capacity=2, add_every=1)
    collector = make_opponents_collector(game, agent.policy, num_envs=4, num_steps=4, num_opponents=2)
    program = make_program(collector, agent.make_learner(collector, 2))
    state, metrics = jax.jit(program.update)(program.init(jax.random.key(0)))
    assert float(metrics["train/pool_size"]) == 1.0 and np.isfinite(metrics["train/loss"].value)
    assert int(state.learner.pool.num_added) == 2 and int(state.learner.inner.buffer.num_steps[0]) == 4


def test_refused():
    with pytest.raises(ValueError, match="`capacity` and `add_every` of an opponent pool must be at least 1, got 0"):
        with_opponents(COUNTING, capacity=0)
    with pytest.raises(ValueError, match=r"`decay` must be in \[0, 1\], got 2"):
        with_opponents(COUNTING, decay=2)
    learner = with_opponents(COUNTING)
    nameless = batch([[0.0] * 2] * 2, [[False] * 2] * 2, [[0, 0]] * 2)
    nameless = nameless.replace(transition=nameless.transition.replace(extras={}))
    with pytest.raises(ValueError, match="`batch` must say whom it was played against"):
        learner.update(learner.init(jax.random.key(0)), jax.random.key(0), nameless)
