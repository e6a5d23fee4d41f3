"""What decoding says of its tokens is what training says, with every tokenizer and in every kind of context.

The contract of text worlds has it for every world, with a token per word.
"""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import bandit, frozenlake, sokoban
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.tokenizers import byte_level, from_huggingface, train_sentencepiece, word_level
from jaxagents.policies.contexts import score_tokens, to_rows
from tests.fakes import byte_pairs

NUM_TURNS, NUM_EPISODES = 3, 4


def huggingface(words):
    """Returns a tokenizer of `tokenizers`: byte pairs of bytes, with few merges."""
    return from_huggingface(words, byte_pairs(280, " ".join(words)), add_special_tokens=True)


WORLDS = {
    "bandit": partial(bandit.make_environment, (4,), (0.0,), num_pulls=NUM_TURNS),
    "frozenlake": partial(frozenlake.make_environment, (4,), (0.1,)),
    "sokoban": partial(sokoban.make_environment, (6,), (1,), show_border=False),
}
TOKENIZERS = {
    "word": word_level,
    "bytes": byte_level,
    "unigram": partial(train_sentencepiece, vocab_size=512),
    "bpe": partial(train_sentencepiece, vocab_size=96, model_type="bpe", whole_words=False),
    "huggingface": huggingface,
}
CONTEXTS = {
    "one turn": {"context_turns": 1, "prompt": False},
    "one turn after the prompt": {"context_turns": 1},
    "two turns": {"context_turns": 2},
    "all turns": {},
    "thoughts": {"context_turns": 2, "thought_tokens": 3},
}


def cases():
    """Yields every world with every tokenizer; contexts are dealt out by a part of a Latin square."""
    contexts = list(CONTEXTS)
    for (i, world), (j, tokenizer) in itertools.product(enumerate(WORLDS), enumerate(TOKENIZERS)):
        context = contexts[(i + j) % len(contexts)]
        yield pytest.param(world, tokenizer, context, id=f"{world}-{tokenizer}-{context}")


@pytest.mark.slow
@pytest.mark.parametrize(("world", "tokenizer", "context"), cases())
def test_decoding_and_training_agree(world, tokenizer, context, speak, params_of):
    environment = WORLDS[world]()
    policy = speak(environment, tokenizer=TOKENIZERS[tokenizer], num_turns=NUM_TURNS, **CONTEXTS[context])
    params = params_of(policy)

    @jax.jit
    def both(params):
        dialogue = make_dialogue(environment, policy, group_size=2)
        episode = dialogue(params, jax.random.key(5), jnp.arange(NUM_EPISODES // 2))
        scored = score_tokens(policy.model, params, to_rows(episode), policy.layout)
        return episode, scored.log_prob.reshape(episode.tokens.shape)

    episode, log_prob = both(params)
    mask = np.asarray(episode.action_mask)
    assert (mask.sum(axis=(1, 2)) >= np.asarray(episode.valid).sum(axis=1)).all()
    assert np.asarray(episode.valid).sum() > NUM_EPISODES  # More than one turn, or there would be no context.
    sampled, judged = np.asarray(episode.behavior_log_prob)[mask], np.asarray(log_prob)[mask]
    np.testing.assert_allclose(sampled, judged, rtol=0, atol=1e-4)
    assert np.ptp(sampled) > 0.5
    assert bool(np.any(episode.thought_mask)) == ("thought_tokens" in CONTEXTS[context])
