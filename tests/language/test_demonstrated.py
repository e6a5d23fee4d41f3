"""A policy and an expert on the same tasks: fresh or of a fixed set, of one level or of several."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text.arithmetic import make_environment
from jaxagents.environments.text.splits import level_of
from jaxagents.language.demonstrations import make_demonstrated_collector, make_demonstration_collector
from jaxagents.language.levels import make_level_evaluator

KEY = jax.random.key(2)


@pytest.fixture(scope="module")
def sums():
    return make_environment(num_digits=(1, 2), num_terms=(2, 2), operations=("+",))


@pytest.fixture(scope="module")
def policy(sums, speak):
    return speak(sums, context_turns=1, prompt=False)


def prompts(episode):
    """Returns what the world said in the first turn, as one row per episode."""
    size = episode.layout.observation
    observation = np.asarray(episode.tokens)[:, 0, :size]
    return np.where(np.asarray(episode.token_mask)[:, 0, :size], observation, -1)


@pytest.fixture(scope="module")
def batches(sums, policy, params_of):
    """Returns the settings, parameters and two batches of a fixed set, with different keys of collector and batch."""
    collector = make_demonstrated_collector(
        sums, policy, num_groups=12, group_size=2, level=[0, 0, 1], num_tasks=4, tasks_seed=9
    )
    params = params_of(policy)
    play = jax.jit(lambda seed: collector.collect(collector.init(seed, params), params, seed))
    return params, play(KEY), play(jax.random.key(8))


@pytest.mark.exhaustive
def test_both_play_the_same_tasks_and_the_expert_solves_them(batches):
    _, (_, batch, metrics), _ = batches
    shown, own = batch.demonstration, batch.own
    np.testing.assert_array_equal(np.repeat(prompts(shown), 2, axis=0), prompts(own))
    assert np.asarray(shown.success).all() and not np.asarray(own.success).all()
    np.testing.assert_array_equal(own.group, np.repeat(np.arange(12), 2))
    np.testing.assert_array_equal(shown.group, np.arange(12))
    np.testing.assert_allclose(float(metrics["success_rate"].value), np.asarray(own.success).mean())


@pytest.mark.exhaustive
def test_a_fixed_set_has_so_many_tasks(batches):
    _, (_, first, _), (_, second, _) = batches
    kinds = {tuple(row) for row in np.concatenate([prompts(batch.own) for batch in (first, second)]).tolist()}
    assert 2 < len(kinds) <= 4
    # Task number i of the set is of level [0, 0, 1][i % 3].
    levels = np.asarray(first.demonstration.task["level"])
    assert set(levels.tolist()) <= {0, 1} and levels.mean() < 0.6


@pytest.mark.exhaustive
def test_transcripts_of_the_same_seed_are_the_same_tasks(sums, policy, batches):
    _, (_, batch, _), _ = batches
    collector = make_demonstration_collector(
        sums, policy, num_episodes=12, level=[0, 0, 1], num_transcripts=4, transcripts_seed=9
    )
    _, episode, _ = jax.jit(lambda key: collector.collect(collector.init(key, None), None, key))(jax.random.key(33))
    output = {tuple(row) for row in np.asarray(episode.tokens * episode.token_mask)[:, 0].tolist()}
    assert output <= {
        tuple(row) for row in np.asarray(batch.demonstration.tokens * batch.demonstration.token_mask)[:, 0].tolist()
    }


def test_levels_in_turn():
    assert level_of(None, jnp.int32(3)) is None and level_of(2, jnp.int32(3)) == 2
    np.testing.assert_array_equal(jax.vmap(lambda i: level_of([0, 0, 1], i))(jnp.arange(6)), [0, 0, 1, 0, 0, 1])


@pytest.mark.exhaustive
def test_success_of_every_level(sums, policy, params_of):
    evaluate = make_level_evaluator(sums, policy, num_episodes=6, greedy=False, level=[1, 0, 0])
    results = jax.jit(evaluate)(params_of(policy), KEY)
    success = np.asarray(results["success"])
    np.testing.assert_array_equal(results["success_level_1"], success[[0, 3]])
    np.testing.assert_array_equal(results["success_level_0"], success[[1, 2, 4, 5]])
    with pytest.raises(ValueError, match="`num_episodes` must be divisible by the 3 entries of `level`, got 7; try 9"):
        make_level_evaluator(sums, policy, num_episodes=7, level=[1, 0, 0])
    with pytest.raises(ValueError, match="`num_tasks` must be at least 1, got 0"):
        make_demonstrated_collector(sums, policy, num_groups=2, num_tasks=0)
