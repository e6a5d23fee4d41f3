"""Layers of the decoders of public checkpoints; a setting that a model family does not use costs nothing."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from jaxagents.networks.attention import KeyValue, attend, rotate
from jaxagents.networks.block_attention import View, attend_in_blocks
from jaxagents.types import Array, PyTree


class RMSNorm(nn.Module):
    """Computes `x / sqrt(mean(x^2) + epsilon) * scale` over the last axis, with statistics in float32.

    Attributes:
        epsilon: number added to the mean square.
        dtype: dtype of the output.
        param_dtype: dtype of the scale, which is one at the start.

    References:
        Zhang and Sennrich (2019), "Root Mean Square Layer Normalization", equation 4.
    """

    epsilon: float = 1e-6
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Normalises `[..., D]`."""
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:], self.param_dtype)
        x = x.astype(jnp.float32)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.epsilon)
        return x.astype(self.dtype) * scale.astype(self.dtype).reshape((1,) * (x.ndim - 1) + (-1,))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu_squared": lambda x: jnp.square(jax.nn.relu(x)),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_new": jax.nn.gelu,
}

Angles = tuple[Array, Array] | None


@struct.dataclass
class Surroundings:
    """Inputs that the layers of one call share; a second entry is for layers with a window.

    Attributes:
        angles: see `rotary_angles`; None with learned positions.
        bias: see `mask_bias`; a `View` if attention is computed in blocks.
        index: int32 `[]`, index in the cache at which to write; None without a cache.
        causal: whether the bias masks all later tokens, as a `CausalMask` does; static.
    """

    angles: tuple[Angles, ...]
    bias: tuple[Array | View, ...]
    index: Array | None = None
    causal: bool = struct.field(pytree_node=False, default=False)


class OffsetRMSNorm(nn.Module):
    """Computes `x / sqrt(mean(x^2) + epsilon) * (1 + scale)` in float32, as in Gemma.

    Attributes:
        epsilon: number added to the mean square.
        dtype: dtype of the output.
        param_dtype: dtype of the scale, which is zero at the start.

    References:
        Gemma Team (2024), "Gemma 2: Improving Open Language Models at a Practical Size", section 2.
    """

    epsilon: float = 1e-6
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Normalises `[..., D]`."""
        scale = self.param("scale", nn.initializers.zeros, x.shape[-1:], self.param_dtype)
        x = x.astype(jnp.float32)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.epsilon)
        return (x * (1.0 + scale.astype(jnp.float32)).reshape((1,) * (x.ndim - 1) + (-1,))).astype(self.dtype)


def make_norm(config: Any, name: str | None = None) -> nn.Module:
    """Makes the normalisation layer that a `Decoder` names."""
    kinds = {"rms": RMSNorm, "offset_rms": OffsetRMSNorm, "layer": nn.LayerNorm}
    return kinds[config.norm](config.norm_epsilon, dtype=config.dtype, param_dtype=config.param_dtype, name=name)


def soft_cap(x: Array, cap: float | None) -> Array:
    """Computes `cap tanh(x / cap)`; without a cap, returns x."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def attend_capped(query: Array, key: Array, value: Array, bias: Array, *, cap: float) -> Array:
    """Computes `softmax(cap tanh(q k / (cap sqrt(F))) + bias) v`; for the arguments see `attend`."""
    batch, length, heads, features = query.shape
    key_heads = key.shape[1]
    query = (query / math.sqrt(features)).reshape(batch, length, key_heads, heads // key_heads, features)
    scores = jnp.einsum("bqkgf,bkwf->bkgqw", query, key, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(soft_cap(scores, cap) + bias[:, None, None], axis=-1).astype(value.dtype)
    return jnp.einsum("bkgqw,bkwf->bqkgf", weights, value).reshape(query.shape[:2] + (heads, features))


class GroupedAttention(nn.Module):
    """Self-attention with grouped heads and a cache of keys and values; `config` is the `Decoder`."""

    config: Any

    @nn.compact
    def __call__(
        self,
        x: Array,
        angles: Angles,
        bias: Array | View,
        cache: KeyValue | None,
        index: Array | None,
        layer: Array | None,
        causal: bool,
    ) -> tuple[Array, KeyValue | None]:
        """Computes `(output [B * S, D], cache)`.

        Args:
            x: `[B * S, D]`; with a batch axis, XLA:CPU transposes the operands of every weight's gradient.
            angles: see `rotary_angles`; None: no rotation.
            bias: float32 `[B, S, W]`, W = S without a cache; a `View` if attention is computed in blocks.
            cache: cache to write the S keys and values to, and attend to as a whole; None: attends to the S only.
            index: int32 `[]`, index in the cache of the first of the S.
            layer: int32 `[]`, index of the layer in a cache with stacked layers; None: the cache is of one layer.
            causal: see `attend`.
        """
        config = self.config
        features = config.features_of_head
        shape = bias.position.shape if isinstance(bias, View) else bias.shape[:2]
        query, key, value = self._heads(x, shape)
        if config.qk_norm:
            query, key = make_norm(config, "query_norm")(query), make_norm(config, "key_norm")(key)
        if angles is not None:
            query, key = rotate(query, angles), rotate(key, angles)
        if config.query_scale is not None:
            query = query * (config.query_scale * math.sqrt(features))
        key, value = key.transpose(0, 2, 1, 3), value.transpose(0, 2, 1, 3)
        if cache is not None:
            cache, (key, value) = _extend(cache, KeyValue(key=key, value=value), index, layer)
        if isinstance(bias, View):
            options = {"block": config.attention_block, "cap": config.attention_cap}
            output = attend_in_blocks(query, key, value, bias, **options)
        elif config.attention_cap is None:
            output = attend(query, key, value, bias, causal=causal)
        else:
            output = attend_capped(query, key, value, bias, cap=config.attention_cap)
        output = output.reshape(x.shape[0], config.num_heads * features)
        return project(config, config.features, "output", config.output_bias, config.residual_scale)(output), cache

    def _heads(self, x: Array, shape: tuple[int, ...]) -> tuple[Array, ...]:
        """Returns queries `[B, S, H, F]`, keys and values `[B, S, K, F]`."""
        config = self.config
        counts = {"query": config.num_heads, "key": config.num_key_heads, "value": config.num_key_heads}

        def heads(name: str, count: int) -> Array:
            width = count * config.features_of_head
            return project(config, width, name, config.qkv_bias)(x).reshape(*shape, count, config.features_of_head)

        if not config.fused_qkv:
            return tuple(heads(name, count) for name, count in counts.items())
        together = heads("qkv", sum(counts.values()))
        return tuple(jnp.split(together, [config.num_heads, config.num_heads + config.num_key_heads], axis=2))


class DecoderLayer(nn.Module):
    """One layer: `x + attention(norm(x))`, then `x + mlp(norm(x))`, with norms of the outputs if configured.

    Attributes:
        config: `Decoder` that it is part of.
        windowed: whether it has a window; None: every call specifies it.
    """

    config: Any
    windowed: bool | None = False

    @nn.compact
    def __call__(
        self, carry: tuple[Array, KeyValue | None], place: tuple[Array, Array] | None, surroundings: Surroundings
    ) -> tuple[tuple[Array, KeyValue | None], None]:
        """Computes the carry `(x [B * S, D], cache)`.

        Args:
            carry: the output of the previous layer.
            place: int32 `[]` index of the layer and bool `[]` whether it has a window; None: layers are not scanned.
            surroundings: inputs that all layers share.
        """
        (x, cache), config = carry, self.config
        layer, windowed = (None, self.windowed) if place is None else place
        angles, bias = (_choose(values, windowed) for values in (surroundings.angles, surroundings.bias))
        attention = GroupedAttention(config, name="attention")
        normed, (index, causal) = make_norm(config, "attention_norm")(x), (surroundings.index, surroundings.causal)
        output, cache = attention(normed, angles, bias, cache, index, layer, causal)
        x = x + self._after("attention_post_norm", output)
        x = x + self._after("mlp_post_norm", self._mlp(make_norm(config, "mlp_norm")(x)))
        return (x, cache), None

    def _after(self, name: str, output: Array) -> Array:
        return make_norm(self.config, name)(output) if self.config.post_norms else output

    def _mlp(self, x: Array) -> Array:
        config = self.config
        activation, bias = ACTIVATIONS[config.activation], config.mlp_bias
        width = config.hidden_features or 4 * config.features
        hidden = project(config, width, "up", bias)(x)
        gate = project(config, width, "gate", bias)(x) if config.gated else None
        hidden = activation(hidden) if gate is None else activation(gate) * hidden
        return project(config, config.features, "down", bias, config.residual_scale)(hidden)


def project(config: Any, features: int, name: str, bias: bool, scale: float = 1.0) -> nn.Dense:
    """Makes a linear layer whose initial kernel has standard deviation `scale / sqrt(inputs)`."""
    init = nn.initializers.variance_scaling(scale**2, "fan_in", "normal")
    types = {"dtype": config.dtype, "param_dtype": config.param_dtype}
    return nn.Dense(features, bias, kernel_init=init, name=name, **types)


def _choose(values: tuple[PyTree, ...], windowed: Array | bool) -> PyTree:
    """Selects the second entry, if there is one, for layers with a window."""
    if len(values) == 1:
        return values[0]
    if isinstance(windowed, bool):
        return values[int(windowed)]
    return jax.tree.map(lambda full, local: jnp.where(windowed, local, full), *values)


def _extend(
    cache: KeyValue, new: KeyValue, index: Array | None, layer: Array | None
) -> tuple[KeyValue, tuple[Array, Array]]:
    """Writes keys and values `[B, K, S, F]` to a cache at `index`, and also returns all W of them, `[B, K, W, F]`.

    For stacked layers `[N, B, K, W, F]`, the entries for the stack are read back from the updated layer: if they did
    not depend on the layer's old entries, XLA:CPU would copy the whole stack twice for every layer.
    """
    if layer is None:
        cache = jax.tree.map(lambda entries, added: _write(entries, added, (0, 0, index, 0)), cache, new)
        return cache, (cache.key, cache.value)
    new = jax.tree.map(lambda added: added[None], new)
    own = jax.tree.map(lambda entries: jax.lax.dynamic_slice_in_dim(entries, layer, 1), cache)
    own = jax.tree.map(lambda entries, added: _write(entries, added, (0, 0, 0, index, 0)), own, new)
    read = jax.tree.map(
        lambda entries, added: jax.lax.dynamic_slice(entries, (0, 0, 0, index, 0), added.shape), own, new
    )
    cache = jax.tree.map(lambda entries, added: _write(entries, added, (layer, 0, 0, index, 0)), cache, read)
    return cache, (own.key[0], own.value[0])


def _write(entries: Array, new: Array, start: tuple[Array | int, ...]) -> Array:
    return jax.lax.dynamic_update_slice(entries, new.astype(entries.dtype), start)
