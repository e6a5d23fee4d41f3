"""What evaluations say about thoughts: how many are different, and how many are the expert's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import arithmetic
from jaxagents.language.thoughts import make_thought_evaluator, same_words, share_of_equal


def test_shares_count_different_thoughts():
    thought = jnp.array([[1, 2, -1], [1, 2, -1], [1, -1, -1], [1, 2, -1], [-1, -1, -1]])
    shares = jax.jit(share_of_equal)(thought)
    np.testing.assert_allclose(shares, [1 / 3, 1 / 3, 1.0, 1 / 3, 1.0], rtol=1e-6)
    np.testing.assert_allclose(jnp.sum(shares), 3.0, rtol=1e-6)


def test_texts_are_compared_in_rooms_of_different_sizes():
    one, other = jnp.array([[4, 5, -1], [4, 5, 6], [-1, -1, -1]]), jnp.array([[4, 5], [4, 5], [4, -1]])
    np.testing.assert_array_equal(same_words(one, other), [True, False, False])
    np.testing.assert_array_equal(same_words(other, one), [True, False, False])


@pytest.mark.exhaustive
def test_a_policy_that_thinks_the_same_everywhere_has_collapsed(speak):
    """Parameters of zeros make all tokens equally likely, of which the most probable one is always the same."""
    sums = arithmetic.make_environment((1,), (2,), operations=("+",))
    policy = speak(sums, context_turns=1, prompt=False, thought_tokens=8)
    params = jax.tree.map(jnp.zeros_like, policy.init(jax.random.key(0)))
    evaluate = make_thought_evaluator(sums, policy, num_episodes=8)
    results = jax.jit(evaluate)(params, jax.random.key(1))
    np.testing.assert_allclose(results["distinct_thoughts"], np.full(8, 1 / 8), rtol=1e-6)
    assert not results["thought_accuracy"].any() and not results["success"].any()
    assert {value.shape for value in results.values()} == {(8,)}


def test_there_must_be_room_for_thoughts(speak):
    sums = arithmetic.make_environment((1,), (2,), operations=("+",))
    with pytest.raises(ValueError, match="`policy.thought_tokens` must be positive"):
        make_thought_evaluator(sums, speak(sums, context_turns=1, prompt=False), num_episodes=4)
