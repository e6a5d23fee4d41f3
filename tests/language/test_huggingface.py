import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from jaxagents.language.huggingface import convert_weights, load_language_model, transformer_settings
from jaxagents.networks.transformer import Transformer

SIZES = {
    "vocab_size": 31,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
CONFIGS = {
    "gpt2": transformers.GPT2Config(vocab_size=31, n_embd=24, n_layer=2, n_head=4, n_positions=64),
    "llama": transformers.LlamaConfig(**SIZES, tie_word_embeddings=False, rope_parameters=LLAMA3),
    "llama_biased": transformers.LlamaConfig(
        **SIZES,
        attention_bias=True,
        mlp_bias=True,
        head_dim=8,
        rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
    ),
    "qwen2": transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
}
TOKENS = np.random.default_rng(0).integers(0, 31, (2, 9))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Saves a random checkpoint; returns its folder and its logits of `TOKENS`."""

    @functools.cache
    def save(name):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name]).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # Norms and biases too, which start at ones and zeros.
                parameter.add_(0.3 * torch.randn_like(parameter))
            logits = model(torch.as_tensor(TOKENS)).logits.numpy()
        folder = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        return folder, logits

    return save


def logits_of(model, params):
    positions = jnp.broadcast_to(jnp.arange(9), (2, 9))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((9, 9), bool)), (2, 9, 9))
    hidden = model.apply(params, jnp.asarray(TOKENS), positions=positions, mask=mask)
    return jax.jit(model.logits)(params, hidden)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(checkpoint, name):
    folder, logits = checkpoint(name)
    model = load_language_model(path=folder)
    assert model.vocab_size == 31
    assert model.max_positions == (64 if name == "gpt2" else None)
    params = model.init(jax.random.key(0))
    jax.tree.map(lambda a, b: a.shape == b.shape or pytest.fail(), params, jax.eval_shape(lambda: params))
    np.testing.assert_allclose(logits_of(model, params), logits, atol=2e-4)


def test_settings_over_those_of_the_checkpoint(checkpoint):
    folder, logits = checkpoint("qwen3")
    model = load_language_model(path=folder, scan_layers=True, value_head=True)
    params = model.init(jax.random.key(0))
    np.testing.assert_allclose(logits_of(model, params), logits, atol=2e-4)
    assert model.value(params, jnp.ones((2, 24))).shape == (2,)


@pytest.mark.parametrize("name", ["llama", "qwen2"])  # Untied and tied.
def test_vocabularies_of_other_sizes(checkpoint, name):
    folder, logits = checkpoint(name)
    model = load_language_model(33, path=folder)
    larger = logits_of(model, model.init(jax.random.key(0)))
    np.testing.assert_allclose(larger[..., :31], logits, atol=2e-4)
    np.testing.assert_allclose(larger[..., 31:], jnp.mean(logits, -1, keepdims=True).repeat(2, axis=-1), atol=2e-4)
    model = load_language_model(31 - 4, path=folder)
    params = model.init(jax.random.key(0))
    assert params["params"]["embedding"].shape == (27, 24)
    assert jax.eval_shape(model.logits, params, jnp.zeros((1, 24))).shape == (1, 27)


def test_configs_of_transformers_4():
    config = {**SIZES, "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 50.0}
    frequencies = transformer_settings(config)["rotary_frequencies"]
    np.testing.assert_allclose(frequencies, 50.0 ** (-np.arange(3) / 3))
    config["rope_scaling"] = {"type": "linear", "factor": 2.0}
    np.testing.assert_allclose(transformer_settings(config)["rotary_frequencies"], np.array(frequencies) / 2.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "`model_type` must be gpt2, llama, qwen2 or qwen3, got 'mamba'"),
        ({"use_sliding_window": True}, "`use_sliding_window` must be false"),
        ({"hidden_act": "swish_glu"}, "activation must be one of .*got 'swish_glu'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "`rope_type` must be .*got 'yarn'"),
        ({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, "`scale_attn_by_inverse_layer_idx` must be"),
    ],
)
def test_refused_configs(changes, message):
    with pytest.raises(ValueError, match=message):
        transformer_settings(CONFIGS["qwen3"].to_dict() | changes)


def test_weights_that_are_missing_or_left_over(checkpoint, tmp_path):
    config = CONFIGS["gpt2"].to_dict()
    network = Transformer(**transformer_settings(config))
    with pytest.raises(ValueError, match=r"`weights` must hold transformer\.wte\.weight, got 0"):
        convert_weights(config, {}, network)
    from safetensors.numpy import load_file

    weights = load_file(checkpoint("gpt2")[0] / "model.safetensors")
    with pytest.raises(ValueError, match=r"must all have a place in the network, got \['transformer.adapter'\]"):
        convert_weights(config, weights | {"transformer.adapter": np.zeros(2)}, network)
    buffers = {"transformer.h.0.attn.bias": np.zeros((1, 1, 64, 64))}
    assert convert_weights(config, weights | buffers, network)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="`path` must hold"):
        load_language_model(path=tmp_path).init(jax.random.key(0))
