"""Who sees whom in a context, by hand."""

import jax.numpy as jnp
import numpy as np

from jaxagents.policies.contexts import attention_mask

# A prompt token, agents 0, 1, 0 in turns 0, 1, 2, and padding of turn 2.
TURN = jnp.array([-1, 0, 1, 2, 2])
AGENT = jnp.array([0, 0, 1, 0, 0])
MASK = jnp.array([True, True, True, True, False])


def test_agents_see_the_prompt_and_their_own_recent_turns():
    whole = attention_mask((TURN, AGENT), (TURN, AGENT, MASK), context_turns=3)
    np.testing.assert_array_equal(whole[2], [True, False, True, False, False])
    np.testing.assert_array_equal(whole[3], [True, True, False, True, False])
    recent = attention_mask((TURN, AGENT), (TURN, AGENT, MASK), context_turns=2)
    np.testing.assert_array_equal(recent[3], [True, False, False, True, False])


def test_rows_and_queries_broadcast():
    query = jnp.array([[2]]), jnp.array([[0], [1]])
    seen = attention_mask(query, (TURN[None], AGENT[None], MASK[None]), context_turns=3)
    np.testing.assert_array_equal(seen[:, 0], [[True, True, False, True, False], [True, False, True, False, False]])
