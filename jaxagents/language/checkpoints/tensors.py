"""The tensors of a checkpoint: their locations in files, and the parameters to which they correspond."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxagents.networks.decoder import Decoder

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
TYPES = {
    **{"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16},
    **{"I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_},
}

GPT2_PROJECTIONS = {
    **{"attention/qkv": "attn.c_attn", "attention/output": "attn.c_proj"},
    **{"up": "mlp.c_fc", "down": "mlp.c_proj"},
}
LLAMA_PROJECTIONS = {
    **{"attention/query": "self_attn.q_proj", "attention/key": "self_attn.k_proj"},
    **{"attention/value": "self_attn.v_proj", "attention/output": "self_attn.o_proj"},
    **{name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}
"""Names in checkpoints of the linear projections of a layer."""


class Place(NamedTuple):
    """The place of a parameter in a checkpoint.

    Attributes:
        path: keys of the parameter; "layers" stands for every layer.
        name: name of the tensor, with `{layer}` if there is one per layer.
        transposed: whether the tensor is the transpose of the parameter.
    """

    path: tuple[str, ...]
    name: str
    transposed: bool = False

    @property
    def per_layer(self) -> bool:
        """Returns whether there is one per layer."""
        return self.path[0] == "layers"


def places(decoder: Decoder) -> list[Place]:
    """Returns the place in a checkpoint of every parameter of a decoder except its value head."""
    return _gpt2_places(decoder) if decoder.fused_qkv else _llama_places(decoder)


def open_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Opens the tensors of a folder without reading them, as arrays of memory-mapped files.

    Args:
        folder: folder with `model.safetensors`, or with several files and their index.

    Raises:
        ValueError: a file is missing, truncated or of another format, or lacks a tensor that the index assigns to it.
    """
    index = folder / INDEX
    if not index.is_file():
        return open_file(folder / SINGLE)
    files: dict[str, dict[str, np.ndarray]] = {}
    tensors = {}
    weights = read_json(index).get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(file, str) for file in weights.values()):
        raise ValueError(f"`{index}` must hold a `weight_map` of names of files, got {weights!r}.")
    for name, file in weights.items():
        if file not in files:
            files[file] = open_file(folder / file)
        if name not in files[file]:
            raise ValueError(f"`{file}` must hold {name}, as {index} says, got {len(files[file])} other tensors.")
        tensors[name] = files[file][name]
    return tensors


def open_file(file: Path) -> dict[str, np.ndarray]:
    """Opens the tensors of one safetensors file; see `open_tensors`."""
    if not file.is_file():
        raise ValueError(f"`path` must hold {file.name}, got none at {file}; nothing is downloaded.")
    content = np.memmap(file, np.uint8, mode="r")
    start = 8 + int.from_bytes(content[:8].tobytes(), "little")
    try:
        header = json.loads(content[8:start].tobytes())
    except ValueError as error:
        raise ValueError(f"`path` must hold files of safetensors, got {file}, which is cut or no such file.") from error
    tensors = {}
    for name, entry in header.items() if isinstance(header, dict) else [(file.name, None)]:
        if name == "__metadata__":
            continue
        if not isinstance(entry, dict) or not {"data_offsets", "dtype", "shape"} <= entry.keys():
            raise ValueError(f"`{file}` must say where {name} lies, of which type and shape, got {entry!r}.")
        begin, end = (start + offset for offset in entry["data_offsets"])
        if entry["dtype"] not in TYPES or end > content.size:
            raise ValueError(
                f"{name} of {file} must be whole and of {', '.join(TYPES)}, got {content.size} of {end} bytes of "
                f"{entry['dtype']}."
            )
        tensors[name] = content[begin:end].view(TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def read_json(file: Path) -> Mapping:
    """Reads a JSON file.

    Raises:
        ValueError: there is no file, or it is damaged or does not contain an object.
    """
    if not file.is_file():
        raise ValueError(f"`path` must hold {file.name}, got none at {file}; nothing is downloaded.")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"`{file}` must be JSON, got {error}; copy it again from where the checkpoint is.") from error
    if not isinstance(content, dict):
        raise ValueError(f"`{file}` must hold a JSON object, got {type(content).__name__}.")
    return content


def _dense(path: str, name: str, bias: bool, *, transposed: bool) -> list[Place]:
    keys = tuple(path.split("/"))
    kernel = Place((*keys, "kernel"), f"{name}.weight", transposed)
    return [kernel, Place((*keys, "bias"), f"{name}.bias")] if bias else [kernel]


def _norm(path: str, name: str, *, bias: bool = False) -> list[Place]:
    keys = tuple(path.split("/"))
    scale = Place((*keys, "scale"), f"{name}.weight")
    return [scale, Place((*keys, "bias"), f"{name}.bias")] if bias else [scale]


def _gpt2_places(decoder: Decoder) -> list[Place]:
    layer = "transformer.h.{layer}"
    found = [Place(("embedding",), "transformer.wte.weight"), Place(("position_embedding",), "transformer.wpe.weight")]
    found += _norm("layers/attention_norm", f"{layer}.ln_1", bias=True)
    found += _norm("layers/mlp_norm", f"{layer}.ln_2", bias=True)
    for path, name in GPT2_PROJECTIONS.items():
        found += _dense(f"layers/{path}", f"{layer}.{name}", True, transposed=False)
    found += _norm("final_norm", "transformer.ln_f", bias=True)
    return found if decoder.tied_embeddings else [*found, Place(("head",), "lm_head.weight", True)]


def _llama_places(decoder: Decoder) -> list[Place]:
    layer = "model.layers.{layer}"
    norms = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    if decoder.post_norms:
        norms |= {"attention_post_norm": "post_attention_layernorm", "mlp_norm": "pre_feedforward_layernorm"}
        norms |= {"mlp_post_norm": "post_feedforward_layernorm"}
    if decoder.qk_norm:
        norms |= {"attention/query_norm": "self_attn.q_norm", "attention/key_norm": "self_attn.k_norm"}
    biases = dict.fromkeys(LLAMA_PROJECTIONS, decoder.mlp_bias) | {"attention/output": decoder.output_bias}
    biases |= {f"attention/{name}": decoder.qkv_bias for name in ("query", "key", "value")}
    found = [Place(("embedding",), "model.embed_tokens.weight")]
    for path, name in norms.items():
        found += _norm(f"layers/{path}", f"{layer}.{name}")
    for path, name in LLAMA_PROJECTIONS.items():
        found += _dense(f"layers/{path}", f"{layer}.{name}", biases[path], transposed=True)
    found += _norm("final_norm", "model.norm")
    return found if decoder.tied_embeddings else [*found, Place(("head",), "lm_head.weight", True)]
