"""The replay combinator around a learner that counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxagents.data.buffers import make_prioritized_buffer, make_uniform_buffer
from jaxagents.learners.combinators import rollout_shapes
from jaxagents.learners.replay import gather_step, with_replay
from jaxagents.ops.schedules import linear_schedule
from jaxagents.types import REPLICATED, Array, Collector, Learner, Mean, Policy
from tests.fakes import make_rollout


@struct.dataclass
class Counter:
    params: Array


def make_counter(report_priority=True):
    """Makes a learner that adds up the rewards it sees, whose priority is the reward."""

    def update(state, key, batch):
        del key
        reward = batch.transition.reward[0]
        metrics = {"seen": jnp.mean(reward), "ones": Mean(total=jnp.float32(3.0), count=jnp.float32(3.0))}
        if report_priority:
            metrics["priority"] = reward
        return Counter(params=state.params + jnp.sum(batch.weight * reward)), metrics

    return Learner(
        init=lambda key, params=None: Counter(params=jnp.zeros(()) if params is None else params), update=update
    )


def rollout(reward):
    reward = jnp.asarray(reward, jnp.float32)
    return make_rollout(observation=reward[..., None], action=jnp.zeros(reward.shape, jnp.int32), reward=reward)


ROLLOUT = rollout([[1.0, 1.0]])
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def uniform():
    buffer = make_uniform_buffer(capacity=16, batch_size=4, min_size=4)
    return with_replay(make_counter(), buffer, ROLLOUT, updates_per_rollout=3)


def test_waits_until_the_buffer_can_be_sampled_then_updates(uniform):
    update = jax.jit(uniform.update)
    state, metrics = update(uniform.init(KEY), KEY, ROLLOUT)
    assert float(state.params) == 0.0
    assert metrics["seen"].count == 0 and metrics["ones"].count == 0
    assert np.all(np.isfinite(jax.tree.leaves(metrics)))
    state, metrics = update(state, KEY, ROLLOUT)
    assert float(state.params) == 12.0
    assert metrics.keys() == {"seen", "ones", "priority"}
    assert (float(metrics["seen"].value), float(metrics["seen"].count)) == (1.0, 3.0)
    assert (float(metrics["ones"].value), float(metrics["ones"].count)) == (1.0, 9.0)
    assert update._cache_size() == 1


def test_a_gpu_selects_what_a_cpu_branches_to(uniform, monkeypatch):
    """The program for a GPU has no branch, for which it would wait; its numbers are those of the other."""
    state = uniform.init(KEY)
    expected = [jax.jit(uniform.update)(state, KEY, ROLLOUT)]
    expected.append(jax.jit(uniform.update)(expected[0][0], KEY, ROLLOUT))
    assert "cond[" in str(jax.make_jaxpr(uniform.update)(state, KEY, ROLLOUT))
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, cuda, **others: cuda(*args))
    assert "cond[" not in str(jax.make_jaxpr(lambda *args: uniform.update(*args))(state, KEY, ROLLOUT))
    actual = [jax.jit(lambda *args: uniform.update(*args))(state, KEY, ROLLOUT)]
    actual.append(jax.jit(lambda *args: uniform.update(*args))(actual[0][0], KEY, ROLLOUT))
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
    assert float(actual[0][0].params) == 0.0 and float(actual[1][0].params) == 12.0


@pytest.mark.exhaustive
def test_starts_from_given_parameters_and_works_without_jit(uniform):
    state = uniform.init(KEY, jnp.float32(7.0))
    assert float(state.params) == 7.0
    with jax.disable_jit():
        for _ in range(2):
            state, _ = uniform.update(state, KEY, ROLLOUT)
    assert float(state.params) == 19.0


def test_priorities_of_the_learner_reach_the_buffer():
    buffer = make_prioritized_buffer(capacity=8, batch_size=64, priority_exponent=1.0)
    batch = rollout([[1.0], [7.0]])
    learner = with_replay(make_counter(), buffer, batch, updates_per_rollout=2)
    state, metrics = jax.jit(learner.update)(learner.init(KEY), KEY, batch)
    np.testing.assert_allclose(state.buffer.priorities[0, 1], 8.0)
    # The first update draws both equally, the second in the ratio of one to seven.
    np.testing.assert_allclose(metrics["seen"].value, 0.5 * (4.0 + (1.0 + 7.0 * 7.0) / 8.0), rtol=1e-5)


def test_weights_are_raised_to_an_exponent_that_may_be_a_schedule():
    """What is drawn 7 times as often weighs as much in the first update, and a seventh in the second."""
    buffer = make_prioritized_buffer(capacity=8, batch_size=64, priority_exponent=1.0)
    batch = rollout([[1.0], [7.0]])
    exponent = linear_schedule(start=0.0, end=1.0, num_updates=1)
    learner = with_replay(make_counter(), buffer, batch, importance_exponent=exponent)
    update = jax.jit(learner.update)
    first, _ = update(learner.init(KEY), KEY, batch)
    np.testing.assert_allclose(first.params, 64 * 4.0)  # As often, and of a weight of one.
    # Priorities are 1 and 7, and 7 for both new steps: of 64 draws in 22 parts, (1 * 1 + (7 * 7 + 7 * 1 + 7 * 7) / 7).
    second, _ = update(first, jax.random.key(1), batch)
    np.testing.assert_allclose(second.params - first.params, 64 * 16 / 22, atol=2.5)
    assert float(second.settings.memory["importance_exponent"].update) == 2.0 and update._cache_size() == 1


def test_priorities_that_are_not_finite_leave_the_old_ones_and_show():
    buffer = make_prioritized_buffer(capacity=8, batch_size=16, priority_exponent=1.0)
    batch = rollout([[3.0], [3.0]])
    counter = make_counter()

    def update(state, key, sample):
        state, metrics = counter.update(state, key, sample)
        return state, metrics | {"priority": metrics["priority"].at[0].set(jnp.nan).at[1].set(jnp.inf)}

    learner = with_replay(counter._replace(update=update), buffer, batch)
    state, metrics = jax.jit(learner.update)(learner.init(KEY), KEY, batch)
    assert np.all(np.isfinite(state.buffer.priorities)) and np.all(np.isfinite(state.buffer.max_priority))
    assert not np.isfinite(metrics["priority"].value)


def test_a_learner_without_priorities_keeps_those_of_the_buffer():
    buffer = make_prioritized_buffer(capacity=8, batch_size=4)
    learner = with_replay(make_counter(report_priority=False), buffer, ROLLOUT)
    state, _ = jax.jit(learner.update)(learner.init(KEY), KEY, ROLLOUT)
    np.testing.assert_allclose(state.buffer.priorities[0, 1], 2.0)


def test_partition_splits_the_buffer_only(uniform):
    state = uniform.init(KEY)
    partition = uniform.partition(state)
    assert jax.tree.structure(partition) == jax.tree.structure(state)
    assert set(jax.tree.leaves(partition.buffer)) == {0} and set(jax.tree.leaves(partition.inner)) == {REPLICATED}


def test_seeds_can_be_vmapped(uniform):
    keys = jax.random.split(KEY, 2)
    states = jax.jit(jax.vmap(uniform.init))(keys)
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, 2.0 * leaf if leaf.dtype == jnp.float32 else leaf]), ROLLOUT)
    update = jax.jit(jax.vmap(uniform.update))
    for _ in range(2):
        states, _ = update(states, keys, batch)
    np.testing.assert_allclose(states.params, [12.0, 24.0])


def test_gather_step_takes_a_step_of_each_sequence():
    tree = {"a": jnp.arange(6).reshape(3, 2)}
    np.testing.assert_array_equal(gather_step(tree, jnp.array([2, 0]))["a"], [4, 1])
    np.testing.assert_array_equal(gather_step(tree, jnp.array([[2, 0], [1, 1]]))["a"], [[4, 1], [2, 3]])
    assert gather_step(None, jnp.array([2, 0])) is None


def test_rollout_shapes_are_those_of_the_collector():
    def collect(state, params, key):
        del params, key
        return state, ROLLOUT, {}

    collector = Collector(init=lambda key, params: (), collect=collect, steps_per_collect=2)
    shapes = rollout_shapes(collector, Policy(init=lambda key: (), initial_carry=None, apply=None))
    assert shapes.transition.observation.shape == (1, 2, 1)


def test_refuses_no_updates():
    with pytest.raises(ValueError, match="`updates_per_rollout` must be at least 1, got 0"):
        with_replay(make_counter(), make_uniform_buffer(capacity=8, batch_size=2), ROLLOUT, updates_per_rollout=0)
