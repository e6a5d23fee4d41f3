"""Families of public checkpoints: translates their `config.json` to settings of a `Decoder`, and back."""

from collections.abc import Mapping
from typing import Any

from jaxagents.language.checkpoints.positions import rotary_settings
from jaxagents.networks.decoder import Decoder

_LLAMA_LIKE = ("llama", "qwen2", "qwen3", "gemma2", "gemma3_text")
FAMILIES = ("gpt2", *_LLAMA_LIKE)
_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_OPTIONAL = ("head_dim", "num_key_value_heads", "n_inner", "sliding_window")
_SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", *_OPTIONAL),
    *("n_layer", "n_embd", "n_head", "n_positions", "max_position_embeddings"),
)
_NUMBERS = ("rms_norm_eps", "layer_norm_epsilon", "query_pre_attn_scalar", *_CAPS)
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new", "relu": "relu"}


def decoder_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the `Decoder` that a `config.json` describes.

    Args:
        config: content of `config.json`.

    Raises:
        ValueError: the family is not one of `FAMILIES`, a setting is missing, or one is not supported.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        hint = "; try the text model alone, gemma3_text" if family == "gemma3" else ""
        raise ValueError(f"`model_type` must be one of {', '.join(FAMILIES)}, got {family!r}{hint}.")
    _require_numbers(config)
    try:
        return _gpt2(config) if family == "gpt2" else _llama_like(family, config)
    except KeyError as error:
        raise ValueError(f"`config.json` must hold {error.args[0]!r} for a model of {family}, got none.") from error
    except (TypeError, AttributeError, ArithmeticError) as error:  # For example, a list instead of a number.
        raise ValueError(f"`config.json` must describe a model of {family}, got one that does not: {error}.") from error


def _require_numbers(config: Mapping[str, Any]) -> None:
    for name in (*_SIZES, *_NUMBERS):
        value, kind = config.get(name, 1), int if name in _SIZES else int | float
        is_none = value is None and name in (*_OPTIONAL, *_CAPS)
        if not is_none and (isinstance(value, bool) or not isinstance(value, kind) or not value > 0):
            wanted = "a positive whole number" if name in _SIZES else "a positive number"
            raise ValueError(f"`{name}` of `config.json` must be {wanted}, got {value!r}.")


def describe(decoder: Decoder) -> dict[str, Any]:
    """Returns the `config.json` of a decoder, the inverse of `decoder_settings`.

    Args:
        decoder: decoder of one of the families; one that starts from a checkpoint already has a `config.json`.

    Raises:
        ValueError: no family has such a decoder.
    """
    config = _describe_gpt2(decoder) if decoder.norm == "layer" else _describe_llama_like(decoder)
    settings = decoder_settings(config)
    for name, value in settings.items():
        own = getattr(decoder, name)
        if name.endswith("kv_heads"):
            own = decoder.num_key_heads
        elif name == "head_features":
            own = decoder.features_of_head
        elif name == "rotary_frequencies" and own is None:
            own = value
        if own != value and name != "max_positions":
            raise ValueError(
                f"`{name}` must be that of a family of checkpoints ({', '.join(FAMILIES)}), got {own!r} where "
                f"{config['model_type']} has {value!r}; try a model of one of them, such as model=llama."
            )
    return config


def _llama_like(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("use_bidirectional_attention"):
        raise ValueError("`use_bidirectional_attention` must be false, got true; only causal decoders are read.")
    gemma = family.startswith("gemma")
    heads, biased = config["num_attention_heads"], bool(config.get("attention_bias"))
    head_features = config.get("head_dim") or config["hidden_size"] // heads
    return {
        "vocab_size": config["vocab_size"],
        "num_layers": config["num_hidden_layers"],
        "features": config["hidden_size"],
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        "head_features": head_features,
        "hidden_features": config["intermediate_size"],
        "activation": _activation(config["hidden_activation"] if gemma else config["hidden_act"]),
        "gated": True,
        "norm": "offset_rms" if gemma else "rms",
        "norm_epsilon": config["rms_norm_eps"],
        "post_norms": gemma,
        "qkv_bias": family == "qwen2" or biased,
        "output_bias": family != "qwen2" and biased,
        "mlp_bias": family == "llama" and bool(config.get("mlp_bias")),
        "qk_norm": family in ("qwen3", "gemma3_text"),
        "query_scale": config["query_pre_attn_scalar"] ** -0.5 if gemma else None,
        "attention_cap": config.get("attn_logit_softcapping") if gemma else None,
        "logit_cap": config.get("final_logit_softcapping") if gemma else None,
        "scale_embedding": gemma,
        "tied_embeddings": bool(config.get("tie_word_embeddings", gemma)),
        **_windows(family, config),
        **rotary_settings(family, config, head_features),
    }


def _windows(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the window of a decoder, and which of its layers have the window."""
    kinds, num_layers = config.get("layer_types"), config["num_hidden_layers"]
    window = config.get("sliding_window")
    if family == "llama" or (family.startswith("qwen") and not config.get("use_sliding_window")):
        kinds = None if kinds is None else [kind for kind in kinds if kind != "full_attention"]
        if kinds:
            raise ValueError(f"`layer_types` must be full_attention without a window, got {kinds[0]}.")
        return {"window": None, "windowed_layers": None}
    if kinds is None and family.startswith("qwen"):
        windowed = [layer >= config["max_window_layers"] for layer in range(num_layers)]
    elif kinds is None:
        every = 2 if family == "gemma2" else config.get("sliding_window_pattern", 6)
        windowed = [(layer + 1) % every != 0 for layer in range(num_layers)]
    else:
        if unknown := set(kinds) - {"full_attention", "sliding_attention"}:
            raise ValueError(f"`layer_types` must be full_attention or sliding_attention, got {sorted(unknown)[0]}.")
        windowed = [kind == "sliding_attention" for kind in kinds]
    if window is None or not any(windowed):
        return {"window": None, "windowed_layers": None}
    return {"window": window, "windowed_layers": tuple(windowed)}


def _gpt2(config: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
        if config.get(name, value) != value:
            raise ValueError(f"`{name}` must be {value}, got {config[name]}.")
    return {
        "vocab_size": config["vocab_size"],
        "num_layers": config["n_layer"],
        "features": config["n_embd"],
        "num_heads": config["n_head"],
        "hidden_features": config.get("n_inner") or 4 * config["n_embd"],
        "activation": _activation(config.get("activation_function", "gelu_new")),
        "gated": False,
        "norm": "layer",
        "norm_epsilon": config["layer_norm_epsilon"],
        "positions": "learned",
        "max_positions": config["n_positions"],
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "fused_qkv": True,
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
    }


def _activation(name: str) -> str:
    if name not in _ACTIVATIONS:
        raise ValueError(f"The activation must be one of {', '.join(_ACTIVATIONS)}, got {name!r}.")
    return _ACTIVATIONS[name]


def _describe_gpt2(decoder: Decoder) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": decoder.vocab_size,
        "n_layer": decoder.num_layers,
        "n_embd": decoder.features,
        "n_head": decoder.num_heads,
        "n_inner": decoder.hidden_features,
        "n_positions": decoder.max_positions,
        "activation_function": decoder.activation,
        "layer_norm_epsilon": decoder.norm_epsilon,
        "tie_word_embeddings": decoder.tied_embeddings,
    }


def _describe_llama_like(decoder: Decoder) -> dict[str, Any]:
    """Describes Llama, Qwen2 and Qwen3 without windows and without scaled positions."""
    only_inputs = decoder.qkv_bias and not decoder.output_bias
    family = "qwen3" if decoder.qk_norm else "qwen2" if only_inputs else "llama"
    classes = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    return {
        "architectures": [f"{classes[family]}ForCausalLM"],
        "model_type": family,
        "vocab_size": decoder.vocab_size,
        "num_hidden_layers": decoder.num_layers,
        "hidden_size": decoder.features,
        "intermediate_size": decoder.hidden_features,
        "num_attention_heads": decoder.num_heads,
        "num_key_value_heads": decoder.num_key_heads,
        "head_dim": decoder.features_of_head,
        "hidden_act": decoder.activation,
        "rms_norm_eps": decoder.norm_epsilon,
        "attention_bias": decoder.output_bias,
        "mlp_bias": decoder.mlp_bias,
        "tie_word_embeddings": decoder.tied_embeddings,
        "max_position_embeddings": decoder.max_positions or 32768,
        "rope_parameters": {"rope_type": "default", "rope_theta": decoder.rotary_base},
    }
