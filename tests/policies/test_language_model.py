import functools
import math
import pathlib

import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf

from jaxagents.networks.transformer import Transformer
from jaxagents.policies.language_model import make_language_model, token_statistics

MODEL = make_language_model(7, network=functools.partial(Transformer, features=8, num_layers=1, num_heads=2))
PARAMS = jax.jit(MODEL.init)(jax.random.key(0))
HIDDEN = 5.0 * jax.random.normal(jax.random.key(1), (2, 5, 8))
TOKENS = jax.random.randint(jax.random.key(2), (2, 5), 0, 7)


@pytest.mark.slow
def test_record():
    assert (MODEL.vocab_size, MODEL.max_positions, MODEL.value) == (7, None, None)
    positions, mask = jnp.broadcast_to(jnp.arange(5), (2, 5)), jnp.ones((2, 5, 5), bool)
    assert MODEL.apply(PARAMS, TOKENS, positions=positions, mask=mask).shape == (2, 5, 8)
    network = functools.partial(Transformer, value_head=True, positions="learned", max_positions=9)
    model = make_language_model(7, network=network)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    assert model.max_positions == 9
    assert jax.eval_shape(model.value, shapes, jnp.zeros((2, 5, 64))).shape == (2, 5)


@pytest.mark.parametrize(
    ("name", "vocab_size", "num_params"),
    [
        ("tiny", 100, 105_088),
        ("small", 100, 800_000),
        # As published, and as transformers counts them.
        ("gpt2", 50_257, 124_439_808),
        ("llama", 128_256, 1_235_814_400),
        ("llama_7b", 32_000, 6_738_415_616),
        ("llama_70b", 128_256, 70_553_706_496),
        ("qwen", 151_936, 596_049_920),
    ],
)
def test_configs(name, vocab_size, num_params):
    file = pathlib.Path(__file__).resolve().parents[2] / "configs" / "model" / f"{name}.yaml"
    model = hydra.utils.instantiate(OmegaConf.load(file))(vocab_size)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    assert abs(count - num_params) < (1 if num_params > 10**6 else 0.01 * num_params)


def test_statistics_by_hand():
    # Logits are the hidden states themselves.
    model = MODEL._replace(logits=lambda params, hidden: hidden, vocab_size=2)
    statistics = token_statistics(model, {}, jnp.log(jnp.array([[0.25, 0.75], [3.0, 3.0]])), jnp.array([1, 0]))
    np.testing.assert_allclose(statistics.log_prob, np.log([0.75, 0.5]), rtol=1e-6)
    entropy = -0.25 * np.log(0.25) - 0.75 * np.log(0.75)
    np.testing.assert_allclose(statistics.entropy, [entropy, np.log(2.0)], rtol=1e-6)


@pytest.mark.parametrize("max_logits", [1, 21, 28, 70])  # Chunks of 1, 3, 4 (unequal) and all 10 positions.
def test_chunks_agree_with_log_softmax_in_value_and_gradient(max_logits):
    def loss(params, hidden, statistics):
        log_prob, entropy = statistics(params, hidden)
        return jnp.sum(jnp.sin(log_prob)) + jnp.sum(jnp.cos(entropy)), (log_prob, entropy)

    def reference(params, hidden):
        log_probs = jax.nn.log_softmax(MODEL.logits(params, hidden))
        log_prob = jnp.take_along_axis(log_probs, TOKENS[..., None], axis=-1)[..., 0]
        return log_prob, -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)

    def chunked(params, hidden):
        statistics = token_statistics(MODEL, params, hidden, TOKENS, max_logits=max_logits)
        return statistics.log_prob, statistics.entropy

    gradient = functools.partial(jax.grad(loss, argnums=(0, 1), has_aux=True), PARAMS, HIDDEN)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=1e-5),
        jax.jit(lambda: gradient(chunked))(),
        gradient(reference),
    )


def test_many_logits_never_exist_at_once():
    model = MODEL._replace(vocab_size=7)
    compute = functools.partial(token_statistics, model, max_logits=21)
    loss = jax.grad(lambda params: jnp.sum(compute(params, HIDDEN, TOKENS).log_prob))
    text = str(jax.make_jaxpr(loss)(PARAMS))
    assert "f32[3,7]" in text
    assert "f32[10,7]" not in text
    assert "f32[2,5,7]" not in text
    assert "f32[4,3,7]" not in text  # Residuals stacked over chunks.


def test_the_backward_pass_makes_the_logits_again_and_sums_them_up_no_second_time():
    def loss(params):
        statistics = token_statistics(MODEL, params, HIDDEN, TOKENS, max_logits=21)
        return jnp.sum(statistics.log_prob) + jnp.sum(statistics.entropy)

    text = str(jax.make_jaxpr(jax.value_and_grad(loss))(PARAMS))
    assert text.count(" reduce_max[") == 1
    assert text.count(" exp ") == 2  # Once in each pass.


@pytest.mark.parametrize(("backend", "chunks"), [("cpu", 2), ("gpu", 1)])
def test_more_logits_exist_at_once_on_accelerators(monkeypatch, backend, chunks):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    vocabulary = 2**21  # Eight positions of a chunk on CPUs.
    model = MODEL._replace(logits=lambda params, hidden: jnp.zeros((*hidden.shape[:-1], vocabulary)))
    model, tokens = model._replace(vocab_size=vocabulary), jnp.zeros(16, jnp.int32)
    shape = jax.make_jaxpr(lambda hidden: token_statistics(model, {}, hidden, tokens).log_prob)(jnp.zeros((16, 1)))
    assert (f"f32[{16 // chunks},{vocabulary}]" in str(shape)) and (backend == "cpu" or "while" not in str(shape))


def test_extreme_logits_stay_finite():
    model = MODEL._replace(logits=lambda params, hidden: hidden, vocab_size=2)
    logits = jnp.array([[0.0, -2e4], [1e4, -1e4]])

    def total(logits):
        statistics = token_statistics(model, {}, logits, jnp.array([1, 0]))
        return jnp.sum(statistics.log_prob + statistics.entropy), statistics

    gradient, statistics = jax.grad(total, has_aux=True)(logits)
    np.testing.assert_allclose(statistics.log_prob, [-2e4, 0.0])
    np.testing.assert_allclose(statistics.entropy, [0.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(gradient, [[-1.0, 1.0], [0.0, 0.0]], atol=1e-6)


def bytes_of_gradients():
    """Returns temporary bytes of the gradient of hidden states, and of that of log-probabilities, by the compiler."""
    rows, tokens = 8, 1024
    network = functools.partial(Transformer, num_layers=8, features=512, num_heads=8, remat=True, scan_layers=True)
    model = make_language_model(150_000, network=network)

    def hidden_states(params, ids):
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((tokens, tokens), bool)), (rows, tokens, tokens))
        return model.apply(params, ids, positions=jnp.broadcast_to(jnp.arange(tokens), ids.shape), mask=mask)

    def log_prob(params, ids):
        return token_statistics(model, params, hidden_states(params, ids), ids).log_prob

    def peak(function):
        params, ids = jax.eval_shape(model.init, jax.random.key(0)), jax.ShapeDtypeStruct((rows, tokens), jnp.int32)
        gradient = jax.jit(jax.grad(lambda params, ids: function(params, ids).sum()))
        return gradient.lower(params, ids).compile().memory_analysis().temp_size_in_bytes

    return peak(hidden_states), peak(log_prob)


@pytest.mark.exhaustive
def test_the_logits_of_a_large_vocabulary_take_no_memory_beside_the_activations(call_as_run):
    hidden_states, log_prob = call_as_run("bytes_of_gradients")
    assert log_prob <= 1.3 * hidden_states  # All logits at once would be 4.9 GB, over five times as much.
