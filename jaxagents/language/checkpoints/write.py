"""Checkpoint folders that other libraries can load."""

import functools
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxagents.language.checkpoints.tensors import INDEX, SINGLE, TYPES, Place, places
from jaxagents.networks.decoder import Decoder
from jaxagents.types import Params

_TORCH_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
# Files of a folder besides its tensors and its config.
_COMPANIONS = ("generation_config.json", "tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt", "*.jinja")


def write_checkpoint(
    folder: Path,
    decoder: Decoder,
    params: Params,
    config: Mapping[str, Any],
    *,
    max_file_bytes: int = 5 * 10**9,
    source: Path | None = None,
) -> None:
    """Writes `config.json`, and the parameters as safetensors files, one file at a time.

    Args:
        folder: folder to create; it must not contain other tensors.
        decoder: decoder of the parameters.
        params: parameters of the decoder; those of a value head have no place in a checkpoint and are left out.
        config: content of the decoder's original `config.json`, or of `families.describe`; its `dtype` is the dtype of
            the tensors, by default that of the parameters.
        max_file_bytes: size above which a checkpoint is split into several files with an index.
        source: folder whose tokenizer files are copied, and whose `config.json` is copied verbatim if it is equivalent.

    Raises:
        ValueError: the folder already contains tensors.
    """
    from safetensors.numpy import save_file  # An extra: only who writes checkpoints needs it.

    folder.mkdir(parents=True, exist_ok=True)
    if found := sorted(folder.glob("*.safetensors*")):
        raise ValueError(f"`folder` must hold no tensors yet, got {found[0]}; try another folder.")
    _write_config(folder, decoder, config, source)
    dtype = _TORCH_TYPES.get(config.get("dtype", config.get("torch_dtype")))
    sizes = _sizes(decoder, params, dtype)
    files = _split(sizes, max_file_bytes)
    where = {name: number for number, names in enumerate(files) for name in names}
    titles = [SINGLE] if len(files) == 1 else [_title(number, len(files)) for number in range(len(files))]
    pending: dict[int, dict[str, np.ndarray]] = {number: {} for number in range(len(files))}
    for name, tensor in _tensors(decoder, params, dtype):
        pending[where[name]][name] = tensor
        if len(pending[where[name]]) == len(files[where[name]]):
            save_file(pending.pop(where[name]), folder / titles[where[name]], {"format": "pt"})
    if len(files) > 1:
        weight_map = {name: titles[where[name]] for name in sorted(where)}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _write_config(folder: Path, decoder: Decoder, config: Mapping[str, Any], source: Path | None) -> None:
    config = {**config, "vocab_size": decoder.vocab_size}
    text = json.dumps(config, indent=2) + "\n"
    if source is not None:
        for pattern in _COMPANIONS:
            for file in source.glob(pattern):
                shutil.copy(file, folder / file.name)
        given = (source / "config.json").read_text()
        text = given if json.loads(given) == config else text
    (folder / "config.json").write_text(text)


def _tensors(decoder: Decoder, params: Params, dtype: str | None) -> Iterator[tuple[str, np.ndarray]]:
    """Yields every tensor by its name in the checkpoint, fetched from the devices one by one."""
    for place in places(decoder):
        for layer in range(decoder.num_layers) if place.per_layer else [0]:
            leaf = jax.device_get(_leaf(decoder, params, place, layer))
            leaf = leaf.T if place.transposed else leaf
            yield place.name.format(layer=layer), np.ascontiguousarray(leaf, TYPES[dtype] if dtype else leaf.dtype)


def _leaf(decoder: Decoder, params: Params, place: Place, layer: int) -> jax.Array:
    keys = place.path if decoder.scan_layers or not place.per_layer else (f"layers_{layer}", *place.path[1:])
    leaf = functools.reduce(lambda tree, key: tree[key], keys, params["params"])
    return leaf[layer] if place.per_layer and decoder.scan_layers else leaf


def _sizes(decoder: Decoder, params: Params, dtype: str | None) -> dict[str, int]:
    """Returns the size of every tensor in bytes, in the order of the model."""
    sizes = {}
    for place in places(decoder):
        shape = jax.eval_shape(lambda place=place: _leaf(decoder, params, place, 0))
        item = np.dtype(TYPES[dtype] if dtype else shape.dtype).itemsize
        for layer in range(decoder.num_layers) if place.per_layer else [0]:
            sizes[place.name.format(layer=layer)] = shape.size * item
    return sizes


def _split(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    files: list[list[str]] = [[]]
    room = most
    for name, size in sizes.items():
        if size > room and files[-1]:
            files.append([])
            room = most
        files[-1].append(name)
        room -= size
    return files


def _title(number: int, count: int) -> str:
    return f"model-{number + 1:05d}-of-{count:05d}.safetensors"
