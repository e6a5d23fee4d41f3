"""The task filter of XLand: which levels are accepted and trained on, by hand, on two devices, and in quests."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.learners.xland import with_filtered_levels
from tests.fakes import COUNTING, play_levels, require_equal_states

KEY = jax.random.key(0)


def make(axis_name=None, **options):
    """Levels are numbers; the cycle judges two batches of four by two rollouts each, and trains on two rollouts."""
    options = {"num_levels": 4, "num_batches": 2, "num_trained": 2} | options
    return with_filtered_levels(COUNTING, jax.random.uniform, axis_name=axis_name, **options)


def test_levels_between_solved_and_hopeless_are_trained_on():
    learner = make()
    update, state = jax.jit(learner.update), learner.init(KEY)
    state = state.replace(memory=state.memory.replace(control=jnp.float32(-1.0)))
    first = np.asarray(state.memory.levels)
    assert int(learner.acting(state)["params"]) == 0
    state, metrics = update(state, KEY, play_levels(0.5, 1.0, 0.0, 0.75))
    # The weak player plays the same levels; the last one it wins too often.
    assert int(learner.acting(state)["params"]) == -1 and float(metrics["judged"]) == 1.0
    np.testing.assert_array_equal(state.memory.levels, first)
    state, metrics = update(state, KEY, play_levels(0.0, 0.0, 0.0, 0.5))
    assert float(metrics["accepted"]) == 1 / 8 and int(learner.acting(state)["params"]) == 0
    second = np.asarray(state.memory.levels)
    assert not np.intersect1d(first, second).size
    state, _ = update(state, KEY, play_levels(None, 0.25, 0.0, 0.0))
    state, metrics = update(state, KEY, play_levels(0.0, 0.25, 0.0, 0.0))
    good = {first[0], second[1]}
    assert float(metrics["accepted"]) == 2 / 8 and int(state.params) == 0
    for count in (1, 2):
        assert set(np.asarray(state.memory.levels)) <= good and int(learner.acting(state)["params"]) == count - 1
        state, metrics = update(state, jax.random.key(count), play_levels(1.0, 1.0, 1.0, 1.0))
        assert int(state.params) == count and float(metrics["judged"]) == 0.0
    # A new cycle forgets what the last one accepted.
    third = np.asarray(state.memory.levels)
    assert not set(third) & good
    for count, share in enumerate((0.0, 0.0, 1.0, 0.0)):
        judged, state = state, update(state, jax.random.key(3 + count), play_levels(*(share,) * 4))[0]
    assert (
        float(jnp.sum(state.memory.accepted)) == 0.0
        and not np.intersect1d(state.memory.levels, judged.memory.levels).size
    )
    # Schedules are those of the run: ten rollouts.
    assert update._cache_size() == 1 and int(state.inner.schedule.count) == 10


def test_thresholds_are_numbers_of_the_state():
    learner = make(num_batches=1)
    state = learner.init(KEY)
    assert {name: round(float(number), 6) for name, number in state.memory.thresholds.items()} == {
        "solved": 0.9,
        "gain": 0.1,
        "control_solved": 0.5,
    }
    changed = state.memory.thresholds | {"solved": jnp.float32(0.4), "gain": jnp.float32(0.2)}
    state = state.replace(memory=state.memory.replace(thresholds=changed))
    for shares in ((0.5, 0.25, 0.25, 1.0), (0.0, 0.0, 0.25, 0.0)):
        state, _ = learner.update(state, KEY, play_levels(*shares))
    # 0.5 is solved now, and 0.25 (1 - 0.25) is below 0.2.
    np.testing.assert_array_equal(state.memory.accepted, [False, True, False, False])


def test_a_stage_goes_on_with_its_agent_and_its_levels_under_thresholds_of_its_own():
    learner = make()
    state = learner.init(KEY)
    for share in (0.5, 0.0, 0.5, 0.0):
        state, _ = learner.update(state, KEY, play_levels(*(share,) * 4))
    state = state.replace(inner=state.inner.replace(params=jnp.float32(100.0)))
    following = make(solved=0.75).init(jax.random.key(1), state)
    assert int(following.memory.round) == 4 and int(following.params) == 100 and following.memory.accepted.all()
    np.testing.assert_array_equal(following.memory.levels, state.memory.levels)
    assert float(following.memory.thresholds["solved"]) == 0.75
    # Of another number of levels, it begins anew.
    assert int(make(num_batches=1).init(KEY, state).memory.round) == 0


def test_two_devices_accept_as_one():
    one, many = make(), make(axis_name="device")
    state, rollout = one.init(KEY), play_levels(0.25, 0.5, 0.0, None)
    require_equal_states(one, many, state, rollout)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=r"`solved` must be in \[0, 1\], got 1.5"):
        make(solved=1.5)
    with pytest.raises(ValueError, match="`num_trained` must be at least 1, got 0"):
        make(num_trained=0)
