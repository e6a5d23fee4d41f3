"""Task sources: what they choose, what they count, on any number of devices, and in a collector."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from jaxagents.environments.text.arithmetic import make_environment
from jaxagents.language.collect import make_dialogue_collector
from jaxagents.language.tasks import (
    by_level,
    in_band,
    make_uniform,
    make_weighted,
    start_tasks,
    upper_confidence,
    with_retries,
)

KEY = jax.random.key(3)
INDEX = jnp.arange(64, dtype=jnp.int32)
CONFIGS = str(Path(__file__).parents[2] / "configs")


def data(chosen):
    return np.asarray(jax.random.key_data(chosen.key))


def test_uniform_tasks_go_through_levels_in_turn():
    source = make_uniform(level=[0, 0, 1], num_levels=2)
    state = source.init(KEY, 64)
    chosen = source.choose(state, KEY, INDEX)
    np.testing.assert_array_equal(chosen.level, [0, 0, 1] * 21 + [0])
    assert len(np.unique(data(chosen), axis=0)) == 64
    assert make_uniform().choose(state, KEY, INDEX).level is None
    # A part of the indices gives that part of the tasks: devices do not matter.
    np.testing.assert_array_equal(data(source.choose(state[:2], KEY, INDEX[8:10])), data(chosen)[8:10])


def test_a_fixed_set_is_the_same_for_every_key():
    source = make_uniform(level=[0, 1], num_levels=2, num_tasks=5, tasks_seed=9)
    first, second = (source.choose(source.init(key, 64), key, INDEX) for key in jax.random.split(KEY))
    kinds = np.unique(np.concatenate([data(first), data(second)]), axis=0)
    assert len(kinds) == 5
    np.testing.assert_array_equal(first.level, first.item % 2)
    own = make_uniform(num_tasks=5)
    chosen = [own.choose(own.init(key, 64), KEY, INDEX) for key in jax.random.split(KEY)]
    assert not set(map(tuple, data(chosen[0]))) & set(map(tuple, data(chosen[1])))


def test_a_mixture_of_levels_has_its_weights():
    source = make_weighted(partial(by_level, weights=[3.0, 0.0, 1.0]), num_levels=3)
    level = np.asarray(source.choose(source.init(KEY, 4), KEY, jnp.arange(4000)).level)
    np.testing.assert_allclose(np.bincount(level, minlength=3) / 4000, [0.75, 0.0, 0.25], atol=0.03)
    with pytest.raises(ValueError, match="`weights` must be one per item, 2, got 3"):
        make = make_weighted(partial(by_level, weights=[3.0, 0.0, 1.0]), level=[0, 2], num_levels=3)
        make.choose(make.init(KEY, 4), KEY, INDEX)


def test_counts_by_hand():
    source = make_weighted(in_band, level=[4, 7], num_levels=9, decay=0.5)
    state = source.init(KEY, 3)
    chosen = source.choose(state, KEY, INDEX[:3]).replace(item=jnp.array([0, 1, 1]))
    state = source.update(state, chosen, jnp.array([1.0, 0.25, 0.5]))
    np.testing.assert_allclose(state.count, [[1.0, 2.0]] * 3)
    np.testing.assert_allclose(state.success, [[1.0, 0.75]] * 3)
    state = source.update(state, chosen, jnp.array([1.0, 0.0, 0.0]))
    np.testing.assert_allclose(state.count, [[1.5, 3.0]] * 3)
    np.testing.assert_allclose(state.success, [[1.5, 0.375]] * 3)
    # Level 4 always succeeds and is outside; 7 succeeds one time in eight, below 0.2.
    np.testing.assert_allclose(in_band(state.count[0], state.success[0]), [0.05, 0.05])
    np.testing.assert_allclose(in_band(state.count[0], state.success[0], low=0.1), [0.05, 1.0])
    np.testing.assert_allclose(in_band(jnp.zeros(2), jnp.zeros(2)), 1.0)
    level = np.asarray(source.choose(state, KEY, jnp.arange(500)).level)
    assert set(level.tolist()) == {4, 7}


def test_upper_confidence_by_hand():
    # Never played first; then 4 p (1 - p) + sqrt(ln 12 / n): 1 + 0.91 sqrt(..) against 0 + ...
    np.testing.assert_array_equal(upper_confidence(jnp.array([5.0, 0.0, 7.0]), jnp.array([2.0, 0.0, 0.0])), [0, 1, 0])
    count, success = jnp.array([4.0, 4.0, 4.0]), jnp.array([4.0, 2.0, 1.0])
    np.testing.assert_array_equal(upper_confidence(count, success), [0, 1, 0])
    # 0.75 + 2 sqrt(ln 21 / 1) = 4.24 against 1 + 2 sqrt(ln 21 / 20) = 1.78.
    count, success = jnp.array([20.0, 1.0]), jnp.array([10.0, 0.25])
    np.testing.assert_array_equal(upper_confidence(count, success, exploration=2.0), [0, 1])
    # 0.75 + 0.1 * 1.74 = 0.92 against 1 + 0.1 * 0.39 = 1.04.
    np.testing.assert_array_equal(upper_confidence(count, success, exploration=0.1), [1, 0])


def test_failed_tasks_are_given_again_in_their_place_until_they_succeed():
    source = with_retries(make_uniform, level=[0, 1], num_levels=2, probability=1.0)
    index, keys = INDEX[:4], jax.random.split(KEY, 3)
    state = source.init(KEY, 4)
    first = source.choose(state, keys[0], index)
    state = source.update(state, first, jnp.array([0.0, 1.0, 0.25, 0.5]))
    second = source.choose(state, keys[1], index)
    same = (data(first) == data(second)).all(axis=1)
    np.testing.assert_array_equal(same, [True, False, True, False])
    # Further rounds of the batch bring other tasks.
    assert not (data(source.choose(state, keys[1], index + 4)) == data(first)).all(axis=1).any()
    state = source.update(state, second, jnp.array([1.0, 1.0, 0.0, 1.0]))
    third = source.choose(state, keys[2], index)
    np.testing.assert_array_equal((data(third) == data(first)).all(axis=1), [False, False, True, False])
    never = with_retries(make_uniform, probability=0.0)
    chosen = never.choose(state, keys[2], index)
    assert not (data(chosen) == data(first)).all(axis=1).any()


def test_every_device_counts_what_came_out_on_all():
    source = make_weighted(in_band, num_levels=3)
    chosen = source.choose(source.init(KEY, 8), KEY, INDEX[:8])
    success = jnp.linspace(0.0, 1.0, 8)
    one = source.update(source.init(KEY, 8), chosen, success)
    update = partial(source.update, axis_name="devices")
    split = jax.tree.map(lambda leaf: leaf.reshape(4, 2, *leaf.shape[1:]), (source.init(KEY, 8), chosen, success))
    four = jax.pmap(update, axis_name="devices")(*split)
    np.testing.assert_allclose(one.count, four.count.reshape(8, 3), rtol=1e-6)
    np.testing.assert_allclose(one.success, four.success.reshape(8, 3), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_uniform(num_tasks=0), "`num_tasks` must be at least 1, got 0."),
        (lambda: make_weighted(in_band, decay=0.0), r"`decay` must be in \(0, 1\], got 0.0; try 0.95."),
        (lambda: with_retries(make_uniform, probability=1.5), r"`probability` must be in \[0, 1\], got 1.5; try 0.5."),
    ],
)
def test_refused_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", ["uniform", "levels", "band", "ucb", "retry"])
def test_option_files_make_sources(name):
    weights = ["collector.task_source.weigh.weights=[1,1]"] if name == "levels" else []
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        config = compose("train", ["collector=dialogue", f"task_source@collector.task_source={name}", *weights])
    source = instantiate(config.collector.task_source)(level=None, num_levels=2)
    chosen = source.choose(source.init(KEY, 2), KEY, INDEX[:2])
    assert chosen.key.shape == (2,)


@pytest.mark.exhaustive
def test_a_collector_learns_which_level_succeeds(speak):
    # Everybody knows the sums of level 0, nobody those of level 1: only level 0 is asked when the band is high.
    world = make_environment(num_digits=(1, 2), num_terms=(2, 2), operations=("+",))
    policy = speak(world, context_turns=1, prompt=False)
    source = partial(make_weighted, partial(in_band, low=0.0, high=0.0, outside=1e-6))
    collector = make_dialogue_collector(world, policy, num_groups=4, group_size=2, task_source=source, max_turns=1)
    params = policy.init(KEY)
    state = collector.init(KEY, params)
    state = state | {"source": state["source"].replace(count=jnp.ones((4, 2)), success=jnp.array([[1.0, 0.0]] * 4))}
    after, episode, metrics = jax.jit(collector.collect)(state, params, KEY)
    np.testing.assert_array_equal(episode.task["level"], 1)
    assert float(metrics["task_level"].value) == 1.0
    np.testing.assert_allclose(after["source"].count, [[0.95, 0.95 + 4]] * 4)
    won = np.asarray(episode.success).sum() / 2
    np.testing.assert_allclose(after["source"].success, [[0.95, won]] * 4, rtol=1e-6)
    # Groups play one task, and start alike.
    task, _, _ = start_tasks(world, make_uniform().choose(None, KEY, INDEX[:3]))
    assert jax.tree.leaves(task)[0].shape[0] == 3
    np.testing.assert_array_equal(episode.fingerprint[::2, 0], episode.fingerprint[1::2, 0])
