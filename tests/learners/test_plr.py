"""Level replay: what is learned from, where the levels of the next rollout come from, two devices, and a toy task."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.environments import contextual_gridworld
from jaxagents.learners import ppo
from jaxagents.learners.plr import MUTATED, NEW, REPLAYED, make_agent
from jaxagents.networks.torsos import MLP
from jaxagents.ops.levels import learnability, max_monte_carlo
from jaxagents.policies.actor_critic import make_actor_critic
from jaxagents.rollouts.levels import make_level_collector
from jaxagents.training.program import make_program, run_updates
from tests.fakes import require_agreement

KEY = jax.random.key(0)
WORLD = contextual_gridworld.make_environment(3, max_steps=6)
POLICY = partial(make_actor_critic, encoder=MLP((32,), observation_ndim=3))


def open_up(key, level):
    """Tears all walls down, so that one can see who was changed."""
    del key
    return {**level, "walls": jnp.zeros_like(level["walls"])}


def make(num_updates=60, axis_name=None, optimizer=lambda steps: optax.adam(3e-3), **options):
    inner = partial(ppo.make_agent, policy=POLICY, optimizer=optimizer, num_epochs=4, num_minibatches=2)
    options = {"capacity": 32, "replay_probability": 0.5, "fill_fraction": 0.25} | options
    agent = make_agent(WORLD, inner=inner, policy=POLICY, axis_name=axis_name, **options)
    collector = make_level_collector(WORLD, agent.policy, num_envs=8, num_steps=12)
    return collector, agent.make_learner(collector, num_updates)


def run(collector, learner, num_updates):
    """Returns what is trained of every update: kinds, whether parameters changed, and the state."""

    def body(carry, key):
        state, place = carry
        act_key, learn_key = jax.random.split(key)
        place, rollout, _ = collector.collect(place, learner.acting(state), act_key)
        after, _ = learner.update(state, learn_key, rollout)
        moved = jax.tree.map(lambda a, b: jnp.any(a != b), after.params, state.params)
        return (after, place), (
            state.memory.kind,
            jnp.any(jnp.stack(jax.tree.leaves(moved))),
            state.memory.levels,
            after.memory.archive,
        )

    state = learner.init(KEY)
    start = (state, collector.init(KEY, None))
    return jax.jit(lambda start: jax.lax.scan(body, start, jax.random.split(KEY, num_updates)))(start)


@pytest.mark.exhaustive
def test_robust_replay_learns_from_replayed_levels_and_changes_them_next():
    collector, learner = make(
        optimizer=lambda steps: optax.chain(optax.adam(3e-3), optax.scale_by_schedule(lambda count: 1.0)),
        mutate=open_up,
        replay_probability=1.0,
    )
    (state, _), (kind, moved, levels, archive) = run(collector, learner, 12)
    kind = np.asarray(kind)
    np.testing.assert_array_equal(np.asarray(moved), kind == REPLAYED)
    assert kind[0] == NEW and set(kind) == {NEW, REPLAYED, MUTATED}
    assert np.all(kind[1:][kind[:-1] == REPLAYED] == MUTATED)
    assert not np.any(np.asarray(levels["walls"])[kind == MUTATED])
    # Schedules are those of the run: 12 rollouts of 8 optimiser steps, taken or not.
    assert int(state.inner.opt_state[1].count) == 12 * 8
    # Levels that are replayed are those of the archive, field by field.
    at = int(np.argmax(kind == REPLAYED))
    known = np.asarray(archive.levels["walls"])[at - 1]
    assert all(any(np.array_equal(one, old) for old in known) for one in np.asarray(levels["walls"])[at])
    assert int(state.memory.kind) in (NEW, REPLAYED, MUTATED) and np.isfinite(state.memory.archive.score).sum() > 8


@pytest.mark.exhaustive
def test_two_devices_choose_and_learn_as_one():
    collector, one = make(train_on_new=True, score=max_monte_carlo)
    _, many = make(train_on_new=True, score=max_monte_carlo, axis_name="device")
    state = one.init(KEY)
    _, rollout, _ = jax.jit(collector.collect)(collector.init(KEY, None), one.acting(state), KEY)
    names = ("archive", "levels", "place", "kind")
    require_agreement(one, many, state, rollout, lambda state, _: [getattr(state.memory, name) for name in names])


@pytest.mark.slow
def test_it_solves_small_mazes_and_a_pause_changes_no_bit():
    collector, learner = make(120, score=learnability, train_on_new=True)
    program = make_program(collector, learner)
    play = jax.jit(partial(run_updates, program))
    half, _ = play(program.init(KEY), 60)
    resumed, metrics = play(half, 60)
    whole, _ = play(program.init(KEY), 120)
    same = jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), whole.learner, resumed.learner)
    assert all(jax.tree.leaves(same)) and play._cache_size() == 1
    assert float(metrics["rollout/success_rate"].value) > 0.7
    assert 0.2 < float(metrics["train/replayed"].value) < 0.8


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="`capacity` must be at least the 8 levels of a rollout, got 4"):
        make(capacity=4)
    with pytest.raises(ValueError, match=r"`replay_probability` must be in \[0, 1\], got 2"):
        make(replay_probability=2.0)
    with pytest.raises(ValueError, match="`num_steps` must be at least 1, got 0"):
        make_level_collector(WORLD, None, num_envs=1, num_steps=0)
