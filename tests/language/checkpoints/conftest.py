"""Tiny random checkpoints of every family, as `transformers` writes them."""

import functools

import numpy as np
import pytest

SIZES = {
    "vocab_size": 31,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
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
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16}
QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 12, "sliding_window": 4}
# Class of `transformers` and its settings.
FAMILIES = {
    "gpt2": ("GPT2", {"vocab_size": 31, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 64}),
    "llama2": ("Llama", SIZES | {"num_key_value_heads": 4, "tie_word_embeddings": False}),
    "llama3": ("Llama", SIZES | {"tie_word_embeddings": False, "rope_parameters": LLAMA3}),
    "llama_biased": (
        "Llama",
        SIZES | {"attention_bias": True, "mlp_bias": True, "head_dim": 8, "rope_parameters": LINEAR},
    ),
    "qwen2": ("Qwen2", SIZES | {"tie_word_embeddings": True}),
    "qwen2_5_long": ("Qwen2", SIZES | QWEN_WINDOW | {"tie_word_embeddings": False, "rope_parameters": YARN}),
    "qwen3": ("Qwen3", SIZES | QWEN_WINDOW | {"head_dim": 16, "tie_word_embeddings": True}),
    "gemma2": ("Gemma2", SIZES | GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3": (
        "Gemma3Text",
        SIZES
        | GEMMA
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            }
        },
    ),
}


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Returns `(family, dtype="float32") -> (folder, model)`, random parameters that no norm or bias is neutral in."""
    torch = pytest.importorskip("torch", reason="needs the extra hf: PyTorch writes the checkpoints")
    transformers = pytest.importorskip("transformers", reason="needs the extra hf: transformers is compared with")

    @functools.cache
    def save(family, dtype="float32"):
        name, settings = FAMILIES[family]
        config_class = name.removesuffix("Text") + "TextConfig" if name.endswith("Text") else f"{name}Config"
        torch.manual_seed(0)
        config = getattr(transformers, config_class)(**settings, attn_implementation="eager")
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        model = model.to(getattr(torch, dtype))
        folder = tmp_path_factory.mktemp(f"{family}_{dtype}")
        model.save_pretrained(folder)
        return folder, model

    return save


@pytest.fixture(scope="session")
def tokens():
    """Returns two rows of tokens, longer than the windows."""
    return np.random.default_rng(0).integers(0, 31, (2, 11))
