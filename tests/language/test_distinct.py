"""What evaluations say about different ways to succeed."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text.countdown import make_environment
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.distinct import make_distinct_evaluator


@pytest.mark.exhaustive
def test_ways_are_counted_over_the_samples_of_a_task(speak):
    """Of two numbers up to 2 many a guess is right, and all right ones went through the same single state."""
    world = make_environment(num_numbers=(2,), largest=(2,), max_steps=2)
    policy = speak(world, context_turns=1, prompt=False)
    params = jax.tree.map(lambda leaf: leaf * 3.0, policy.init(jax.random.key(7)))
    make = partial(make_distinct_evaluator, world, policy, num_episodes=6, held_out=False)
    results = jax.jit(make(num_samples=8))(params, jax.random.key(0))
    episode = make_dialogue(world, policy, group_size=8)(params, jax.random.key(0), jnp.arange(6))
    success, valid = np.asarray(episode.success).reshape(6, 8), np.asarray(episode.valid).reshape(6, 8, -1)
    history = np.asarray(episode.fingerprint).reshape(6, 8, -1)
    ways = [len({tuple(history[n, g][valid[n, g]]) for g in range(8) if success[n, g]}) for n in range(6)]
    np.testing.assert_array_equal(results["distinct_success"], ways)
    np.testing.assert_allclose(results["success"], success.mean(axis=1))
    np.testing.assert_array_equal(results["solved"], success.any(axis=1))
    assert set(results) == {"success", "solved", "distinct_success", "episode_return", "invalid_action_rate"}


def test_samples_that_are_the_same_are_refused(speak):
    world = make_environment(num_numbers=(2,), largest=(2,), max_steps=1)
    policy = speak(world, context_turns=1, prompt=False)
    with pytest.raises(ValueError, match="`num_samples` must be 2 or more samples that differ, got 1"):
        make_distinct_evaluator(world, policy, num_episodes=2, num_samples=1)
    with pytest.raises(ValueError, match="greedy=True"):
        make_distinct_evaluator(world, policy, num_episodes=2, greedy=True)
