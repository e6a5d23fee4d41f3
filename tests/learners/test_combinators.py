"""Learners around learners: any two compose, and say whom the inner one acts with and what devices split."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxagents.data.buffers import make_uniform_buffer
from jaxagents.learners.combinators import params_to_act, replace_innermost
from jaxagents.learners.delayed import with_delayed_actor
from jaxagents.learners.estimators import Estimator, with_estimator
from jaxagents.learners.lagged import with_lagged_actor
from jaxagents.learners.normalization import normalize_observations
from jaxagents.learners.opponents import with_opponents
from jaxagents.learners.partners import with_frozen_partner
from jaxagents.learners.population import population
from jaxagents.learners.replay import with_replay
from jaxagents.training.program import make_program, over_seeds
from jaxagents.types import REPLICATED, Array, Box, Collector, Learner, Mean
from tests.fakes import make_rollout

KEY = jax.random.key(0)
NUM_STEPS, NUM_ENVS, NUM_MEMBERS = 2, 4, 2


@struct.dataclass
class Counting:
    """Counts its updates; `split` is a leaf that devices split."""

    params: Array
    split: Array
    step_size: Array


COUNTING = Learner(
    init=lambda key, start=None: Counting(
        params=jnp.zeros(()) if start is None else getattr(start, "params", start),
        split=jnp.zeros(2),
        step_size=jnp.ones(()),
    ),
    update=lambda state, key, batch: (
        state.replace(params=state.params + 1.0),
        {
            "loss": jnp.mean(batch.transition.observation),
            "kept": Mean(total=jnp.float32(3.0), count=jnp.float32(2.0)),
        },
    ),
    partition=lambda state: Counting(params=REPLICATED, split=0, step_size=REPLICATED),
    acting=lambda state: state.params + 100.0,
)


def rollout(*leading):
    shape = (*leading, NUM_STEPS, NUM_ENVS)
    return make_rollout(
        observation=jnp.ones((*shape, 3)),
        reward=jnp.ones(shape),
        terminated=jnp.ones(shape, bool),
        extras={"opponent": jnp.zeros(shape, jnp.int32)},
    )


# Judges observations to be half of what they are, and counts what it was fitted to.
HALVING = Estimator(
    init=lambda key, params, start=None: jnp.zeros(()),
    judge=lambda state, batch: (jax.tree.map(lambda x: x / 2 if x.dtype == jnp.float32 else x, batch), state),
    describe=lambda batch, estimates: {"fitted_before": estimates},
    fit=lambda state, key, batch, estimates: state + 1.0,
)
# Of every combinator: how it is put around a learner, and where in what it acts with the inner one's is.
AROUND = {
    "normalize": (lambda learner: normalize_observations(learner, Box((3,))), lambda acting: acting["params"]),
    "replay": (
        lambda learner: with_replay(learner, make_uniform_buffer(capacity=16, batch_size=4), rollout()),
        lambda acting: acting,
    ),
    "opponents": (lambda learner: with_opponents(learner, capacity=2), lambda acting: acting["params"]),
    "partner": (with_frozen_partner, lambda acting: acting[0]),
    "estimator": (lambda learner: with_estimator(learner, HALVING), lambda acting: acting),
    "lagged": (lambda learner: with_lagged_actor(learner, every=1), lambda acting: acting),
    "delayed": (lambda learner: with_delayed_actor(learner, delay=0), lambda acting: acting),
    "population": (
        lambda learner: population(learner, NUM_MEMBERS, explore={"step_size": (0.5, 2.0)}),
        lambda acting: acting,
    ),
}
# Members have batches of their own, so a population is around the others.
PAIRS = [(outer, inner) for outer, inner in itertools.permutations(AROUND, 2) if inner != "population"]


def leaf_named(tree, name):
    (leaf,) = [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree) if f".{name}" in map(str, path)]
    return leaf


@pytest.mark.exhaustive
@pytest.mark.parametrize(("outer", "inner"), PAIRS, ids=map("-".join, PAIRS))
def test_any_two_compose(outer, inner):
    """One update in one program over two seeds: the innermost learner learns, acts and is split as if alone."""
    batch = rollout(NUM_MEMBERS) if outer == "population" else rollout()
    learner = AROUND[outer][0](AROUND[inner][0](COUNTING))
    collector = Collector(
        init=lambda key, params: jnp.zeros(NUM_ENVS),
        collect=lambda state, params, key: (state, batch, {}),
        steps_per_collect=NUM_STEPS * NUM_ENVS,
    )
    program = over_seeds(make_program(collector, learner), 3)
    state, metrics = jax.jit(program.update)(program.init(KEY))
    members = outer == "population"
    np.testing.assert_array_equal(leaf_named(program.partition(state).learner, "split"), 2 if members else 1)
    acting = jax.jit(jax.vmap(lambda state: params_to_act(learner, state)))(state.learner)
    np.testing.assert_array_equal(AROUND[inner][1](AROUND[outer][1](acting)), np.full((3, 2) if members else 3, 101.0))
    np.testing.assert_allclose(metrics["train/kept"].value, [1.5] * 3)
    # A stage starts from what the one before has learned.
    following = jax.jit(jax.vmap(learner.init))(jax.random.split(KEY, 3), state.learner)
    chex.assert_trees_all_equal(following.inner.params, state.learner.inner.params)


def test_the_innermost_state_is_changed_through_all_others():
    learner = AROUND["partner"][0](AROUND["normalize"][0](COUNTING))
    state = replace_innermost(learner.init(KEY), lambda inner: inner.replace(params=jnp.float32(7.0)))
    np.testing.assert_array_equal(learner.acting(state)[0]["params"], 107.0)


def test_an_estimator_judges_before_it_is_fitted_and_alone_while_it_explores():
    learner = with_estimator(COUNTING, HALVING, num_exploring=1)
    state, metrics = learner.update(learner.init(KEY), KEY, rollout())
    assert float(metrics["loss"]) == 0.5 and float(metrics["fitted_before"]) == 0.0
    assert float(state.params) == 0.0 and float(state.estimator) == 1.0
    state, _ = learner.update(state, KEY, rollout())
    assert float(state.params) == 1.0 and float(state.estimator) == 2.0
    frozen = with_estimator(COUNTING, HALVING, num_exploring=1, num_fitted=1)
    state = frozen.init(KEY)
    for _ in range(3):
        state, _ = frozen.update(state, KEY, rollout())
    assert float(state.params) == 2.0 and float(state.estimator) == 1.0
    with pytest.raises(ValueError, match="`num_fitted` must be at least 1 and `num_exploring`, got 1 and 2"):
        with_estimator(COUNTING, HALVING, num_exploring=2, num_fitted=1)
    with pytest.raises(ValueError, match="`num_exploring` must not be negative, got -1"):
        with_estimator(COUNTING, HALVING, num_exploring=-1)
