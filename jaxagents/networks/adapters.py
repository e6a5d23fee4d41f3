"""Adapters: a few parameters that modify the many frozen ones of any network, as functions of pytrees."""

import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxagents.types import Array, Params, PyTree

PROJECTIONS = r"(query|key|value|qkv|output|gate|up|down)/kernel$"
"""Matches the projections of attention and MLP in a language model."""


class Adapter(NamedTuple):
    """A small change to the parameters of a network.

    Attributes:
        init: `(key, params) -> own parameters`, with which `merge` changes nothing at first.
        merge: `(params, own parameters) -> params` of the same shapes and dtypes.
        description: `kind` and the settings that the files of other libraries store.
    """

    init: Callable[[Array, Params], PyTree]
    merge: Callable[[Params, PyTree], Params]
    description: Mapping[str, Any] = MappingProxyType({})


def lora(
    *,
    pattern: str = PROJECTIONS,
    rank: int = 8,
    alpha: float = 16.0,
    rank_stabilized: bool = False,
    magnitude: bool = False,
) -> Adapter:
    """Makes low-rank updates of kernels, `W + s A B`, or with a magnitude `m (W + s A B) / |W + s A B|`.

    A merge costs as much as multiplying a kernel by `rank` rows, and one merged copy of the kernels exists while the
    network runs.

    Args:
        pattern: regular expression searched in the paths of kernels, such as `params/layers_0/attention/query/kernel`.
        rank: r in `A [D, r]` and `B [r, F]`.
        alpha: alpha in `s = alpha / r`.
        rank_stabilized: whether to use `s = alpha / sqrt(r)` instead.
        magnitude: whether to learn the norm of every output separately (DoRA); gradients treat the norm as a constant.

    Returns:
        The adapter; its parameters are `{path: {"a", "b"}}`, plus "magnitude" for DoRA. B is zero at the start.

    Raises:
        ValueError: the rank is not positive; or, at initialisation, the pattern matches no kernel.

    References:
        Hu et al. (2021), "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1.
        Kalajdzievski (2023), "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA".
        Liu et al. (2024), "DoRA: Weight-Decomposed Low-Rank Adaptation", equations 5 and 11.
    """
    if rank < 1:
        raise ValueError(f"`rank` must be at least 1, got {rank}; try 8.")
    scale = alpha / (math.sqrt(rank) if rank_stabilized else rank)

    def init_one(key: Array, kernel: Array) -> dict[str, Array]:
        *layers, inputs, outputs = kernel.shape
        bound = 1.0 / math.sqrt(inputs)
        own = {"a": jax.random.uniform(key, (*layers, inputs, rank), jnp.float32, -bound, bound)}
        own["b"] = jnp.zeros((*layers, rank, outputs), jnp.float32)
        return own | ({"magnitude": jnp.linalg.norm(kernel.astype(jnp.float32), axis=-2)} if magnitude else {})

    def merge_one(kernel: Array, own: Mapping[str, Array]) -> Array:
        merged = kernel.astype(jnp.float32) + scale * (own["a"] @ own["b"])
        if magnitude:
            norm = jax.lax.stop_gradient(jnp.linalg.norm(merged, axis=-2, keepdims=True))
            merged = merged * (own["magnitude"][..., None, :] / norm)
        return merged.astype(kernel.dtype)

    description = {"kind": "lora", "rank": rank, "alpha": alpha, "pattern": pattern}
    description |= {"rank_stabilized": rank_stabilized, "magnitude": magnitude}
    return _of_leaves(pattern, init_one, merge_one, description)


def ia3(*, outputs: str = r"(key|value)/(kernel|bias)$", inputs: str | None = r"down/kernel$") -> Adapter:
    """Makes learned factors for the outputs of some projections and the inputs of others.

    Args:
        outputs: regular expression for the paths of kernels and biases whose outputs are scaled.
        inputs: regular expression for the paths of kernels whose inputs are scaled; None: none.

    Returns:
        The adapter; its parameters are `{path of the kernel: {"outputs" or "inputs"}}`, all one at the start.

    References:
        Liu et al. (2022), "Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than In-Context Learning",
        section 3.3.
    """

    def init(key: Array, params: Params) -> PyTree:
        del key
        found = _find(params, outputs, min_ndim=1)
        own = {}
        for path, leaf in found.items():
            if path.endswith("kernel"):
                own[path] = {"outputs": jnp.ones((*leaf.shape[:-2], leaf.shape[-1]), jnp.float32)}
        for path, leaf in _find(params, inputs).items() if inputs else ():
            own[path] = {"inputs": jnp.ones(leaf.shape[:-1], jnp.float32)}
        return own

    def merge(params: Params, own: PyTree) -> Params:
        def change(path: str, leaf: Array) -> Array:
            factors = own.get(path, own.get(path.removesuffix("bias") + "kernel"))
            if factors is None:
                return leaf
            if "inputs" in factors:
                return leaf if path.endswith("bias") else (leaf * factors["inputs"][..., None]).astype(leaf.dtype)
            factor = factors["outputs"] if path.endswith("bias") else factors["outputs"][..., None, :]
            return (leaf * factor).astype(leaf.dtype)

        return _map(change, params)

    return Adapter(init=init, merge=merge, description={"kind": "ia3", "outputs": outputs, "inputs": inputs})


def full(*, pattern: str) -> Adapter:
    """Makes an adapter that trains whole parameters, such as a value head, `value_layer/`, or a critic."""
    return _of_leaves(
        pattern,
        lambda key, leaf: {"own": leaf},
        lambda leaf, own: own["own"],
        {"kind": "full", "pattern": pattern},
        min_ndim=0,
    )


def combine(adapters: Mapping[str, Adapter]) -> Adapter:
    """Combines several adapters into one; each is applied to the result of the previous ones."""

    def init(key: Array, params: Params) -> PyTree:
        keys = jax.random.split(key, len(adapters))
        return {name: adapter.init(key, params) for key, (name, adapter) in zip(keys, adapters.items(), strict=True)}

    def merge(params: Params, own: PyTree) -> Params:
        for name, adapter in adapters.items():
            params = adapter.merge(params, own[name])
        return params

    described = {name: dict(adapter.description) for name, adapter in adapters.items()}
    return Adapter(init=init, merge=merge, description={"kind": "combined", "adapters": described})


def _of_leaves(
    pattern: str,
    init_one: Callable[[Array, Array], dict[str, Array]],
    merge_one: Callable[[Array, Mapping[str, Array]], Array],
    description: Mapping[str, Any],
    min_ndim: int = 2,
) -> Adapter:
    """Makes an adapter from functions of single parameters, for all parameters that match a pattern."""

    def init(key: Array, params: Params) -> PyTree:
        found = _find(params, pattern, min_ndim=min_ndim)
        return {path: init_one(jax.random.fold_in(key, i), leaf) for i, (path, leaf) in enumerate(found.items())}

    def merge(params: Params, own: PyTree) -> Params:
        return _map(lambda path, leaf: merge_one(leaf, own[path]) if path in own else leaf, params)

    return Adapter(init=init, merge=merge, description=description)


def _path_of(path: tuple[Any, ...]) -> str:
    return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in path)


def _map(change: Callable[[str, Array], Array], params: Params) -> Params:
    return jax.tree_util.tree_map_with_path(lambda path, leaf: change(_path_of(path), leaf), params)


def _find(params: Params, pattern: str, min_ndim: int = 2) -> dict[str, Array]:
    """Returns the parameters whose paths match a pattern.

    Raises:
        ValueError: no parameter matches, or one that matches has too few axes.
    """
    leaves = {_path_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    found = {path: leaf for path, leaf in leaves.items() if re.search(pattern, path)}
    if not found:
        raise ValueError(f"`pattern` must find a parameter, got {pattern!r}; there are {', '.join(leaves)}.")
    for path, leaf in found.items():
        if leaf.ndim < min_ndim:
            raise ValueError(f"`pattern` must find kernels, got {pattern!r}, which finds {path} {list(leaf.shape)}.")
    return found
