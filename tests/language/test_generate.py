import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.language.generate import Sampling, decode, generate, sample_token
from jaxagents.networks.transformer import Transformer
from jaxagents.policies.language_model import make_language_model, token_statistics

VOCAB, LENGTH, NEW = 13, 6, 5
MODEL = make_language_model(VOCAB, network=functools.partial(Transformer, features=16, num_heads=2))
# Logits far from uniform, so that wrong ones show.
PARAMS = jax.tree.map(lambda leaf: 3.0 * leaf, jax.jit(MODEL.init)(jax.random.key(0)))
TOKENS = jax.random.randint(jax.random.key(1), (4, LENGTH), 0, VOCAB)
# Padding on the left, on the right, on both sides and in the middle.
TOKEN_MASK = jnp.array([[0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 0], [1, 1, 0, 0, 1, 1]], bool)
KEYS = jax.random.split(jax.random.key(2), 4)


@functools.partial(jax.jit, static_argnames=("stop_ids",))
def sample(tokens, mask, keys, sampling=None, budget=None, stop_ids=()):
    return generate(
        MODEL,
        PARAMS,
        tokens,
        mask,
        keys=keys,
        max_new_tokens=NEW,
        sampling=sampling,
        stop_ids=stop_ids,
        budget=budget,
    )


@jax.jit
def logits_of(tokens):
    """Full forward pass of one row without padding."""
    length = tokens.shape[0]
    positions, mask = jnp.arange(length)[None], jnp.tril(jnp.ones((length, length), bool))[None]
    return MODEL.logits(PARAMS, MODEL.apply(PARAMS, tokens[None], positions=positions, mask=mask))[0]


def rows():
    return [np.asarray(tokens)[np.asarray(mask)] for tokens, mask in zip(TOKENS, TOKEN_MASK)]


@pytest.mark.slow
def test_greedy_is_the_argmax_of_full_passes_and_log_probs_agree():
    generation = sample(TOKENS, TOKEN_MASK, KEYS, Sampling(greedy=True))
    assert np.all(generation.mask)
    np.testing.assert_array_equal(generation.sampling_log_prob, 0.0)
    for row, prompt in enumerate(rows()):
        text = np.concatenate([prompt, np.asarray(generation.tokens[row])])
        logits = logits_of(jnp.asarray(text))[len(prompt) - 1 : -1]
        np.testing.assert_array_equal(jnp.argmax(logits, axis=-1), generation.tokens[row])
        log_prob = np.max(jax.nn.log_softmax(logits), axis=-1)
        np.testing.assert_allclose(generation.log_prob[row], log_prob, atol=1e-5)


@pytest.mark.exhaustive
def test_a_cache_that_grows_holds_what_a_large_one_does():
    budget, keys = jnp.asarray([40, 17, 16, 1]), KEYS
    run = functools.partial(generate, MODEL, PARAMS, TOKENS, TOKEN_MASK, keys=keys, budget=budget)
    generation = jax.jit(lambda: run(max_new_tokens=40))()
    np.testing.assert_array_equal(jnp.sum(generation.mask, axis=1), budget)
    for row, prompt in enumerate(rows()):
        output = np.asarray(generation.tokens[row])[: budget[row]]
        logits = logits_of(jnp.asarray(np.concatenate([prompt, output, np.zeros(40 - len(output), np.int32)])))
        log_probs = jax.nn.log_softmax(logits)[len(prompt) - 1 :]
        np.testing.assert_allclose(
            generation.log_prob[row, : len(output)], log_probs[jnp.arange(len(output)), output], atol=1e-5
        )


@pytest.mark.exhaustive
def test_on_gpus_caches_are_multiples_of_eight_wide_and_the_tokens_are_the_same(monkeypatch):
    generation = sample(TOKENS, TOKEN_MASK, KEYS)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    widths = []
    init_cache = MODEL.init_cache

    def recorded(batch_size, length):
        widths.append(length)
        return init_cache(batch_size, length)

    wide = generate(MODEL._replace(init_cache=recorded), PARAMS, TOKENS, TOKEN_MASK, keys=KEYS, max_new_tokens=NEW)
    assert widths == [LENGTH, 16]  # Four more are needed: the last token is not written.
    np.testing.assert_array_equal(wide.tokens, generation.tokens)
    np.testing.assert_allclose(wide.log_prob, generation.log_prob, atol=1e-5)


@pytest.mark.slow
def test_sampled_log_probs_are_those_of_one_training_pass():
    generation = sample(TOKENS, TOKEN_MASK, KEYS, Sampling(temperature=2.0), stop_ids=(4,))
    tokens = jnp.concatenate([TOKENS, generation.tokens], axis=1)
    token_mask = jnp.concatenate([TOKEN_MASK, generation.mask], axis=1)
    order = jnp.arange(LENGTH + NEW)
    mask = (order[None, :] <= order[:, None])[None] & token_mask[:, None]
    positions = jnp.maximum(jnp.cumsum(token_mask, axis=1) - 1, 0)
    hidden = MODEL.apply(PARAMS, tokens, positions=positions, mask=mask)
    # What a new token was drawn from is the hidden state of the last token before it.
    before = jax.vmap(lambda mask: jax.lax.cummax(jnp.where(mask, order, 0)))(token_mask)[:, LENGTH - 1 : -1]
    hidden = jnp.take_along_axis(hidden, before[..., None], axis=1)
    log_prob = token_statistics(MODEL, PARAMS, hidden, generation.tokens).log_prob
    np.testing.assert_allclose(generation.log_prob, jnp.where(generation.mask, log_prob, 0.0), atol=1e-5)
    tempered = MODEL._replace(logits=lambda params, hidden: MODEL.logits(params, hidden) / 2.0)
    log_prob = token_statistics(tempered, PARAMS, hidden, generation.tokens).log_prob
    np.testing.assert_allclose(generation.sampling_log_prob, jnp.where(generation.mask, log_prob, 0.0), atol=1e-5)


def test_rows_do_not_depend_on_each_other():
    together = sample(TOKENS, TOKEN_MASK, KEYS)
    for row in (0, 3):
        alone = sample(TOKENS[row : row + 1], TOKEN_MASK[row : row + 1], KEYS[row : row + 1])
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])
        np.testing.assert_allclose(alone.log_prob[0], together.log_prob[row], atol=1e-5)
    garbage = sample(jnp.where(TOKEN_MASK, TOKENS, 0), TOKEN_MASK, KEYS)
    np.testing.assert_array_equal(garbage.tokens, together.tokens)


@pytest.mark.exhaustive
def test_budgets_and_stop_tokens():
    free = sample(TOKENS, TOKEN_MASK, KEYS)
    budget = jnp.array([0, 1, 3, 9])
    generation = sample(TOKENS, TOKEN_MASK, KEYS, budget=budget)
    np.testing.assert_array_equal(generation.mask, np.arange(NEW)[None] < np.asarray(budget)[:, None])
    np.testing.assert_array_equal(generation.tokens, jnp.where(generation.mask, free.tokens, 0))
    np.testing.assert_array_equal(generation.log_prob == 0.0, ~generation.mask)
    assert not np.any(generation.stopped)

    stop_ids = (int(free.tokens[0, 1]), int(free.tokens[2, 0]))
    generation = sample(TOKENS, TOKEN_MASK, KEYS, stop_ids=stop_ids)
    stops = np.isin(free.tokens, stop_ids)
    before = np.cumsum(stops, axis=1) - stops
    np.testing.assert_array_equal(generation.mask, before == 0)
    np.testing.assert_array_equal(generation.stopped, np.any(stops, axis=1))
    assert generation.mask[2].sum() == 1


def start(batch_size, width):
    prompts = {"positions": jnp.full((batch_size,), LENGTH), "index": jnp.int32(LENGTH)}
    mask = jnp.broadcast_to(jnp.arange(width) < LENGTH, (batch_size, width))
    causal = jnp.broadcast_to(jnp.tril(jnp.ones((LENGTH, width), bool)), (batch_size, LENGTH, width))
    positions = jnp.broadcast_to(jnp.arange(LENGTH), (batch_size, LENGTH))
    cache, hidden = MODEL.extend(
        PARAMS,
        MODEL.init_cache(batch_size, width),
        TOKENS[:batch_size],
        positions=positions,
        index=jnp.int32(0),
        mask=causal,
    )
    return cache, hidden[:, -1], {"mask": mask, **prompts}


def run_decode(cache, hidden, context, **settings):
    settings = {"keys": KEYS[:2], "sampling": Sampling(), "budget": jnp.array([9, 9])} | settings
    return decode(MODEL, PARAMS, cache, hidden, **context, **settings)


@pytest.mark.slow
def test_decoding_can_be_continued():
    """The last token, stop tokens too, is in the cache, and `hidden` is after it."""
    cache, hidden, context = start(2, LENGTH + 4)
    _, whole = jax.jit(lambda: run_decode(cache, hidden, context, max_new_tokens=4, sampling=Sampling(greedy=True)))()

    @jax.jit
    def in_two():
        greedy = {"max_new_tokens": 2, "sampling": Sampling(greedy=True)}
        # Row 1 stops one token early and goes on after it.
        first_cache, first = run_decode(cache, hidden, context, budget=jnp.array([2, 1]), **greedy)
        mask = context["mask"].at[:, LENGTH : LENGTH + 2].set(first.mask)
        lengths = jnp.sum(mask, axis=1)
        later = {"mask": mask, "positions": lengths, "index": context["index"] + 2}
        return first, run_decode(first_cache, first.hidden, later, **greedy)[1]

    first, second = in_two()
    np.testing.assert_array_equal(jnp.concatenate([first.tokens[0], second.tokens[0]]), whole.tokens[0])
    np.testing.assert_array_equal(jnp.concatenate([first.tokens[1, :1], second.tokens[1]]), whole.tokens[1, :3])
    np.testing.assert_allclose(second.log_prob[1], whole.log_prob[1, 1:3], atol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("write_last", [True, False])
def test_it_stops_as_soon_as_all_rows_have(write_last):
    cache, hidden, context = start(2, LENGTH + 4)
    calls = []

    def counting(*args, **kwargs):
        jax.debug.callback(lambda: calls.append(1))
        return MODEL.extend(*args, **kwargs)

    run = functools.partial(decode, MODEL._replace(extend=counting), PARAMS, cache, hidden, **context)
    run = functools.partial(run, keys=KEYS[:2], sampling=Sampling(), max_new_tokens=4, write_last=write_last)
    # Budgets: rows end after 2 tokens, sit out, and use all four.
    for budget, passes in ((jnp.array([2, 1]), 2), (jnp.array([0, 0]), 0), (jnp.array([4, 4]), 4 - (not write_last))):
        calls.clear()
        jax.jit(run)(budget=budget)
        jax.effects_barrier()
        assert len(calls) == passes
    kept = run(budget=jnp.array([0, 0]))[1]
    np.testing.assert_array_equal(kept.hidden, hidden)
    assert not np.any(kept.mask)


PROBABILITY = jnp.array([0.4, 0.05, 0.3, 0.0, 0.2, 0.05])


def draw(sampling, num=20_000):
    logits = jnp.broadcast_to(jnp.log(PROBABILITY) + 7.0, (num, 6))
    uniform = jax.random.uniform(jax.random.key(0), (num,))
    return jax.tree.map(np.asarray, jax.jit(sample_token)(logits, uniform, sampling))


@pytest.mark.parametrize(
    ("sampling", "probability"),
    [
        (Sampling(), PROBABILITY),
        (Sampling(temperature=0.5), PROBABILITY**2),
        (Sampling(top_k=2), [0.4, 0.0, 0.3, 0.0, 0.0, 0.0]),
        (Sampling(top_p=0.75), [0.4, 0.0, 0.3, 0.0, 0.2, 0.0]),
        (Sampling(top_p=0.69), [0.4, 0.0, 0.3, 0.0, 0.0, 0.0]),
        (Sampling(top_k=3, top_p=0.5), [0.4, 0.0, 0.3, 0.0, 0.0, 0.0]),  # 0.4 / 0.9 < 0.5.
        (Sampling(top_p=0.0), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
        (Sampling(temperature=0.0), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
    ],
    ids=str,
)
def test_frequencies(sampling, probability):
    probability = np.asarray(probability) / np.sum(probability)
    token, log_prob, sampling_log_prob = draw(sampling)
    counts, expected = np.bincount(token, minlength=6), probability * len(token)
    possible = expected > 0
    assert np.all(counts[~possible] == 0)
    chi_square = np.sum((counts - expected)[possible] ** 2 / expected[possible])
    assert chi_square < 25.0  # Five degrees of freedom at most: probability below 0.0002.
    np.testing.assert_allclose(log_prob, np.log(np.asarray(PROBABILITY)[token]), atol=1e-5)
    np.testing.assert_allclose(sampling_log_prob, np.log(probability[token]), atol=1e-5)


def test_settings_of_each_row():
    logits = jnp.broadcast_to(jnp.log(jnp.array([0.5, 0.3, 0.2])), (3, 3))
    sampling = Sampling(temperature=jnp.array([1.0, 0.0, 1.0]), top_k=jnp.array([3, 3, 2]))
    uniform = jnp.full((3,), 0.99)
    np.testing.assert_array_equal(sample_token(logits, uniform, sampling)[0], [2, 0, 1])


def test_a_large_vocabulary_is_summed_in_blocks():
    logits = 3.0 * jax.random.normal(jax.random.key(0), (3, 1000))
    uniform = jnp.array([0.0, 0.4, 0.999999])
    cumulative = np.cumsum(np.asarray(jax.nn.softmax(logits), np.float64), axis=-1)
    expected = [int(np.searchsorted(row, value, side="right")) for row, value in zip(cumulative, uniform)]
    token, log_prob, _ = jax.jit(sample_token, static_argnums=2)(logits, uniform, Sampling(greedy=False))
    np.testing.assert_array_equal(token, expected)
    np.testing.assert_allclose(log_prob, jax.nn.log_softmax(logits)[jnp.arange(3), token], atol=1e-5)


@pytest.mark.exhaustive
def test_refused():
    cache, hidden, context = start(2, LENGTH)
    with pytest.raises(ValueError, match="`max_new_tokens` must be at least 1, got 0"):
        run_decode(cache, hidden, context, max_new_tokens=0)
