"""Adapters in the folder format of the `peft` library: `adapter_config.json` and `adapter_model.safetensors`."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.language.checkpoints.tensors import (
    GPT2_PROJECTIONS,
    LLAMA_PROJECTIONS,
    open_file,
    read_json,
)
from jaxagents.networks.adapters import Adapter, lora
from jaxagents.networks.decoder import Decoder
from jaxagents.types import Array, Params, PyTree

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_LEAVES = {"a": "lora_A.weight", "b": "lora_B.weight", "magnitude": "lora_magnitude_vector"}
# Settings of adapters that cannot be read here.
_UNREAD = ("layers_pattern", "rank_pattern", "alpha_pattern", "modules_to_save", "layer_replication", "lora_bias")


def write_adapter(
    folder: Path, decoder: Decoder, description: Mapping[str, Any], own: PyTree, *, base: str | Path
) -> None:
    """Writes an adapter to a folder.

    Args:
        folder: folder to create.
        decoder: decoder that is adapted.
        description: `Adapter.description` of LoRA, DoRA or IA3.
        own: parameters of the adapter.
        base: folder of the checkpoint that is adapted.

    Raises:
        ValueError: the adapter is of another kind, or changes parameters other than projections of layers.
    """
    from safetensors.numpy import save_file  # An extra: only who writes checkpoints needs it.

    if description.get("kind") not in ("lora", "ia3"):
        raise ValueError(
            f"`adapter` must be lora or ia3 for a folder of peft, got {description.get('kind')}; try merged."
        )
    tensors: dict[str, np.ndarray] = {}
    modules: dict[str, list[str]] = {}
    inner: set[str] = set()
    for path, leaves in own.items():
        projection, numbers, prefix = _modules(decoder, path)
        inner |= {projection} if "inputs" in leaves else set()
        for number, part in zip(numbers, _layers(leaves, decoder), strict=True):
            name = f"{prefix}{number}.{projection}"
            modules.setdefault(projection, []).append(name)
            tensors |= {f"{_PREFIX}{name}.{leaf}": tensor for leaf, tensor in _to_peft(part)}
    everywhere = all(len(names) == decoder.num_layers for names in modules.values())
    targets = sorted(modules) if everywhere else sorted(name for names in modules.values() for name in names)
    config: dict[str, Any] = {"task_type": "CAUSAL_LM", "base_model_name_or_path": str(base), "target_modules": targets}
    config |= {"bias": "none", "inference_mode": True, "fan_in_fan_out": decoder.fused_qkv}
    if description["kind"] == "ia3":
        feedforward = [name for name in targets if any(name.endswith(projection) for projection in inner)]
        config |= {"peft_type": "IA3", "feedforward_modules": feedforward}
    else:
        config |= {"peft_type": "LORA", "r": description["rank"], "lora_alpha": description["alpha"]}
        config |= {"use_rslora": description["rank_stabilized"], "use_dora": description["magnitude"]}
        config["lora_dropout"] = 0.0
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / TENSORS, {"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def load_adapter(path: str | Path) -> Adapter:
    """Makes an adapter that starts from a folder with LoRA or DoRA.

    Args:
        path: path of the folder.

    Returns:
        The adapter; its `init` reads the folder on the host and refuses tensors that do not match any parameters.

    Raises:
        ValueError: a file is missing, or the folder contains another kind of adapter.
    """
    folder = Path(path).expanduser()
    config = read_json(folder / CONFIG)
    unread = [name for name in _UNREAD if config.get(name)]
    if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none" or unread:
        raise ValueError(
            f"`{CONFIG}` must be of LoRA without biases and patterns, got {config.get('peft_type')} with "
            f"{', '.join(unread) or config.get('bias')}."
        )
    for name in ("r", "lora_alpha"):
        if not isinstance(config.get(name), int | float) or isinstance(config[name], bool):
            raise ValueError(f"`{name}` of `{CONFIG}` must be a number, got {config.get(name)!r}.")
    tensors = open_file(folder / TENSORS)
    numbers, modules = zip(*map(_layer_and_module, tensors), strict=True)
    layers, paths = "|".join(sorted(set(numbers))), "|".join(sorted(set(map(_path_of, modules))))
    adapter = lora(
        pattern=f"/layers(_({layers}))?/({paths})/kernel$",
        rank=config["r"],
        alpha=config["lora_alpha"],
        rank_stabilized=bool(config.get("use_rslora")),
        magnitude=bool(config.get("use_dora")),
    )

    def init(key: Array, params: Params) -> PyTree:
        shapes = jax.eval_shape(adapter.init, key, params)
        used: set[str] = set()
        own = {path: _from_peft(path, leaves, tensors, used) for path, leaves in shapes.items()}
        if left := sorted(set(tensors) - used):
            raise ValueError(
                f"`{TENSORS}` must hold what has a place in the parameters, got {', '.join(left)} besides."
            )
        return own

    return adapter._replace(init=init)


def _modules(decoder: Decoder, path: str) -> tuple[str, list[int], str]:
    """Returns the projection of a path, the indices of its layers, and the prefix of their names."""
    table = GPT2_PROJECTIONS if decoder.fused_qkv else LLAMA_PROJECTIONS
    found = re.fullmatch(r"params/layers(?:_(\d+))?/(.+)/kernel", path)
    if found is None or found[2] not in table:
        raise ValueError(f"`adapter` must change projections of layers only, got {path}; try merged.")
    numbers = [int(found[1])] if found[1] else list(range(decoder.num_layers))
    return table[found[2]], numbers, "transformer.h." if decoder.fused_qkv else "model.layers."


def _layers(leaves: Mapping[str, Array], decoder: Decoder) -> Iterator[dict[str, np.ndarray]]:
    """Yields the parameters of each layer, on the host."""
    arrays = {name: np.asarray(leaf, np.float32) for name, leaf in jax.device_get(dict(leaves)).items()}
    if not decoder.scan_layers:
        yield arrays
        return
    for layer in range(decoder.num_layers):
        yield {name: leaf[layer] for name, leaf in arrays.items()}


def _to_peft(part: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the names and tensors that `peft` has for one projection; its matrices are transposed."""
    for name, leaf in part.items():
        if name in _LEAVES:
            yield _LEAVES[name], np.ascontiguousarray(leaf.T)
        else:
            yield "ia3_l", leaf[None, :] if name == "inputs" else leaf[:, None]


def _from_peft(
    path: str, shapes: Mapping[str, jax.ShapeDtypeStruct], tensors: Mapping[str, np.ndarray], used: set[str]
) -> dict[str, Array]:
    found = re.fullmatch(r"params/layers(?:_(\d+))?/(.+)/kernel", path)
    leaves = {}
    for leaf, shape in shapes.items():
        stacked = found[1] is None
        parts = []
        for layer in range(shape.shape[0]) if stacked else [int(found[1])]:
            prefix = "transformer.h." if _is_gpt2(tensors) else "model.layers."
            table = GPT2_PROJECTIONS if _is_gpt2(tensors) else LLAMA_PROJECTIONS
            name = f"{_PREFIX}{prefix}{layer}.{table[found[2]]}.{_LEAVES[leaf]}"
            wanted = shape.shape[1:][::-1] if stacked else shape.shape[::-1]
            if name not in tensors or tensors[name].shape != wanted:
                got = f"shape {list(tensors[name].shape)}" if name in tensors else "none"
                raise ValueError(f"`{TENSORS}` must hold {name} {list(wanted)}, got {got}.")
            used.add(name)
            parts.append(np.asarray(tensors[name], np.float32).T)
        leaves[leaf] = jnp.asarray(np.stack(parts) if stacked else parts[0])
    return leaves


def _is_gpt2(tensors: Mapping[str, np.ndarray]) -> bool:
    return any(name.startswith(f"{_PREFIX}transformer.h.") for name in tensors)


def _layer_and_module(name: str) -> tuple[str, str]:
    """Returns the index of the layer and the module, such as `self_attn.q_proj`, in a tensor's name."""
    found = re.fullmatch(rf"{re.escape(_PREFIX)}(?:model\.layers|transformer\.h)\.(\d+)\.(.+)\.lora_.+", name)
    if found is None:
        raise ValueError(f"`{TENSORS}` must hold LoRA of the projections of layers, got {name}.")
    return found[1], found[2]


def _path_of(module: str) -> str:
    paths = {name: path for table in (GPT2_PROJECTIONS, LLAMA_PROJECTIONS) for path, name in table.items()}
    if module not in paths:
        raise ValueError(f"`target_modules` must be among {', '.join(paths)}, got {module}.")
    return paths[module]
