import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks import attention, decoder_layers
from jaxagents.networks.attention import attend, causal_mask, mask_bias, rotary_angles, rotary_frequencies, rotate
from jaxagents.networks.decoder_layers import ACTIVATIONS, RMSNorm
from jaxagents.networks.transformer import Transformer

SMALL = {"vocab_size": 11, "features": 16, "num_heads": 4, "num_layers": 2}
GPT2 = {"norm": "layer", "positions": "learned", "max_positions": 8, "activation": "gelu_new"} | dict.fromkeys(
    ("qkv_bias", "output_bias", "mlp_bias"), True
)
QWEN = {"num_kv_heads": 2, "head_features": 6, "gated": True, "activation": "silu", "qk_norm": True}
VARIANTS = {
    "default": {},
    "gpt2": GPT2,
    "qwen": QWEN | {"qkv_bias": True, "tied_embeddings": False},
    "scanned": {"scan_layers": True, "num_kv_heads": 1, "remat": True},
    "partly_rotated": {"rotary_frequencies": [1.0], "value_head": True},
}
TOKENS = jax.random.randint(jax.random.key(1), (2, 6), 0, 11)
POSITIONS = jnp.broadcast_to(jnp.arange(6), (2, 6))
CAUSAL = jnp.broadcast_to(jnp.tril(jnp.ones((6, 6), bool)), (2, 6, 6))


def make(**settings):
    module = Transformer(**SMALL | settings)
    init = functools.partial(module.init, method="everything")
    return module, jax.jit(init)(jax.random.key(0), TOKENS, POSITIONS, CAUSAL)


def test_attention_by_hand():
    query = jnp.array([1.0, 0.0]).reshape(1, 1, 1, 2) * np.sqrt(2.0) * np.log(3.0)
    key = jnp.array([[1.0, 5.0], [0.0, 7.0], [9.0, 9.0]]).reshape(1, 1, 3, 2)
    value = jnp.array([[4.0, 0.0], [0.0, 8.0], [100.0, 100.0]]).reshape(1, 1, 3, 2)
    output = attend(query, key, value, mask_bias(jnp.array([[[True, True, False]]])))
    np.testing.assert_allclose(output[0, 0, 0], [3.0, 2.0], rtol=1e-5)  # Weights 3/4 and 1/4.


@pytest.mark.exhaustive
def test_grouped_heads_are_repeated_heads():
    keys = jax.random.split(jax.random.key(0), 3)
    query = jax.random.normal(keys[0], (2, 3, 4, 5))
    key, value = (jax.random.normal(key, (2, 2, 7, 5)) for key in keys[1:])
    bias = mask_bias(jnp.broadcast_to(jnp.tril(jnp.ones((3, 7), bool), 2), (2, 3, 7)))
    repeated = attend(query, jnp.repeat(key, 2, axis=1), jnp.repeat(value, 2, axis=1), bias)
    np.testing.assert_allclose(attend(query, key, value, bias), repeated, rtol=1e-5)
    # A single query takes another way through the code.
    one = attend(query[:, 1:2], jnp.repeat(key, 2, axis=1), jnp.repeat(value, 2, axis=1), bias[:, 1:2])
    np.testing.assert_allclose(one[:, 0], repeated[:, 1], rtol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_attention_is_that_of_jax_and_gives_the_fused_kernel_its_arguments(monkeypatch, dtype):
    keys = jax.random.split(jax.random.key(1), 4)
    query, key, value = (
        jax.random.normal(k, shape).astype(dtype)
        for k, shape in zip(keys, [(2, 6, 4, 8), (2, 2, 6, 8), (2, 2, 6, 8)], strict=False)
    )
    mask = jax.random.bernoulli(keys[3], 0.5, (2, 6, 6)).at[:, :, 0].set(True)
    wanted = jax.nn.dot_product_attention(
        query, key.transpose(0, 2, 1, 3), value.transpose(0, 2, 1, 3), mask=mask[:, None], implementation="xla"
    )
    own = attend(query, key, value, mask_bias(mask))
    np.testing.assert_allclose(own, wanted, atol=1e-5 if dtype == jnp.float32 else 3e-2)
    # What a GPU would do, by the same function of jax without the kernel.
    fused = jax.nn.dot_product_attention
    asked = []

    def without_kernel(*arguments, implementation, **options):
        asked.append(implementation)
        return fused(*arguments, implementation="xla", **options)

    monkeypatch.setattr(attention, "_has_cudnn", lambda: True)
    monkeypatch.setattr(jax.nn, "dot_product_attention", without_kernel)
    np.testing.assert_array_equal(attend(query, key, value, mask_bias(mask)), wanted if asked else own)
    assert asked == (["cudnn"] if dtype == jnp.bfloat16 else [])
    attend(query[:, :1], key, value, mask_bias(mask[:, :1]))  # One query, as in decoding: an odd length.
    assert len(asked) == (dtype == jnp.bfloat16)


@pytest.mark.parametrize("causal", [False, True])
def test_the_fused_kernel_is_given_a_key_for_every_query_and_told_what_is_causal(monkeypatch, causal):
    # Gradients of cuDNN's kernel are NaN where a query sees nothing, as rows of padding do.
    query = jnp.ones((1, 6, 2, 8), jnp.bfloat16)
    key = value = jnp.ones((1, 2, 6, 8), jnp.bfloat16)
    mask = jnp.tril(jnp.ones((1, 6, 6), bool)).at[0, 3].set(False)
    given = []

    def kernel(query, key, value, *, mask, is_causal, implementation):
        given.append((np.asarray(mask[:, 0]), is_causal))
        return query

    monkeypatch.setattr(attention, "_has_cudnn", lambda: True)
    monkeypatch.setattr(jax.nn, "dot_product_attention", kernel)
    attend(query, key, value, mask_bias(mask), causal=causal)
    (seen, masks), others = given.pop(), np.arange(6) != 3
    assert masks == causal
    np.testing.assert_array_equal(seen[0, others], mask[0, others])
    assert np.flatnonzero(seen[0, 3]).tolist() == [3 if causal else 0]  # With `is_causal`, one that it may see.
    attend(query[:, :4], key, value, mask_bias(mask[:, :4]), causal=causal)
    assert given.pop()[1] is False  # Which key the first query is, the kernel is not told.


@pytest.mark.parametrize("scanned", [False, True])
def test_a_sight_is_causal_and_bits_are_not_taken_to_be(monkeypatch, scanned):
    masks = []

    def spy(query, key, value, bias, *, causal=False):
        masks.append(causal)
        return query

    monkeypatch.setattr(decoder_layers, "attend", spy)
    model = Transformer(vocab_size=5, features=8, num_heads=2, scan_layers=scanned)
    tokens, mask = jnp.zeros((1, 4), jnp.int32), jnp.ones((1, 4, 4), bool)
    params = model.init(jax.random.key(0), tokens, tokens, mask)
    assert set(masks) == {False}
    masks.clear()
    model.apply(params, tokens, tokens, causal_mask(jnp.ones((1, 4), bool)))
    assert set(masks) == {True}


@pytest.mark.parametrize("heads", [14, 16, 2])
def test_decoding_in_half_precision_is_that_in_full_precision(heads):
    """Seven queries of a key are padded to eight, which nobody sees."""
    keys = jax.random.split(jax.random.key(0), 4)
    query = jax.random.normal(keys[0], (3, 1, heads, 8), jnp.bfloat16)
    key, value = (jax.random.normal(k, (3, 2, 11, 8), jnp.bfloat16) for k in keys[1:3])
    bias = mask_bias(jax.random.bernoulli(keys[3], 0.7, (3, 1, 11)))
    exact = attend(*(x.astype(jnp.float32) for x in (query, key, value)), bias)
    output = attend(query, key, value, bias)
    assert output.shape == exact.shape and output.dtype == jnp.bfloat16
    np.testing.assert_allclose(output.astype(jnp.float32), exact, atol=0.02)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_angles_are_the_same_on_every_platform(monkeypatch, platform):
    positions, frequencies = jnp.array([[0, 1, 100]]), rotary_frequencies(6)
    expected = rotary_angles(positions, frequencies)

    def choose(*args, cpu, default):
        return (cpu if platform == "cpu" else default)(*args)

    monkeypatch.setattr(jax.lax, "platform_dependent", choose)
    jax.tree.map(np.testing.assert_array_equal, rotary_angles(positions, frequencies), expected)


def test_rotation_by_hand():
    assert rotary_frequencies(4, 100.0) == (1.0, pytest.approx(0.1))
    angles = rotary_angles(jnp.array([[0, 1]]), (np.pi / 2,))
    x = jnp.array([[1.0, 2.0, 7.0], [1.0, 2.0, 7.0]]).reshape(1, 2, 1, 3)
    # The pair (1, 2) turned by a right angle is (-2, 1); the third feature stays.
    np.testing.assert_allclose(rotate(x, angles)[0, :, 0], [[1.0, 2.0, 7.0], [-2.0, 1.0, 7.0]], atol=1e-6)


def test_rotated_products_depend_on_distance_only():
    query, key = (jax.random.normal(jax.random.key(i), (1, 1, 1, 8)) for i in range(2))

    def product(query_position, key_position):
        at = [rotary_angles(jnp.array([[i]]), rotary_frequencies(8)) for i in (query_position, key_position)]
        return jnp.sum(rotate(query, at[0]) * rotate(key, at[1]))

    np.testing.assert_allclose(product(5, 3), product(12, 10), rtol=1e-4)
    assert abs(product(5, 3) - product(5, 4)) > 1e-3


def test_rms_norm_by_hand():
    module = RMSNorm(epsilon=0.0)
    np.testing.assert_allclose(
        module.apply({"params": {"scale": jnp.array([1.0, 2.0])}}, jnp.array([3.0, 4.0])),
        [3.0 / np.sqrt(12.5), 8.0 / np.sqrt(12.5)],
        rtol=1e-6,
    )


def test_squared_relu():
    np.testing.assert_allclose(ACTIVATIONS["relu_squared"](jnp.array([-2.0, 0.0, 3.0])), [0.0, 0.0, 9.0])


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_the_cache_gives_what_a_full_pass_gives(settings):
    module, params = make(**settings)
    hidden = jax.jit(module.apply)(params, TOKENS, POSITIONS, CAUSAL)
    extend = jax.jit(functools.partial(module.apply, method="extend"))
    mask = jnp.pad(CAUSAL, ((0, 0), (0, 0), (2, 1)))
    cache, pieces = module.init_cache(2, 9), []
    for begin, end in ((0, 3), (3, 4), (4, 6)):
        part = slice(begin, end)
        cache, piece = extend(params, cache, TOKENS[:, part], POSITIONS[:, part], jnp.int32(begin + 2), mask[:, part])
        pieces.append(piece)
    np.testing.assert_allclose(jnp.concatenate(pieces, axis=1), hidden, atol=1e-5)
    logits = module.apply(params, hidden, method="logits")
    assert (logits.shape, logits.dtype) == ((2, 6, 11), jnp.float32)


def test_tokens_out_of_sight_change_nothing_and_get_no_gradient():
    module, params = make()
    apply = jax.jit(module.apply)
    hidden = apply(params, TOKENS, POSITIONS, CAUSAL)
    other = apply(params, TOKENS.at[:, 3].set((TOKENS[:, 3] + 1) % 11), POSITIONS, CAUSAL)
    np.testing.assert_array_equal(hidden[:, :3], other[:, :3])
    assert np.all(np.any(hidden[:, 3:] != other[:, 3:], axis=-1))

    unseen, seen = 10, 9
    tokens = jnp.array([[0, 1, unseen, seen, 2, 3]])
    mask = CAUSAL[:1] & (jnp.arange(6) != 2)[None, None]
    gradient = jax.grad(lambda params: jnp.sum(jnp.sin(apply(params, tokens, POSITIONS[:1], mask)[:, 3:])))(params)
    gradient = jnp.sum(jnp.abs(gradient["params"]["embedding"]), axis=-1)
    assert gradient[unseen] == 0.0
    assert gradient[seen] > 0.0


@pytest.mark.parametrize("scan_layers", [False, True])
def test_queries_that_see_nothing_stay_finite(scan_layers):
    module, params = make(scan_layers=scan_layers)
    mask = CAUSAL.at[0].set(False)

    def loss(params):
        return jnp.sum(jnp.square(module.apply(params, TOKENS, POSITIONS, mask)))

    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


@pytest.mark.slow
def test_scanned_and_recomputed_layers_are_the_same_function():
    module, params = make(**QWEN)
    layers = [params["params"][f"layers_{i}"] for i in range(2)]
    rest = {name: leaf for name, leaf in params["params"].items() if not name.startswith("layers")}
    stacked = {"params": {**rest, "layers": jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)}}

    def gradient(params, **settings):
        module = Transformer(**SMALL | QWEN | settings)
        loss = jax.jit(jax.grad(lambda params: jnp.sum(jnp.sin(module.apply(params, TOKENS, POSITIONS, CAUSAL)))))
        return loss(params)["params"]

    plain, remat = gradient(params), gradient(params, remat=True)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), plain, remat)
    scanned = gradient(stacked, scan_layers=True)
    np.testing.assert_allclose(scanned["embedding"], plain["embedding"], rtol=1e-4, atol=1e-4)
    for i in range(2):
        layer = jax.tree.map(lambda leaf, i=i: leaf[i], scanned["layers"])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), layer, plain[f"layers_{i}"])


@pytest.mark.exhaustive
def test_types_of_computation_and_parameters():
    module, params = make(dtype="bfloat16", value_head=True)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(module.init_cache(1, 2))} == {jnp.dtype("bfloat16")}
    hidden = module.apply(params, TOKENS, POSITIONS, CAUSAL)
    assert hidden.dtype == jnp.bfloat16
    assert module.apply(params, hidden, method="logits").dtype == jnp.float32
    value = module.apply(params, hidden, method="value")
    assert (value.shape, value.dtype) == ((2, 6), jnp.float32)
    reference = Transformer(**SMALL, value_head=True).apply(params, TOKENS, POSITIONS, CAUSAL)
    np.testing.assert_allclose(hidden.astype(jnp.float32), reference, atol=0.1)


@pytest.mark.exhaustive
def test_it_starts_near_uniform():
    module, params = make(vocab_size=50, features=64, num_layers=4)
    logits = module.apply(params, module.apply(params, TOKENS, POSITIONS, CAUSAL), method="logits")
    probability = jax.nn.softmax(logits)
    entropy = -jnp.sum(probability * jnp.log(probability), axis=-1)
    assert np.all(entropy > 0.97 * np.log(50.0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_kv_heads": 3}, "`num_kv_heads` must divide `num_heads`, got 3 and 4"),
        ({"features": 18}, "`features` must be divisible by `num_heads`, got 18 and 4"),
        ({"activation": "softmax"}, "`activation` must be one of relu_squared.*got 'softmax'"),
        ({"norm": "batch"}, "`norm` must be one of rms, offset_rms, layer, got 'batch'"),
        ({"positions": "alibi"}, "`positions` must be one of rotary, learned, got 'alibi'"),
        ({"positions": "learned"}, "`max_positions` must be given with learned positions"),
        ({"head_features": 5}, "an even number of features.*got 5"),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Transformer(**SMALL | settings)
