"""A learner with a pool: what is added when, counted how, and acted with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxagents.learners.opponents import with_opponents
from jaxagents.types import Array, Learner, Rollout, Transition


@struct.dataclass
class Counting:
    params: Array


def update(state, key, batch):
    assert "opponent" not in batch.transition.extras
    return state.replace(params=state.params + 1.0), {"loss": jnp.zeros(())}


COUNTING = Learner(
    init=lambda key, params=None: Counting(params=jnp.zeros(2) if params is None else params), update=update
)
SHAPE = (2, 2)


def batch(reward, terminated, opponent):
    zeros = jnp.zeros(SHAPE)
    transition = Transition(
        observation=zeros,
        action=zeros,
        behavior_log_prob=zeros,
        reward=jnp.array(reward),
        terminated=jnp.array(terminated),
        truncated=jnp.zeros(SHAPE, bool),
        next_observation=zeros,
        first=jnp.zeros(SHAPE, bool),
        extras={"opponent": jnp.array(opponent)},
    )
    return Rollout(transition=transition, carry=())


def test_former_parameters_are_added_and_games_counted():
    learner = with_opponents(COUNTING, capacity=3, add_every=2, decay=0.5)
    state = learner.init(jax.random.key(0))
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
