"""Attention in blocks is attention: values, gradients, and the memory that the compiler allots."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.benchmarks.scale import context_memory
from jaxagents.language.conversation import begin_conversation, read_prompts
from jaxagents.language.generate import Sampling, generate
from jaxagents.networks.attention import causal_mask, dense_mask
from jaxagents.networks.block_attention import NO_WINDOW, View, attend_in_blocks
from jaxagents.networks.decoder import Decoder
from jaxagents.policies.contexts import Rows, score_tokens
from jaxagents.policies.language_model import make_language_model
from jaxagents.types import CausalMask, Layout


def network(**options):
    settings = {"num_layers": 2, "features": 16, "num_heads": 4, "num_kv_heads": 2, "hidden_features": 16}
    return functools.partial(Decoder, **settings | options)


def rows_of(layout, *, num_rows=2, agents=1, seed=0):
    """Makes rows whose turns end early; agents take turns."""
    rng = np.random.default_rng(seed)
    size = layout.observation + layout.thought + layout.action
    shape = (num_rows, layout.num_turns, size)
    token_mask = np.arange(size) < rng.integers(2, size + 1, shape[:2])[..., None]
    prompt_mask = np.ones((num_rows, layout.prompt), bool)
    position = layout.prompt + np.cumsum(token_mask.reshape(num_rows, -1), axis=1).reshape(shape) - token_mask
    agent = np.broadcast_to((np.arange(layout.num_turns) % agents)[None, :, None], shape)
    return Rows(
        prompt_tokens=jnp.asarray(rng.integers(0, 11, prompt_mask.shape), jnp.int32),
        prompt_mask=jnp.asarray(prompt_mask),
        tokens=jnp.asarray(rng.integers(0, 11, shape), jnp.int32),
        token_mask=jnp.asarray(token_mask),
        position=jnp.asarray(position, jnp.int32),
        agent=jnp.asarray(agent, jnp.int32),
    )


def outcome(layout, rows, **options):
    model = make_language_model(11, network=network(**options))
    params = make_language_model(11, network=network()).init(jax.random.key(0))

    def total(params):
        log_prob = score_tokens(model, params, rows, layout, fields=("log_prob",)).log_prob
        return jnp.sum(jnp.where(rows.token_mask, log_prob, 0.0)), log_prob

    return jax.jit(jax.grad(total, has_aux=True))(params)


@pytest.mark.parametrize(
    ("agents", "context_turns", "options"),
    [
        (2, 2, {"window": 5, "windowed_layers": (True, False), "attention_cap": 5.0}),
        pytest.param(1, 4, {}, marks=pytest.mark.exhaustive),
        pytest.param(1, 2, {"window": 5, "windowed_layers": (True, False)}, marks=pytest.mark.exhaustive),
        pytest.param(2, 4, {}, marks=pytest.mark.exhaustive),
    ],
)
def test_blocks_change_neither_log_probs_nor_gradients(agents, context_turns, options):
    layout = Layout(prompt=3, observation=3, thought=0, action=2, num_turns=4, context_turns=context_turns)
    rows = rows_of(layout, agents=agents)
    whole, log_prob = outcome(layout, rows, **options)
    in_blocks, others = outcome(layout, rows, attention_block=6, **options)  # 23 tokens: the last block is cut.
    np.testing.assert_allclose(others, log_prob, rtol=1e-5, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), whole, in_blocks)
    assert all(float(jnp.abs(leaf).max()) > 1e-3 for leaf in jax.tree.leaves(whole))


def weights_in_blocks(seen, position, *, index=0, window=NO_WINDOW):
    """Returns the weights `[B, S, W]` of attention with equal scores: those of what is seen are equal, others zero."""
    num_rows, num_keys = seen.turn.shape if isinstance(seen, CausalMask) else seen.shape[::2]
    values = jnp.broadcast_to(jnp.eye(num_keys)[None, None], (num_rows, 1, num_keys, num_keys))
    query = jnp.zeros((num_rows, position.shape[1], 1, num_keys))
    key_position = jnp.broadcast_to(jnp.arange(num_keys)[None], (num_rows, num_keys))
    view = View(seen, position, key_position, index=jnp.int32(index), window=jnp.int32(window))
    return attend_in_blocks(query, jnp.zeros_like(values), values, view, block=5)[:, :, 0]


def masks_of_three_agents(context_turns):
    """Makes 24 rows of turns of up to three agents in any order, with padding, and their masks by loops."""
    rng = np.random.default_rng(0)
    num_rows, num_turns, size, prompt = 24, 7, 3, 2
    agent = rng.integers(0, 3, (num_rows, num_turns))
    own_turn = np.array([[np.sum(row[:t] == row[t]) for t in range(num_turns)] for row in agent])
    agent, turn = (
        np.concatenate([np.full((num_rows, prompt), before), np.repeat(of_turns, size, axis=1)], axis=1)
        for before, of_turns in ((0, agent), (-1, own_turn))
    )
    present = rng.random(agent.shape) < 0.7
    present[:, 0] = True  # Everyone sees something.
    mask = np.zeros((num_rows, *agent.shape[1:] * 2), bool)
    for row, query, key in np.ndindex(*mask.shape):
        own = agent[row, query] == agent[row, key] and turn[row, query] - turn[row, key] < context_turns
        mask[row, query, key] = key <= query and present[row, key] and (key < prompt or own)
    numbers = {"turn": turn, "agent": agent, "present": present}
    return CausalMask(**{name: jnp.asarray(x) for name, x in numbers.items()}, context_turns=context_turns), mask


@pytest.mark.parametrize("context_turns", [1, 2, 3, 7])
def test_turns_of_up_to_three_agents_in_any_order_are_seen_as_by_loops(context_turns):
    causal, mask = masks_of_three_agents(context_turns)
    np.testing.assert_array_equal(dense_mask(causal), mask)
    position = jnp.broadcast_to(jnp.arange(mask.shape[1])[None], mask.shape[:2])
    weights = mask / mask.sum(2, keepdims=True)
    np.testing.assert_allclose(weights_in_blocks(causal, position), weights, atol=1e-6)
    np.testing.assert_allclose(weights_in_blocks(jnp.asarray(mask), position), weights, atol=1e-6)
    near = mask & (np.arange(mask.shape[1])[:, None] - np.arange(mask.shape[1])[None] < 4)
    sees = near.any(axis=2)
    windowed = weights_in_blocks(causal, position, window=4)
    np.testing.assert_allclose(windowed[sees], (near / np.maximum(near.sum(2, keepdims=True), 1))[sees], atol=1e-6)


def test_queries_may_be_some_of_the_keys():
    causal, mask = masks_of_three_agents(context_turns=2)
    some = mask[:, 4:15]
    np.testing.assert_array_equal(jax.jit(lambda index: dense_mask(causal, index=index, size=11))(4), some)
    position = jnp.broadcast_to(jnp.arange(4, 15)[None], some.shape[:2])
    weights = weights_in_blocks(causal, position, index=4)
    np.testing.assert_allclose(weights, some / some.sum(2, keepdims=True), atol=1e-6)


def test_a_causal_sight_sees_what_is_there_and_not_later():
    causal = causal_mask(jnp.asarray([[True, False, True, True]]))
    expected = [[1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]
    np.testing.assert_array_equal(dense_mask(causal)[0], np.asarray(expected, bool))


def test_prompts_are_read_in_blocks_as_at_once():
    options = {"window": 5, "windowed_layers": (True, False)}
    whole, in_blocks = (
        make_language_model(11, network=network(**options, attention_block=block)) for block in (None, 3)
    )
    params = whole.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    tokens, token_mask = jnp.asarray(rng.integers(0, 11, (2, 10))), jnp.asarray(rng.random((2, 10)) < 0.7)
    token_mask = token_mask.at[:, 0].set(True)

    def go_on(model):
        keys = jax.random.split(jax.random.key(1), 2)
        return generate(model, params, tokens, token_mask, keys=keys, max_new_tokens=4, sampling=Sampling(greedy=True))

    first, second = jax.jit(go_on, static_argnums=0)(whole), jax.jit(go_on, static_argnums=0)(in_blocks)
    np.testing.assert_array_equal(first.tokens, second.tokens)
    np.testing.assert_allclose(first.log_prob, second.log_prob, rtol=1e-5, atol=1e-6)


def compiled_bytes(tokens, **options):
    """Returns the temporaries of forward and backward passes over one row."""
    layout = Layout(prompt=0, observation=tokens - 16, thought=0, action=16, num_turns=1, context_turns=1)
    model = make_language_model(64, network=network(remat=True, scan_layers=True, **options))
    rows = jax.eval_shape(lambda: rows_of(layout, num_rows=1))

    def total(params, rows):
        return score_tokens(model, params, rows, layout, fields=("log_prob",)).log_prob.sum()

    params = jax.eval_shape(model.init, jax.random.key(0))
    return jax.jit(jax.grad(total)).lower(params, rows).compile().memory_analysis().temp_size_in_bytes


def prompt_bytes(tokens, **options):
    """Returns the temporaries of reading a prompt into a cache and going on for two tokens."""
    model = make_language_model(64, network=network(scan_layers=True, **options))

    def go_on(params, tokens, mask, key):
        return generate(model, params, tokens, mask, keys=key[None], max_new_tokens=2).tokens

    params = jax.eval_shape(model.init, jax.random.key(0))
    shapes = [jax.ShapeDtypeStruct((1, tokens), dtype) for dtype in (jnp.int32, bool)]
    compiled = jax.jit(go_on).lower(params, *shapes, jax.random.key(0)).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def conversation_bytes(tokens, **options):
    """Returns the temporaries of reading the prompt of a conversation."""
    layout = Layout(prompt=tokens, observation=8, thought=0, action=8, num_turns=1, context_turns=1)
    policy = SimpleNamespace(layout=layout, model=make_language_model(64, network=network(scan_layers=True, **options)))

    def read(params, tokens, mask):
        return read_prompts(policy, params, begin_conversation(policy, 1), (tokens, mask), jnp.ones(1, bool))

    params = jax.eval_shape(policy.model.init, jax.random.key(0))
    shapes = [jax.ShapeDtypeStruct((1, tokens), dtype) for dtype in (jnp.int32, bool)]
    return jax.jit(read).lower(params, *shapes).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.exhaustive
@pytest.mark.parametrize("allotted", [compiled_bytes, prompt_bytes, conversation_bytes])
def test_nothing_is_quadratic_in_contexts_of_thousands_of_tokens(allotted):
    in_blocks = allotted(8192, attention_block=64)
    assert in_blocks < 0.7 * 8192**2  # Less than a byte for every pair of tokens.
    assert allotted(16384, attention_block=64) < 2.02 * in_blocks
    assert allotted(8192) > 3 * in_blocks


@pytest.mark.exhaustive
def test_memory_of_training_grows_with_the_context_and_not_with_its_square():
    settings = {"features": 256, "num_layers": 2, "attention_block": 256}  # 8 heads.
    shorter, longer = (context_memory(tokens=tokens, **settings) for tokens in (8192, 32768))
    assert longer < 4.04 * shorter


def test_a_block_has_a_size():
    with pytest.raises(ValueError, match="`attention_block` must be at least 1 or null, got 0; try 256."):
        network(attention_block=0)(vocab_size=3)
