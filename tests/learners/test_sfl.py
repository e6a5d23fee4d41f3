"""Sampling for learnability: which levels are chosen and trained on, by hand, on two devices, and in small mazes."""

from functools import partial

import jax
import numpy as np
import optax
import pytest

from jaxagents.environments import contextual_gridworld
from jaxagents.learners import ppo
from jaxagents.learners.sfl import make_agent, with_learnability
from jaxagents.networks.torsos import MLP
from jaxagents.policies.actor_critic import make_actor_critic
from jaxagents.rollouts.levels import make_level_collector
from jaxagents.training.program import make_program, run_updates
from tests.fakes import COUNTING, play_levels, require_equal_states

KEY = jax.random.key(0)


def make(axis_name=None, **options):
    """Levels are numbers; the cycle has two rollouts that judge and two that train, of four levels."""
    options = {"num_levels": 4, "num_chosen": 3, "num_judged": 2, "num_trained": 2} | options
    return with_learnability(COUNTING, jax.random.uniform, chosen_share=0.5, axis_name=axis_name, **options)


def test_the_best_of_a_cycle_are_chosen_and_trained_on():
    learner = make()
    update, state = jax.jit(learner.update), learner.init(KEY)
    first = np.asarray(state.memory.levels)
    state, metrics = update(state, jax.random.key(1), play_levels(0.0, 0.5, 1.0, None))
    second = np.asarray(state.memory.levels)
    assert not np.intersect1d(first, second).size and float(metrics["judged"]) == 1.0
    state, metrics = update(state, jax.random.key(2), play_levels(0.25, 0.0, None, 0.5))
    best = {first[1]: 0.25, second[0]: 0.1875, second[3]: 0.25}
    np.testing.assert_allclose(sorted(state.memory.score), sorted(best.values()))
    assert set(np.asarray(state.memory.chosen)) == set(best) and int(state.params) == 0
    np.testing.assert_allclose(metrics["learnability"], np.mean(list(best.values())), rtol=1e-6)
    for count in (1, 2):
        levels = np.asarray(learner.acting(state)["levels"])
        assert set(levels[:2]) <= set(best) and not set(levels[2:]) & {*best, *first, *second}
        state, metrics = update(state, jax.random.key(2 + count), play_levels(1.0, 1.0, 1.0, 1.0))
        assert int(state.params) == count and float(metrics["judged"]) == 0.0
    # A new cycle forgets what was chosen in the last one.
    third = np.asarray(state.memory.levels)
    assert not set(third) & set(best)
    state, _ = update(state, jax.random.key(5), play_levels(0.0, 0.75, 0.0, 0.0))
    np.testing.assert_allclose(sorted(state.memory.score), [0.0, 0.0, 0.1875])
    assert set(np.asarray(state.memory.chosen)) <= set(third) and int(state.params) == 2 and update._cache_size() == 1
    # Schedules are those of the run: five rollouts.
    assert int(state.inner.schedule.count) == 5


@pytest.mark.exhaustive
def test_two_devices_choose_as_one():
    one, many = make(), make(axis_name="device")
    state, rollout = one.init(KEY), play_levels(0.25, 0.5, 0.0, None)
    require_equal_states(one, many, state, rollout)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="`num_judged` must be enough to choose 9 levels, got 2 rollouts of 4; try 3"):
        make(num_chosen=9)
    with pytest.raises(ValueError, match="`num_trained` must be at least 1, got 0"):
        make(num_trained=0)


@pytest.mark.exhaustive
def test_it_solves_small_mazes():
    world = contextual_gridworld.make_environment(3, max_steps=6)
    policy = partial(make_actor_critic, encoder=MLP((32,), observation_ndim=3))
    inner = partial(
        ppo.make_agent, policy=policy, optimizer=lambda steps: optax.adam(3e-3), num_epochs=4, num_minibatches=2
    )
    agent = make_agent(world, inner=inner, num_chosen=16, num_judged=4, num_trained=12)
    collector = make_level_collector(world, agent.policy, num_envs=8, num_steps=12)
    program = make_program(collector, agent.make_learner(collector, 160))
    play = jax.jit(partial(run_updates, program))
    state, _ = play(program.init(KEY), 144)
    _, metrics = play(state, 16)
    assert float(metrics["rollout/success_rate"].value) > 0.7 and 0.2 < float(metrics["train/judged"].value) < 0.3
