"""Rotary positions of public checkpoints, including scalings for longer contexts."""

import math
from collections.abc import Mapping
from typing import Any

from jaxagents.networks.attention import rotary_frequencies

_KINDS = ("default", "linear", "llama3", "yarn")


def rotary_settings(family: str, config: Mapping[str, Any], head_features: int) -> dict[str, Any]:
    """Returns the settings of a `Decoder` for positions.

    Args:
        family: `model_type` of the config.
        config: content of `config.json`; transformers 5 writes `rope_parameters`, version 4 wrote the other entries.
        head_features: number of features per head.

    Raises:
        ValueError: the scaling is not supported.
    """
    full, local = _parameters(family, config)
    frequencies, scale = _frequencies(full, config, head_features)
    settings = {"rotary_frequencies": frequencies, "rotary_scale": scale, "rotary_base": float(full["rope_theta"])}
    if local is not None:
        settings["local_rotary_frequencies"] = _frequencies(local, config, head_features)[0]
    return settings


def _parameters(family: str, config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Returns the parameters of layers without a window and, for Gemma 3, of layers with a window."""
    given = config.get("rope_parameters") or {}
    if family == "gemma3_text":
        base, local_base = config.get("rope_theta", 1_000_000.0), config.get("rope_local_base_freq", 10_000.0)
        full = {"rope_theta": base, **(config.get("rope_scaling") or {}), **given.get("full_attention", {})}
        return full, {"rope_theta": local_base, **given.get("sliding_attention", {})}
    return {"rope_theta": config.get("rope_theta", 10_000.0), **(config.get("rope_scaling") or {}), **given}, None


def _frequencies(
    rope: Mapping[str, Any], config: Mapping[str, Any], head_features: int
) -> tuple[tuple[float, ...], float]:
    """Returns radians per position, and the factor of the rotated features."""
    rotated = int(head_features * rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)))
    frequencies = rotary_frequencies(rotated, rope["rope_theta"])
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return frequencies, 1.0
    if kind == "linear":
        return tuple(frequency / rope["factor"] for frequency in frequencies), 1.0
    if kind == "llama3":
        return tuple(_llama3(frequency, rope) for frequency in frequencies), 1.0
    if kind == "yarn":
        return _yarn(frequencies, rope, config)
    raise ValueError(f"`rope_type` must be one of {', '.join(_KINDS)}, got {kind!r}.")


def _llama3(frequency: float, rope: Mapping[str, Any]) -> float:
    """Divides low frequencies by a factor, keeps high ones, and interpolates in between (Llama 3.1)."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] * frequency / (2.0 * math.pi)
    kept = min(max((turns - low) / (high - low), 0.0), 1.0)
    return kept * frequency + (1.0 - kept) * frequency / rope["factor"]


def _yarn(
    frequencies: tuple[float, ...], rope: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[tuple[float, ...], float]:
    """Divides frequencies by a factor, to a degree that falls with their number of turns in the original context.

    References:
        Peng et al. (2023), "YaRN: Efficient Context Window Extension of Large Language Models", equations 17 to 23.
    """
    original = rope.get("original_max_position_embeddings") or config["max_position_embeddings"]
    factor = rope.get("factor") or config["max_position_embeddings"] / original
    features, base = 2 * len(frequencies), rope["rope_theta"]

    def feature_with(turns: float) -> float:
        return features * math.log(original / (turns * 2.0 * math.pi)) / (2.0 * math.log(base))

    low, high = feature_with(rope.get("beta_fast") or 32.0), feature_with(rope.get("beta_slow") or 1.0)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, features - 1)
    high = high + 0.001 if low == high else high
    divided = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(len(frequencies))]
    scaled = tuple(f * (1.0 - part) + f / factor * part for f, part in zip(frequencies, divided, strict=True))
    if rope.get("attention_factor") is not None:
        return scaled, float(rope["attention_factor"])
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return scaled, _attention_scale(factor, rope["mscale"]) / _attention_scale(factor, rope["mscale_all_dim"])
    return scaled, _attention_scale(factor, 1.0)


def _attention_scale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0
