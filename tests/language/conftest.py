"""What tests of collectors share."""

import jax
import jax.numpy as jnp
import pytest

from jaxagents.environments.text.frozenlake import ACTIONS
from jaxagents.language.policy import make_language_policy
from jaxagents.language.tokenizers import word_level
from jaxagents.types import LanguageModel


@pytest.fixture(scope="session")
def wanderer(lake):
    """Returns a policy of the lake that walks at random, and compiles fast; its parameters are the logits of moves."""
    tokenizer = word_level(lake.text.words)
    moves, marks, size = [tokenizer.encode(word)[0] for word in ACTIONS], tokenizer.marks, tokenizer.vocab_size

    def logits(params, hidden):
        walk = jnp.full((*hidden.shape[:-1], size), -30.0).at[..., jnp.array(moves)].set(params)
        stop = 30.0 * jax.nn.one_hot(marks["end"], size)
        return jnp.where(hidden[..., marks["act"], None] > 0, walk, jnp.broadcast_to(stop, walk.shape))

    model = LanguageModel(
        init=lambda key: jnp.zeros(len(moves)),
        apply=lambda params, tokens, *, positions, mask: jax.nn.one_hot(tokens, size),
        init_cache=lambda batch_size, length: jnp.zeros((batch_size, length), jnp.int32),
        extend=lambda params, cache, tokens, *, positions, index, mask: (cache, jax.nn.one_hot(tokens, size)),
        logits=logits,
        value=None,
        vocab_size=size,
    )
    options = {"context_turns": 1, "prompt": False}
    return make_language_policy(lake, tokenizer=lambda words: tokenizer, model=lambda vocab_size: model, **options)
