"""DiCode: what is played in a session, what is counted, when levels are made, two devices, and small quests."""

from functools import partial

import jax
import numpy as np
import optax
import pytest

from jaxagents.environments import quest
from jaxagents.environments.quest_levels import field_sizes, graded
from jaxagents.learners import ppo
from jaxagents.learners.dicode import make_agent, with_dreamed_levels
from jaxagents.networks.torsos import MLP
from jaxagents.policies.actor_critic import make_actor_critic
from jaxagents.rollouts.levels import make_level_collector
from jaxagents.training.program import make_program, run_updates
from tests.fakes import COUNTING, play_levels, require_equal_states

KEY = jax.random.key(0)
SIZES = (2, 3)


def make(axis_name=None, **options):
    """Tasks are the numbers of levels; two of ten environments are on the world as it is, level 5."""
    options = {"num_played": 3, "num_children": 2, "session": 2, "window": 1, "interval": 1, "capacity": 6} | options
    return with_dreamed_levels(
        COUNTING, lambda key, number: number, num_levels=10, sizes=SIZES, axis_name=axis_name, **options
    )


def played(levels, shares):
    """Returns four episodes of one step in every environment, of which the share of its level is won."""
    return play_levels(*(shares[level] for level in np.asarray(levels)))


def test_levels_are_made_from_those_that_are_won():
    learner = make()
    update, state = jax.jit(learner.update), learner.init(KEY)
    assert learner.acting(state)["levels"].tolist() == [5, 5] + [0] * 8
    state, metrics = update(state, jax.random.key(1), played(state.memory.levels, [0.0] * 6))  # Before the window.
    assert float(metrics["levels_made"]) == 1.0
    state, metrics = update(state, jax.random.key(2), played(state.memory.levels, [0.75] * 6))
    # One level, won three times of four: both of its edits are made, and played beside it.
    assert float(metrics["level_success"]) == 0.75 and float(metrics["levels_made"]) == 3.0
    assert float(metrics["hardest"]) == 0.0 and float(metrics["levels_active"]) == 1.0
    assert (
        state.memory.ended.tolist() == [32.0, 0.0, 0.0, 0.0, 0.0, 0.0] and float(state.memory.graph.success[0]) == 0.75
    )
    assert state.memory.levels[:2].tolist() == [5, 5] and sorted(set(state.memory.levels.tolist())) == [0, 1, 3, 5]
    for key in (3, 4):
        state, metrics = update(state, jax.random.key(key), played(state.memory.levels, [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]))
    # Level 3, (1, 0), is mastered; the next one, 4, is made from it; 1, (0, 1), is not won.
    assert float(metrics["levels_active"]) == 3.0 and int(state.memory.graph.size) == 4
    fields, parent = state.memory.graph.fields[3].tolist(), int(state.memory.graph.parent[3])
    assert fields == [1, 1] and state.memory.graph.fields[parent].tolist() == [1, 0]
    assert state.memory.graph.active.tolist() == [True] * 3 + [False] * 3
    np.testing.assert_allclose(metrics["hardest"], 1 / 3)
    assert {4, 5} < set(state.memory.levels.tolist()) and int(state.params) == 4 and update._cache_size() == 1


def test_no_level_is_made_between_generations():
    learner = make(interval=2)
    state = learner.init(KEY)
    sizes = []
    for key in range(4):
        state, _ = learner.update(state, jax.random.key(key), played(state.memory.levels, [1.0] * 6))
        sizes.append(int(state.memory.graph.size))
    assert sizes == [1, 1, 1, 3]


@pytest.mark.slow
def test_two_devices_count_as_one():
    one, many = make(session=1), make(axis_name="device", session=1)
    state = one.init(KEY)
    rollout = played(state.memory.levels, [0.5] * 6)
    expected = require_equal_states(one, many, state, rollout)
    assert int(expected.memory.graph.size) == 3


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="`window` must be from 1 to the 2 rollouts of a session, got 3"):
        make(window=3)
    with pytest.raises(ValueError, match="`num_played` must be at most the 8 .* try collector.num_envs=12"):
        make(num_played=9)
    with pytest.raises(ValueError, match="`num_children` must be at least 1, got 0"):
        make(num_children=0)


@pytest.mark.exhaustive
def test_it_goes_from_near_to_far_in_small_quests():
    world = graded(quest.make_environment(size=4, max_steps=16), (1,))
    policy = partial(make_actor_critic, encoder=MLP((64,), observation_ndim=3))
    inner = partial(
        ppo.make_agent, policy=policy, optimizer=lambda steps: optax.adam(3e-3), num_epochs=4, num_minibatches=2
    )
    numbers = {"num_played": 4, "num_children": 2, "session": 2, "window": 2, "interval": 1, "capacity": 16}
    agent = make_agent(world, inner=inner, sizes=field_sizes((1,)), **numbers)
    collector = make_level_collector(world, agent.policy, num_envs=16, num_steps=32)
    program = make_program(collector, agent.make_learner(collector, 160))
    state, metrics = jax.jit(partial(run_updates, program), static_argnums=1)(program.init(KEY), 160)
    assert float(metrics["train/hardest"].value) > 0.0 and float(metrics["rollout/success_rate"].value) > 0.3
