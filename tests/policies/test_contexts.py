"""Who sees whom in a context, by hand."""

import jax.numpy as jnp
import numpy as np

from jaxagents.networks.attention import attention_mask, dense_mask
from jaxagents.policies.contexts import hidden_after_turns
from jaxagents.types import LanguageModel, Layout

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


def test_what_is_held_after_a_turn_is_that_of_its_last_token(make_episode):
    """A model that holds the token and how many tokens it saw: prompt, earlier turns, and the turn up to the token."""

    def apply(params, tokens, *, positions, mask):
        return jnp.stack([tokens.astype(jnp.float32), jnp.sum(dense_mask(mask), axis=2, dtype=jnp.float32)], axis=-1)

    model = LanguageModel(init=None, apply=apply, init_cache=None, extend=None, logits=None, value=None, vocab_size=100)
    tokens = jnp.arange(2 * 3 * 4).reshape(2, 3, 4)  # Turns of an observation token and up to three of the policy.
    layout = Layout(prompt=1, observation=1, thought=0, action=3, num_turns=3, context_turns=3)
    episode = make_episode([[0.0] * 3] * 2, [[1, 3, 2], [2, 1, 0]], tokens=tokens, layout=layout)
    held = hidden_after_turns(model, {}, episode)
    np.testing.assert_array_equal(held[0], [[1.0, 1 + 2], [7.0, 1 + 2 + 4], [10.0, 1 + 2 + 4 + 3]])
    np.testing.assert_array_equal(held[1, :2], [[14.0, 1 + 3], [17.0, 1 + 3 + 2]])
