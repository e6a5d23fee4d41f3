"""Levels of quests: how near things lie, which side they are on, and that every level can be won."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments import quest
from jaxagents.environments.quest_levels import field_sizes, graded, with_hopeless
from jaxagents.environments.text.grid import distances

SIZE, LIMITS = 6, (1, 3)
SIZES = field_sizes(LIMITS)
INNER = quest.make_environment(size=SIZE)
WORLD = graded(INNER, LIMITS)
SAMPLE = jax.jit(jax.vmap(WORLD.sample_task))
KEYS = jax.random.split(jax.random.key(0), 4 * np.prod(SIZES))
LEVELS = np.arange(len(KEYS)) % np.prod(SIZES)


def apart(one, other):
    return np.abs(np.asarray(one) - np.asarray(other)).sum(axis=-1)


def test_levels_say_how_near_things_lie_and_whether_the_door_is_locked():
    assert SIZES == (2, 3, 3, 3)
    tasks = jax.device_get(SAMPLE(KEYS, jnp.asarray(LEVELS)))
    before = jax.device_get(jax.jit(jax.vmap(INNER.sample_task))(KEYS))
    np.testing.assert_array_equal(tasks["walls"], before["walls"])
    locked, *near = np.stack(np.unravel_index(LEVELS, SIZES))
    start, key, treasure = (np.asarray((*LIMITS, 2 * SIZE))[values] for values in near)
    for name in ("door", "key"):
        np.testing.assert_array_equal(tasks[name][:, 0] >= 0, locked == 1)
    door = before["door"]
    anchor = np.where(locked[:, None] == 1, tasks["key"], door)
    assert np.all(apart(tasks["treasure"], door) <= treasure) and np.all(apart(tasks["start"], anchor) <= start)
    assert np.all((apart(tasks["key"], door) <= key) | (locked == 0)) and np.all(apart(tasks["start"], anchor) >= 1)
    # Every limit is needed, or levels would be the same.
    for values, found in ((treasure, apart(tasks["treasure"], door)), (start, apart(tasks["start"], anchor))):
        assert [found[values == limit].max() for limit in LIMITS] == list(LIMITS)
        assert found[values == 2 * SIZE].max() > LIMITS[-1]


def test_things_stay_on_their_side_of_the_door():
    tasks = SAMPLE(KEYS, jnp.asarray(LEVELS))
    before = jax.jit(jax.vmap(INNER.sample_task))(KEYS)

    def walk(task, door):
        closed = ~task["walls"].at[door[0], door[1]].set(True)

        def steps(place):
            cell = jnp.zeros((SIZE, SIZE), bool).at[place[0], place[1]].set(True)
            return distances(cell, closed)[task["start"][0], task["start"][1]]

        return jnp.isfinite(steps(task["treasure"])), jnp.isfinite(steps(task["key"])) | (task["key"][0] < 0)

    beyond, with_key = jax.jit(jax.vmap(walk))(tasks, before["door"])
    assert not np.any(beyond) and np.all(with_key)


def test_the_last_level_is_the_world_as_it_is_and_none_is_any():
    first = WORLD.sample_task(KEYS[0])
    jax.tree.map(np.testing.assert_array_equal, first, INNER.sample_task(KEYS[0]))
    last = SAMPLE(KEYS, jnp.full(len(KEYS), np.prod(SIZES) - 1))
    plain = jax.jit(jax.vmap(INNER.sample_task))(KEYS)
    for name in ("start", "key", "treasure"):
        means = [np.mean(apart(tasks[name], tasks["door"])) for tasks in (last, plain)]
        assert abs(means[0] - means[1]) < 0.45, (name, means)  # Four standard errors of 216 layouts.
    drawn = np.asarray(SAMPLE(KEYS, jnp.full(len(KEYS), -1))["door"])[:, 0]
    assert 0.35 < np.mean(drawn >= 0) < 0.65


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=r"`limits` must be positive and increasing, got \(3, 1\); try \(1, 3, 6\)"):
        graded(INNER, (3, 1))
    for kinds in (("lava",), ("doorkey", "goal"), ("key_first",)):
        with pytest.raises(ValueError, match=r"`environment` must be of quests with keys and doors alone"):
            graded(quest.make_environment(kinds))


@pytest.mark.exhaustive
def test_a_share_of_the_levels_that_are_drawn_has_no_key():
    hopeless = with_hopeless(WORLD, 0.6)
    keys = jax.random.split(jax.random.key(1), 500)
    drawn = jax.jit(jax.vmap(lambda key: hopeless.sample_task(key, jnp.int32(-1))))(keys)
    has_key, has_door = (np.asarray(drawn[name])[:, 0] >= 0 for name in ("key", "door"))
    assert abs(np.mean(has_door & ~has_key) - 0.6) < 0.07
    assert abs(np.mean(has_key) - 0.2) < 0.06 and abs(np.mean(~has_door) - 0.2) < 0.06
    # Given levels, and quests without one, are as before.
    for level in (None, jnp.int32(0), jnp.int32(53)):
        jax.tree.map(
            np.testing.assert_array_equal, hopeless.sample_task(keys[0], level), WORLD.sample_task(keys[0], level)
        )
    with pytest.raises(ValueError, match="`share` must be"):
        with_hopeless(WORLD, 1.5)
