"""Several LoRA adapters in one batch: every row, or every token, uses one of them, above one copy of the parameters."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util

from jaxagents.networks.adapters import Adapter
from jaxagents.types import Array, LanguageModel, Params, PyTree

_FACTORS = ("lora_a", "lora_b", "lora_owner")


def stack_adapters(params: Params, adapters: Sequence[tuple[Adapter, PyTree]]) -> Params:
    """Puts the factors of several adapters beside the kernels that they change.

    Args:
        params: frozen parameters of a network in which all layers with adapters are `nn.Dense`.
        adapters: K adapters of `networks.adapters.lora`, with the parameters of each; ranks and patterns may differ.

    Returns:
        The parameters, with `lora_a [D, R]`, `lora_b [R, F]` and `lora_owner [R]` beside every kernel that an adapter
        changes, where R is the sum of these adapters' ranks. The kernels themselves are not copied; without
        `choose_adapters` the adapters have no effect.

    Raises:
        ValueError: there are no adapters, one is not LoRA, or one has magnitudes (DoRA), which scale whole columns.
    """
    if not adapters:
        raise ValueError("`adapters` must be at least one, got none.")
    flat = traverse_util.flatten_dict(dict(params), sep="/")
    factors: dict[str, list[tuple[Array, Array, int]]] = {}
    for number, (adapter, own) in enumerate(adapters):
        require_plain_lora(adapter, f"as number {number}")
        described = adapter.description
        rank = described["rank"]
        scale = described["alpha"] / (rank**0.5 if described["rank_stabilized"] else rank)
        for path, leaves in own.items():
            factors.setdefault(path, []).append((leaves["a"], scale * leaves["b"], number))
    for path, parts in factors.items():
        owner = np.concatenate([np.full(a.shape[-1], number, np.int32) for a, _, number in parts])
        layer, layers = path.removesuffix("kernel"), parts[0][0].shape[:-2]
        a = jnp.concatenate([a for a, _, _ in parts], axis=-1)
        b = jnp.concatenate([b for _, b, _ in parts], axis=-2)
        values = (a, b, jnp.broadcast_to(jnp.asarray(owner), (*layers, owner.size)))
        flat |= {layer + name: value for name, value in zip(_FACTORS, values, strict=True)}
    return traverse_util.unflatten_dict(flat, sep="/")


def require_plain_lora(adapter: Adapter, which: str) -> None:
    """Refuses adapters that cannot be used side by side with others.

    Args:
        adapter: adapter to check.
        which: phrase that says which adapter it is, for the message.

    Raises:
        ValueError: the adapter is not LoRA, or it has magnitudes (DoRA), which scale whole columns.
    """
    described = adapter.description
    if described.get("kind") != "lora" or described["magnitude"]:
        kind = "LoRA with magnitudes (DoRA)" if described.get("magnitude") else described.get("kind")
        raise ValueError(f"`adapters` must be LoRA without magnitudes, got {kind} {which}; try adapter=lora.")


def choose_adapters(model: LanguageModel, choice: Array | Sequence[Any]) -> LanguageModel:
    """Makes a model in which every row, or every token, uses the adapter that is chosen for it.

    The change costs as much as one adapter with the rank of all together: `((x A) * chosen) B`, where A and B hold the
    factors of all adapters. Adapters that are not chosen get no gradient.

    Args:
        model: model of `policies.language_model.make_language_model`.
        choice: int32 `[B]`, the adapter's index in `stack_adapters` for every row, or `[B, S]`, for every token that is
            read; -1 for none.

    Returns:
        The model; its parameters are those of `stack_adapters`.
    """
    numbers = jnp.asarray(choice, jnp.int32)

    def with_chosen(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*inputs: Any, **named: Any) -> Any:
            with nn.intercept_methods(_add_chosen(numbers)):
                return function(*inputs, **named)

        return call

    return model._replace(apply=with_chosen(model.apply), extend=with_chosen(model.extend))


def _add_chosen(choice: Array) -> Callable[..., Any]:
    """Makes an interceptor that adds the chosen change to the output of linear layers with adapter factors."""

    def intercept(layer: Callable[..., Any], inputs: tuple, named: dict, context: nn.module.InterceptorContext) -> Any:
        output, dense = layer(*inputs, **named), context.module
        is_dense = isinstance(dense, nn.Dense) and context.method_name == "__call__"
        if not is_dense or not dense.has_variable("params", "lora_a"):
            return output
        factors: list[Array] = [dense.get_variable("params", name) for name in _FACTORS]
        a, b, owner = factors
        x = inputs[0].reshape(-1, inputs[0].shape[-1])
        rows = jnp.repeat(choice.reshape(-1), x.shape[0] // choice.size)
        inner = (x @ a.astype(x.dtype)) * (rows[:, None] == owner[None]).astype(x.dtype)
        return output + (inner @ b.astype(x.dtype)).reshape(output.shape).astype(output.dtype)

    return intercept
