"""Free text to a policy: it reads what transcripts would have it read, and says what comes next."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.data.messages import from_messages
from jaxagents.data.streams import encode
from jaxagents.language.replies import make_reply
from jaxagents.language.tokenizers import byte_level, word_level
from jaxagents.training.speaking import make_score, make_speak, tokens_to_answer
from jaxagents.types import LanguageModel, LanguagePolicy

TOKENIZER = byte_level()
SAID = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello!"}]


def nodder(tokenizer, **settings):
    """Returns a policy that says `ok` where it is to speak, whatever it has read."""
    o, k = byte_level().encode("ok")
    following = np.zeros(tokenizer.vocab_size + 2 * k, np.int32)
    following[[tokenizer.marks["act"], o, k]] = [o, k, tokenizer.marks["end"]]
    size = len(following)
    model = LanguageModel(
        init=lambda key: {},
        apply=None,
        init_cache=lambda batch_size, length: jnp.zeros((batch_size, length)),
        extend=lambda params, cache, tokens, *, positions, index, mask: (cache, jax.nn.one_hot(tokens, size)),
        logits=lambda params, hidden: jax.nn.one_hot(jnp.asarray(following)[jnp.argmax(hidden, axis=-1)], size),
        value=None,
        vocab_size=size,
        **settings,
    )
    return LanguagePolicy(model=model, tokenizer=tokenizer, lexicon=None, layout=None)


def test_what_it_says_ends_with_its_end_or_its_budget():
    speak = make_speak(nodder(TOKENIZER))
    assert speak({}, "Hello!") == "ok"
    assert speak({}, [*SAID, {"role": "assistant", "content": "Hi."}, SAID[1]]) == "ok"
    assert speak({}, "Hello!", max_tokens=1) == "o"


def test_what_is_read_is_what_transcripts_hold():
    whole = from_messages([*SAID, {"role": "assistant", "content": "Hi."}], id="a")
    (sequence,) = encode(whole, TOKENIZER)
    read = tokens_to_answer(nodder(TOKENIZER), SAID)
    assert list(sequence.tokens) == [*read, *TOKENIZER.encode("Hi."), TOKENIZER.marks["end"]]
    assert tokens_to_answer(nodder(TOKENIZER), "Hello!") == [
        *(TOKENIZER.marks["observation"], *TOKENIZER.encode("Hello!"), TOKENIZER.marks["act"])
    ]


def test_what_cannot_be_read_is_refused():
    with pytest.raises(ValueError, match="`messages` must end with one of the user"):
        tokens_to_answer(nodder(TOKENIZER), [{"role": "assistant", "content": "Hi."}])
    with pytest.raises(ValueError, match=r"`messages\[1\]` must have a `role` and a `content`, got from, value; try"):
        tokens_to_answer(nodder(TOKENIZER), [SAID[1], {"from": "human", "value": "Hi."}])
    with pytest.raises(ValueError, match=r"`messages\[0\]` must have a `role` and a `content`, got 'Hi.'; try"):
        tokens_to_answer(nodder(TOKENIZER), ["Hi."])
    with pytest.raises(ValueError, match="tokenizer 'word_level' knows, got others: .*tokenizer=bytes knows all"):
        tokens_to_answer(nodder(word_level(["left", "right"])), "Hello!")
    with pytest.raises(ValueError, match="must leave room for 64 tokens among 66, got 8 tokens"):
        make_speak(nodder(TOKENIZER, max_positions=66))({}, "Hello!")


@pytest.mark.slow
def test_a_policy_of_a_world_speaks_of_anything(speak, lake):
    """With a real model: the same again, and other words with a key."""
    policy = speak(lake, tokenizer=byte_level, num_turns=2)
    params, say = policy.init(jax.random.key(0)), make_speak(policy)
    assert say(params, "Hello!", max_tokens=5) == say(params, "Hello!", max_tokens=5)
    sampled = {say(params, "Hello!", key=jax.random.key(seed), max_tokens=5) for seed in range(3)}
    assert len(sampled) > 1
    with pytest.raises(ValueError, match="Free text is answered by `speak`"):
        make_reply(policy, lake)(params, "Hello!")


@pytest.mark.exhaustive
def test_log_probabilities_of_a_conversation_are_those_of_its_tokens_one_by_one(speak, lake):
    policy = speak(lake, tokenizer=byte_level, num_turns=2)
    params = jax.tree.map(lambda leaf: 3.0 * leaf, policy.init(jax.random.key(0)))
    score = make_score(policy)(params, [*SAID, {"role": "assistant", "content": "Hi."}])
    ids = [*tokens_to_answer(policy, SAID), *policy.tokenizer.encode("Hi."), policy.tokenizer.marks["end"]]
    assert score.tokens.tolist() == ids and score.pieces[-4:] == ["H", "i", ".", "<end>"]
    assert score.completion_mask.tolist() == [False] * (len(ids) - 4) + [True] * 4

    def last(tokens):
        """The distribution that follows, without padding."""
        positions = jnp.arange(len(tokens))[None]
        causal = jnp.tril(jnp.ones((1, len(tokens), len(tokens)), bool))
        hidden = policy.model.apply(params, jnp.asarray(tokens)[None], positions=positions, mask=causal)
        return jax.nn.log_softmax(policy.model.logits(params, hidden)[0, -1])

    for index in (1, 5, len(ids) - 1):
        np.testing.assert_allclose(score.log_prob[index], last(ids[:index])[ids[index]], atol=1e-4)
    assert score.log_prob[0] == 0.0 and np.all(score.log_prob[1:] < 0.0)
    with pytest.raises(ValueError, match="`messages` must fit into 66 tokens, got 7"):
        make_score(nodder(TOKENIZER, max_positions=66))({}, [*SAID, {"role": "assistant", "content": "x" * 60}])
