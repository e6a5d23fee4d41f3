"""Attention in blocks is attention: values, gradients, and the memory that the compiler allots."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.benchmarks.scale import context_memory
from jaxagents.language.generate import Sampling, generate
from jaxagents.networks.block_attention import attend_in_blocks, find_visibility
from jaxagents.networks.decoder import Decoder
from jaxagents.policies.contexts import Rows, attention_mask, score_tokens
from jaxagents.policies.language_model import make_language_model
from jaxagents.types import Layout


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
        pytest.param(1, 4, {}, marks=pytest.mark.slow),
        pytest.param(1, 2, {"window": 5, "windowed_layers": (True, False)}, marks=pytest.mark.slow),
        pytest.param(2, 4, {}, marks=pytest.mark.slow),
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


def test_what_is_seen_by_hand_and_rows_that_are_of_another_kind():
    old, own = [1, 2], [3, 4]
    mask = np.tril(np.ones((5, 5), bool))
    mask[np.ix_(own, old)] = False
    mask[:, 2] = False  # Padding.
    positions = jnp.arange(5)[None]
    visibility, exact = find_visibility(jnp.asarray(mask[None]), positions, positions, block=2)
    assert exact.tolist() == [True] and visibility.query_mask.all()
    assert visibility.begin.tolist() == [[0, 1, 5, 3, 4]] and visibility.end.tolist() == [[5, 3, 0, 5, 5]]
    mask[3] = False  # A padded query, between others that see the first key.
    visibility, exact = find_visibility(jnp.asarray(mask[None]), positions, positions, block=2)
    assert exact.tolist() == [True] and visibility.query_mask.tolist() == [[True, True, True, False, True]]
    mask = np.tril(np.ones((5, 5), bool))
    mask[3, 1] = False  # Seen before and after, as of two agents.
    visibility, exact = find_visibility(jnp.asarray(mask[None]), positions, positions, block=2)
    assert exact.tolist() == [True] and visibility.key_label.tolist() == [[-1, 1, -1, -1, -1]]
    assert visibility.label.tolist() == [[5, 1, 1, 5, 1]]
    mask = np.tril(np.ones((6, 6), bool))
    mask[3, 2] = mask[4, 1] = False  # Of one agent by the last query, of two by those before it.
    positions = jnp.arange(6)[None]
    assert find_visibility(jnp.asarray(mask[None]), positions, positions, block=4)[1].tolist() == [False]


@pytest.mark.parametrize("context_turns", [1, 2, 3, 7])
def test_turns_of_up_to_three_agents_in_any_order_are_described(context_turns):
    rng = np.random.default_rng(0)
    num_rows, num_turns, size, prompt = 24, 7, 3, 2
    agent = rng.integers(0, 3, (num_rows, num_turns))
    own_turn = np.array([[np.sum(row[:t] == row[t]) for t in range(num_turns)] for row in agent])
    agent, turn = (
        np.concatenate([np.full((num_rows, prompt), before), np.repeat(of_turns, size, axis=1)], axis=1)
        for before, of_turns in ((0, agent), (-1, own_turn))
    )
    present = rng.random(agent.shape) < 0.7
    mask = attention_mask((turn, agent), (turn, agent, present), context_turns=context_turns)
    mask &= np.tril(np.ones((agent.shape[1],) * 2, bool))
    positions = jnp.zeros(agent.shape, jnp.int32)
    visibility, exact = find_visibility(jnp.asarray(mask), positions, positions, block=5)
    assert exact.all()
    keys = jnp.broadcast_to(jnp.eye(agent.shape[1])[None, None], (num_rows, 1, *mask.shape[1:]))
    zeros = jnp.zeros((num_rows, agent.shape[1], 1, agent.shape[1]))
    weights = attend_in_blocks(zeros, jnp.zeros_like(keys), keys, visibility, block=5)[:, :, 0]
    sees = mask.any(axis=2)  # A query that sees nothing is padding.
    np.testing.assert_allclose(weights[sees], (mask / np.maximum(mask.sum(2, keepdims=True), 1))[sees], atol=1e-6)


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


def test_a_query_that_sees_one_key_takes_its_value():
    keys = jax.random.normal(jax.random.key(0), (1, 1, 3, 2))
    positions = jnp.arange(3)[None]
    visibility, _ = find_visibility(jnp.tril(jnp.ones((1, 3, 3), bool)), positions, positions, block=2)
    output = attend_in_blocks(jnp.ones((1, 3, 2, 2)), keys, keys, visibility, block=2)
    np.testing.assert_allclose(output[0, 0], np.broadcast_to(keys[0, :, 0], (2, 2)), rtol=1e-6)


def compiled_bytes(tokens, **options):
    """Returns the temporaries of forward and backward passes over one row, from the masks on."""
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


@pytest.mark.slow
@pytest.mark.parametrize("allotted", [compiled_bytes, prompt_bytes])
def test_contexts_of_8192_tokens_have_no_scores_of_all_pairs(allotted):
    in_blocks = allotted(8192, attention_block=64)
    assert in_blocks < 1.5 * 8192**2  # A byte for every pair of tokens: the mask that is handed over.
    assert allotted(8192) > 3 * in_blocks


@pytest.mark.slow
def test_memory_of_training_grows_with_the_context_and_not_with_its_square():
    settings = {"features": 256, "num_layers": 2, "attention_block": 256}  # 8 heads.
    shorter, longer = (context_memory(tokens=tokens, **settings) for tokens in (8192, 16384))
    assert longer < 2.02 * shorter  # The mask is gone before the memory of a layer is allotted.


def test_a_block_has_a_size():
    with pytest.raises(ValueError, match="`attention_block` must be at least 1 or null, got 0; try 256."):
        network(attention_block=0)(vocab_size=3)
