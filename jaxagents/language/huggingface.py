"""Checkpoints of GPT-2, Llama, Qwen2 and Qwen3 in the format of Hugging Face, as language models of ours."""

import functools
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.networks.attention import rotary_frequencies
from jaxagents.networks.transformer import Transformer
from jaxagents.policies.language_model import make_language_model
from jaxagents.types import Array, LanguageModel, Params

# Buffers that some versions saved beside the parameters.
_BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")


def load_language_model(vocab_size: int | None = None, *, path: str | Path, **settings: Any) -> LanguageModel:
    """Makes a language model that starts from a checkpoint.

    Args:
        vocab_size: V of the tokenizer; rows of the embedding above it are cut, missing ones (of added tokens) are the
            mean of the others. None keeps that of the checkpoint.
        path: folder with `config.json` and `model.safetensors` (or its shards and their index).
        **settings: of `Transformer`, over those of the checkpoint: `value_head`, `scan_layers`, `remat`, `dtype` ...

    Returns:
        The model; `init(key)` reads the parameters of the checkpoint on the host, see `LanguageModel.pretrained`, and
        draws random ones only for a value head.

    Raises:
        ValueError: the architecture is not one of the four, or uses something that `Transformer` does not have.
    """
    folder = Path(path).expanduser()
    config = json.loads((folder / "config.json").read_text())
    settings = {**transformer_settings(config), **settings}
    vocab_size = settings.pop("vocab_size") if vocab_size is None else vocab_size
    settings.pop("vocab_size", None)
    network = functools.partial(Transformer, **settings)
    model = make_language_model(vocab_size, network=network)

    def init(key: Array) -> Params:
        if isinstance(key, jax.core.Tracer):
            shapes = jax.eval_shape(model.init, key)
            return jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan, leaf.dtype), shapes)
        params = convert_weights(config, load_weights(folder), network(vocab_size=vocab_size))
        if model.value is None:
            return params
        value_layer = jax.jit(lambda key: model.init(key)["params"]["value_layer"])(key)
        return {"params": {**params["params"], "value_layer": value_layer}}

    return model._replace(init=init, pretrained=True)


def load_weights(folder: Path) -> dict[str, Array]:
    """Reads all `*.safetensors` of a folder.

    Raises:
        ValueError: if there are none.
    """
    from safetensors import safe_open  # An extra: only who loads checkpoints needs it.

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"`path` must hold *.safetensors, got {folder}; try `save_pretrained` of transformers.")
    weights = {}
    for file in files:
        with safe_open(file, framework="flax") as tensors:
            weights.update({name: tensors.get_tensor(name) for name in tensors.keys()})  # noqa: SIM118
    return weights


def transformer_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the `Transformer` that a `config.json` describes.

    Raises:
        ValueError: as `load_language_model`.
    """
    kind = config.get("model_type")
    if kind == "gpt2":
        return _gpt2_settings(config)
    if kind not in ("llama", "qwen2", "qwen3"):
        raise ValueError(f"`model_type` must be gpt2, llama, qwen2 or qwen3, got {kind!r}.")
    if config.get("use_sliding_window"):
        raise ValueError("`use_sliding_window` must be false, got true; there is no sliding window here.")
    heads = config["num_attention_heads"]
    head_features = config.get("head_dim") or config["hidden_size"] // heads
    return {
        "vocab_size": config["vocab_size"],
        "num_layers": config["num_hidden_layers"],
        "features": config["hidden_size"],
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        "head_features": head_features,
        "hidden_features": config["intermediate_size"],
        "activation": _activation(config["hidden_act"]),
        "gated": True,
        "norm": "rms",
        "norm_epsilon": config["rms_norm_eps"],
        "rotary_frequencies": _frequencies(config, head_features),
        "qkv_bias": kind == "qwen2" or bool(config.get("attention_bias")),
        "output_bias": kind != "qwen2" and bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
        "qk_norm": kind == "qwen3",
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
    }


def convert_weights(config: Mapping[str, Any], weights: Mapping[str, Array], network: Transformer) -> Params:
    """Converts the weights of a checkpoint to parameters.

    Args:
        config: of `config.json`.
        weights: arrays by their names in the checkpoint.
        network: what the parameters are for.

    Returns:
        Parameters of `network`, without those of a value head.

    Raises:
        ValueError: a weight is missing, or one has no place.
    """
    prefix = "transformer." if config["model_type"] == "gpt2" else "model."
    unused = {name.removeprefix(prefix): name for name in weights if not name.endswith(_BUFFERS)}

    def take(name: str, *, transpose: bool = False) -> Array:
        if name not in unused:
            raise ValueError(
                f"`weights` must hold {prefix}{name}, got {len(weights)} others: {sorted(weights)[:3]} ..."
            )
        array = jnp.asarray(weights[unused.pop(name)], network.param_dtype)
        return array.T if transpose else array

    params = (_gpt2_params if config["model_type"] == "gpt2" else _llama_params)(take, network)
    params["embedding"] = _resize(params["embedding"], network.vocab_size)
    if network.tied_embeddings:
        unused.pop("lm_head.weight", None)
    else:
        params["head"] = _resize(take("lm_head.weight"), network.vocab_size).T
    if unused:
        raise ValueError(f"`weights` must all have a place in the network, got {sorted(unused.values())} besides.")
    if network.scan_layers:
        layers = [params.pop(f"layers_{i}") for i in range(network.num_layers)]
        params["layers"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    return {"params": params}


def _gpt2_settings(config: Mapping[str, Any]) -> dict[str, Any]:
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
        "norm": "layer",
        "norm_epsilon": config["layer_norm_epsilon"],
        "positions": "learned",
        "max_positions": config["n_positions"],
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
    }


def _gpt2_params(take: Callable[..., Array], network: Transformer) -> dict[str, Any]:
    def dense(name: str) -> dict[str, Array]:
        return {"kernel": take(f"{name}.weight"), "bias": take(f"{name}.bias")}

    def norm(name: str) -> dict[str, Array]:
        return {"scale": take(f"{name}.weight"), "bias": take(f"{name}.bias")}

    params: dict[str, Any] = {"embedding": take("wte.weight"), "position_embedding": take("wpe.weight")}
    for layer in range(network.num_layers):
        params[f"layers_{layer}"] = {
            "attention_norm": norm(f"h.{layer}.ln_1"),
            "attention": {"qkv": dense(f"h.{layer}.attn.c_attn"), "output": dense(f"h.{layer}.attn.c_proj")},
            "mlp_norm": norm(f"h.{layer}.ln_2"),
            "up": dense(f"h.{layer}.mlp.c_fc"),
            "down": dense(f"h.{layer}.mlp.c_proj"),
        }
    return {**params, "final_norm": norm("ln_f")}


def _llama_params(take: Callable[..., Array], network: Transformer) -> dict[str, Any]:
    def dense(*names: str, bias: bool) -> dict[str, Array]:
        parts = {"kernel": jnp.concatenate([take(f"{name}.weight", transpose=True) for name in names], axis=1)}
        return {**parts, "bias": jnp.concatenate([take(f"{name}.bias") for name in names])} if bias else parts

    def norm(name: str) -> dict[str, Array]:
        return {"scale": take(f"{name}.weight")}

    params: dict[str, Any] = {"embedding": take("embed_tokens.weight")}
    for layer in range(network.num_layers):
        attention, mlp = f"layers.{layer}.self_attn", f"layers.{layer}.mlp"
        projections = [f"{attention}.{name}_proj" for name in "qkv"]
        params[f"layers_{layer}"] = {
            "attention_norm": norm(f"layers.{layer}.input_layernorm"),
            "attention": {
                "qkv": dense(*projections, bias=network.qkv_bias),
                "output": dense(f"{attention}.o_proj", bias=network.output_bias),
            },
            "mlp_norm": norm(f"layers.{layer}.post_attention_layernorm"),
            "up": dense(f"{mlp}.gate_proj", f"{mlp}.up_proj", bias=network.mlp_bias),
            "down": dense(f"{mlp}.down_proj", bias=network.mlp_bias),
        }
        if network.qk_norm:
            norms = {"query_norm": norm(f"{attention}.q_norm"), "key_norm": norm(f"{attention}.k_norm")}
            params[f"layers_{layer}"]["attention"].update(norms)
    return {**params, "final_norm": norm("norm")}


def _resize(rows: Array, num_rows: int) -> Array:
    """Cuts rows `[V, D]`, or adds their mean."""
    added = max(num_rows - rows.shape[0], 0)
    mean = jnp.mean(rows, axis=0, keepdims=True)
    return jnp.concatenate([rows[:num_rows], jnp.repeat(mean, added, axis=0)])


def _activation(name: str) -> str:
    names = {"silu": "silu", "gelu": "gelu", "gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new", "relu": "relu"}
    if name not in names:
        raise ValueError(f"The activation must be one of {', '.join(names)}, got {name!r}.")
    return names[name]


def _frequencies(config: Mapping[str, Any], head_features: int) -> tuple[float, ...]:
    """Computes rotary frequencies; `rope_parameters` is what transformers 5 writes, the others what 4 wrote."""
    rope = {"rope_theta": config.get("rope_theta", 10_000.0), **(config.get("rope_scaling") or {})}
    rope.update(config.get("rope_parameters") or {})
    rotated = int(head_features * rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)))
    frequencies = rotary_frequencies(rotated, rope["rope_theta"])
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return frequencies
    if kind == "linear":
        return tuple(frequency / rope["factor"] for frequency in frequencies)
    if kind == "llama3":
        return tuple(_llama3_frequency(frequency, rope) for frequency in frequencies)
    raise ValueError(f"`rope_type` must be default, linear or llama3, got {kind!r}.")


def _llama3_frequency(frequency: float, rope: Mapping[str, Any]) -> float:
    """Divides low frequencies by a factor, keeps high ones, and goes from one to the other in between (Llama 3.1)."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] * frequency / (2.0 * math.pi)
    kept = min(max((turns - low) / (high - low), 0.0), 1.0)
    return kept * frequency + (1.0 - kept) * frequency / rope["factor"]
