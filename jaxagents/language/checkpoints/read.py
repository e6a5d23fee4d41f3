"""Language models that start from a folder of a public checkpoint."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.language.checkpoints.families import decoder_settings
from jaxagents.language.checkpoints.tensors import Place, open_tensors, places, read_json
from jaxagents.networks.decoder import Decoder
from jaxagents.policies.language_model import make_language_model
from jaxagents.types import Array, LanguageModel, Params, PyTree

# Buffers that some versions stored with the parameters.
_BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
_MOST_ADDED = 256  # Largest number of tokens that a tokenizer may have beyond those of the checkpoint.
Shardings = Callable[[str], jax.sharding.Sharding] | jax.sharding.Sharding | None


def load_language_model(
    vocab_size: int | None = None,
    *,
    path: str | Path,
    network: Mapping[str, Any] | None = None,
    **settings: Any,
) -> LanguageModel:
    """Makes a language model that starts from a checkpoint.

    Args:
        vocab_size: V of the tokenizer; surplus rows of the embedding are cut, and missing ones (of added tokens) are
            the mean of the others. None: that of the checkpoint.
        path: folder with `config.json` and `model.safetensors`, or with several files and their index.
        network: settings that worlds and algorithms have for models with random initial parameters; only `value_head`
            is used, because a checkpoint has its own sizes.
        **settings: arguments of `Decoder` that override those of the checkpoint: `value_head`, `scan_layers`, `remat`,
            `dtype` ...

    Returns:
        The model; `init(key, shardings=None)` reads the parameters of the checkpoint on the host, see
        `LanguageModel.pretrained`, and draws random ones only for a value head. With shardings, which have the
        structure of the parameters, every tensor goes directly to its shards.

    Raises:
        ValueError: a file is missing, the family is not supported, the tokenizer belongs to another model, or tensors
            do not match, see `read_params`.
    """
    folder = Path(path).expanduser()
    settings["value_head"] = settings.get("value_head", False) or (network or {}).get("value_head", False)
    decoder = read_decoder(folder, vocab_size, **settings)
    if any(folder.glob("model*.safetensors*")):  # Planning needs only the config.
        _open_all(folder, decoder)
    model = make_language_model(decoder.vocab_size, network=lambda vocab_size: decoder)

    def init(key: Array, shardings: PyTree | None = None) -> Params:
        if isinstance(key, jax.core.Tracer):
            shapes = jax.eval_shape(model.init, key)
            return jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan, leaf.dtype), shapes)
        params = read_params(folder, decoder, sharding=None if shardings is None else _by_name(shardings))
        if model.value is None:
            return params
        placed = None if shardings is None else shardings["params"]["value_layer"]
        value_layer = jax.jit(lambda key: model.init(key)["params"]["value_layer"], out_shardings=placed)(key)
        return {"params": {**params["params"], "value_layer": value_layer}}

    return model._replace(init=init, pretrained=True)


def _by_name(shardings: PyTree) -> Callable[[str], jax.sharding.Sharding]:
    """Returns `(name) -> sharding` for names as in `read_params`."""
    leaves = jax.tree_util.tree_leaves_with_path(shardings["params"])
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}.__getitem__


def read_decoder(folder: Path, vocab_size: int | None = None, **settings: Any) -> Decoder:
    """Makes the decoder that a folder's `config.json` describes; for the arguments see `load_language_model`."""
    of_config = decoder_settings(read_json(folder / "config.json"))
    own = of_config["vocab_size"]
    if vocab_size is not None and vocab_size > own + _MOST_ADDED:
        raise ValueError(
            f"`tokenizer` must have the {own} tokens of the checkpoint and at most {_MOST_ADDED} added ones, got "
            f"{vocab_size}; try tokenizer=huggingface tokenizer.source={folder}."
        )
    return Decoder(**{**of_config, **settings} | ({} if vocab_size is None else {"vocab_size": vocab_size}))


def read_params(folder: Path, decoder: Decoder, *, sharding: Shardings = None) -> Params:
    """Reads the parameters of a checkpoint, one tensor at a time, cast to `decoder.param_dtype`.

    Args:
        folder: folder of the checkpoint.
        decoder: decoder of the parameters, see `read_decoder`.
        sharding: sharding of all parameters, or `(name) -> sharding` for names such as `layers/attention/query/kernel`
            (with `layers_0` if layers are not scanned): devices then read only their own parts of the tensors. None:
            puts them on the default device.

    Returns:
        Parameters of `decoder`, without those of a value head.

    Raises:
        ValueError: tensors are missing, left over or of the wrong shape; the message lists all of them.
    """
    tensors, leaves = _open_all(folder, decoder)
    params: dict[str, Any] = {}
    for place, shape in leaves.items():
        if place.per_layer and not decoder.scan_layers:
            for layer in range(decoder.num_layers):
                path = (f"layers_{layer}", *place.path[1:])
                _put(params, path, _read_leaf([tensors[place.name.format(layer=layer)]], place, shape, path, sharding))
            continue
        parts = [tensors[name] for name in names_of(place, decoder)]
        stacked = (len(parts), *shape.shape) if place.per_layer else shape.shape
        leaf = jax.ShapeDtypeStruct(stacked, shape.dtype)
        _put(params, place.path, _read_leaf(parts, place, leaf, place.path, sharding))
    return {"params": params}


def _open_all(folder: Path, decoder: Decoder) -> tuple[dict[str, np.ndarray], dict[Place, jax.ShapeDtypeStruct]]:
    """Returns the tensors of a folder by name, on disk, and the shapes of parameters; refuses tensors that differ."""
    tensors = _with_prefixes(open_tensors(folder), decoder)
    wanted = jax.eval_shape(functools.partial(decoder.init, method="everything"), *_example())["params"]
    leaves = {place: wanted_shape(wanted, decoder, place) for place in places(decoder)}
    _require_all(folder, tensors, leaves, decoder)
    return tensors, leaves


def names_of(place: Place, decoder: Decoder) -> list[str]:
    """Returns the names of a parameter's tensors, one for each layer if there are several."""
    if not place.per_layer:
        return [place.name]
    return [place.name.format(layer=layer) for layer in range(decoder.num_layers)]


def wanted_shape(shapes: Params, decoder: Decoder, place: Place) -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of a parameter, for a single layer if there are several."""
    keys = place.path
    if place.per_layer and not decoder.scan_layers:
        keys = ("layers_0", *keys[1:])
    leaf = functools.reduce(lambda tree, key: tree[key], keys, shapes)
    stacked = place.per_layer and decoder.scan_layers
    return jax.ShapeDtypeStruct(leaf.shape[1:] if stacked else leaf.shape, leaf.dtype)


def _example() -> tuple[Array, ...]:
    tokens = jnp.zeros((1, 1), jnp.int32)
    return jax.random.key(0), tokens, tokens, jnp.ones((1, 1, 1), bool)


def _with_prefixes(tensors: Mapping[str, np.ndarray], decoder: Decoder) -> dict[str, np.ndarray]:
    """Returns tensors of a model that was saved without its head under the names that they have with a head."""
    prefix = "transformer." if decoder.fused_qkv else "model."
    kept = {name: tensor for name, tensor in tensors.items() if not name.endswith(_BUFFERS)}
    if any(name.startswith(prefix) for name in kept):
        return kept
    return {name if name.startswith("lm_head.") else prefix + name: tensor for name, tensor in kept.items()}


def _require_all(
    folder: Path, tensors: Mapping[str, np.ndarray], leaves: Mapping[Place, jax.ShapeDtypeStruct], decoder: Decoder
) -> None:
    """Refuses tensors that do not match, and lists them."""
    unused = set(tensors)
    wrong: dict[str, list[str]] = {"missing": [], "misshapen": [], "left over": []}
    for place, leaf in leaves.items():
        for name in names_of(place, decoder):
            if name not in tensors:
                wrong["missing"].append(name)
                continue
            unused.discard(name)
            shape = leaf.shape[::-1] if place.transposed else leaf.shape
            rows = slice(1, None) if is_vocabulary(place) else slice(None)  # The vocabulary may have another size.
            if tensors[name].shape[rows] != shape[rows]:
                wrong["misshapen"].append(f"{name} {list(tensors[name].shape)}, not {list(shape)}")
    if decoder.tied_embeddings:
        unused.discard("lm_head.weight")
    wrong["left over"] = sorted(unused)
    problems = [f"{len(names)} {kind}: {', '.join(names)}" for kind, names in wrong.items() if names]
    if problems:
        raise ValueError(
            f"`path` must hold the tensors that its config.json describes, got {folder} with {'; '.join(problems)}."
        )


def is_vocabulary(place: Place) -> bool:
    """Returns whether the tensor of a parameter has one row per token."""
    return place.path[0] in ("embedding", "head")


def _read_leaf(
    parts: list[np.ndarray], place: Place, leaf: jax.ShapeDtypeStruct, path: tuple[str, ...], sharding: Shardings
) -> Array:
    """Reads a parameter; of a sharded one, reads what this host's devices hold, each part once."""
    blocks_read: dict[str, np.ndarray] = {}

    def read_once(index: tuple[slice, ...]) -> np.ndarray:
        if str(index) not in blocks_read:
            blocks_read[str(index)] = read(index)
        return blocks_read[str(index)]

    def read(index: tuple[slice, ...]) -> np.ndarray:
        stacked = len(leaf.shape) > parts[0].ndim
        layers, inner = (parts[index[0]], index[1:]) if stacked else (parts, index)
        read_part = functools.partial(_read_part, place=place, leaf=leaf)
        blocks = [read_part(part, inner) for part in layers]
        return np.stack(blocks) if stacked else blocks[0]

    chosen = sharding("/".join(path)) if callable(sharding) else sharding
    if chosen is None:
        return jnp.asarray(read((slice(None),) * len(leaf.shape)))
    return jax.make_array_from_callback(leaf.shape, chosen, read_once)


def _read_part(part: np.ndarray, index: tuple[slice, ...], *, place: Place, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
    index = index[::-1] if place.transposed else index
    if is_vocabulary(place):
        num_rows = leaf.shape[-1] if place.transposed else leaf.shape[0]
        block = _read_rows(part, range(num_rows)[index[0]], index[1:])
    else:
        block = np.asarray(part[index])
    return np.asarray(block.T if place.transposed else block, leaf.dtype)


def _read_rows(rows: np.ndarray, wanted: range, rest: tuple[slice, ...]) -> np.ndarray:
    """Reads rows `[V, D]` of some tokens; rows that the checkpoint lacks are the mean of its rows."""
    own = np.asarray(rows[(slice(wanted.start, min(wanted.stop, len(rows))), *rest)])
    added = wanted.stop - max(wanted.start, len(rows))
    if added <= 0:
        return own
    mean = np.mean(np.asarray(rows[(slice(None), *rest)], np.float32), axis=0, keepdims=True)
    return np.concatenate([own.astype(np.float32), np.repeat(mean, added, axis=0)])


def _put(params: dict[str, Any], path: tuple[str, ...], leaf: Array) -> None:
    for key in path[:-1]:
        params = params.setdefault(key, {})
    params[path[-1]] = leaf
