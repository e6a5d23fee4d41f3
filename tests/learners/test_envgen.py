"""Levels made for what is not reached: when, for which achievements, and what is counted, on one and two devices."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf

from jaxagents.environments import craft, quest
from jaxagents.learners.envgen import make_agent, with_generated_levels
from jaxagents.types import Agent
from tests.fakes import COUNTING, make_rollout, require_equal_states

KEY = jax.random.key(0)
NAMES = ("wood", "stone", "iron")


def lowest_two(key, success):
    return jnp.argsort(success)[:2].astype(jnp.int32)


def make(**options):
    """Levels are numbers below 1; one that is made for achievement i is i + 1 more."""
    options = {"num_cycles": 2, "num_generated": 1, "num_original": 2, "choose": lowest_two} | options
    return with_generated_levels(
        COUNTING,
        jax.random.uniform,
        num_levels=8,
        achievements=NAMES,
        prepare=lambda key, level, index: level + index + 1,
        **options,
    )


def played(wood, stone, iron):
    """Returns rollouts of two episodes in each of 8 levels, in so many of which achievements are reached at the end."""
    ended = np.tile(np.array([[False], [True]] * 2), (1, 8))

    def reached(count):
        # Also told before the end, where it does not count.
        return jnp.asarray(np.where(ended, np.arange(32).reshape(4, 8) % 8 < count, 1.0), jnp.float32)

    return make_rollout(
        truncated=jnp.asarray(ended),
        first=jnp.ones(ended.shape, bool),
        extras={"metrics": {"wood": reached(wood), "stone": reached(stone), "iron": reached(iron)}},
    )


def kinds(learner, state):
    """Returns the achievements that the levels of the next rollout are made for; -1 for levels as they are."""
    return set((np.floor(np.asarray(learner.acting(state)["levels"])) - 1).astype(int).tolist())


def test_levels_are_made_for_what_was_reached_least_in_levels_as_they_are():
    learner = make()
    update, state = jax.jit(learner.update), learner.init(KEY)
    assert kinds(learner, state) <= {0, 1} and state.memory.chosen.tolist() == [0, 1]
    found = []
    for step, counts in enumerate([(8, 8, 8), (8, 2, 4), (8, 0, 8), (0, 0, 0), (0, 8, 8), (0, 8, 4), (0, 0, 0)]):
        state, metrics = update(state, jax.random.key(step), played(*counts))
        found.append((kinds(learner, state), float(metrics["generated"]), float(metrics["success"])))
    plain = {-1}
    assert [levels for levels, _, _ in found[:2]] == [plain, plain]
    # The second cycle: wood 32 of 32 episodes, stone 4 and iron 24; what generated levels reach does not count.
    assert found[2][0] <= {1, 2} and state.memory.chosen.tolist() == [1, 2]
    assert [levels for levels, _, _ in found[3:]] == [plain] * 4
    assert [generated for _, generated, _ in found] == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    # Without episodes 0; then 14 of 24, and all of the cycle; and anew.
    np.testing.assert_allclose([success for _, _, success in found[:5]], [0.0, 14 / 24, 30 / 48, 0.0, 16 / 24])
    assert int(state.params) == 7 and update._cache_size() == 1


def test_without_adapting_the_first_choice_stays_and_without_cycles_nothing_is_made():
    learner = make(adapts=False)
    state = learner.init(KEY)
    for step in range(3):
        state, _ = learner.update(state, jax.random.key(step), played(8, 0, 0))
    assert state.memory.chosen.tolist() == [0, 1] and kinds(learner, state) <= {0, 1}
    assert kinds(make(num_cycles=0), make(num_cycles=0).init(KEY)) == {-1}
    always = make(num_original=0, num_cycles=9)
    state, _ = always.update(always.init(KEY), KEY, played(8, 0, 0))
    assert kinds(always, state) <= {0, 1}


@pytest.mark.exhaustive
def test_two_devices_count_as_one():
    one, many = make(), make(axis_name="device")
    state, rollout = one.init(KEY), played(8, 2, 4)
    state = state.replace(memory=state.memory.replace(round=jnp.int32(2)))
    require_equal_states(one, many, state, rollout)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="`num_original` must not be negative, got -1"):
        make(num_original=-1)
    with pytest.raises(ValueError, match="`num_generated` must be at least 1, got 0"):
        make(num_generated=0)
    with pytest.raises(ValueError, match="`achievements` must be at least one, got none"):
        with_generated_levels(COUNTING, jax.random.uniform, num_levels=1, achievements=(), prepare=None)
    with pytest.raises(ValueError, match=r"got 'wood' in quest; try world=craft"):
        make_agent(quest.make_environment(), inner=lambda *_, **__: Agent(None, None), achievements=NAMES)
    with pytest.raises(ValueError, match=r"got 'wood' in craft; try collect_coal, collect_diamond"):
        make_agent(craft.make_environment(8), inner=lambda *_, **__: Agent(None, None), achievements=NAMES)


def test_the_option_file_names_achievements_in_their_order():
    folder = pathlib.Path(__file__).parents[2] / "configs" / "learner"
    assert tuple(OmegaConf.load(folder / "generated_levels.yaml").achievements) == craft.ACHIEVEMENTS
