"""A decoder-only transformer, for checkpoints of GPT-2, Llama, Qwen and Gemma and for small models of their kind."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from jaxagents.networks.attention import KeyValue, dense_mask, mask_bias, rotary_angles, rotary_frequencies
from jaxagents.networks.block_attention import NO_WINDOW, View
from jaxagents.networks.decoder_layers import ACTIVATIONS, DecoderLayer, Surroundings, make_norm, soft_cap
from jaxagents.networks.heads import ValueHead
from jaxagents.types import Array, CausalMask, PyTree

NORMS = ("rms", "offset_rms", "layer")
POLICIES = (
    *("nothing_saveable", "everything_saveable", "dots_saveable", "checkpoint_dots"),
    *("dots_with_no_batch_dims_saveable", "checkpoint_dots_with_no_batch_dims"),
)


@struct.dataclass
class PositionedCache:
    """Keys and values, with the positions of their tokens, which layers with a window need.

    Attributes:
        layers: cache of a decoder without windows.
        position: int32 `[B, W]`, positions of the tokens.
    """

    layers: PyTree
    position: Array


class Decoder(nn.Module):
    """A pre-norm decoder whose parameters correspond one to one to those of public checkpoints.

    Attributes:
        vocab_size: V, number of token ids.
        num_layers: number of layers, each with attention and an MLP.
        features: D, width of the residual stream.
        num_heads: number of query heads.
        hidden_features: width of the MLP; None: `4 features`.
        num_kv_heads: number of key-value heads, which divides `num_heads`; None: `num_heads`.
        head_features: features per head; None: `features / num_heads`.
        activation: activation of the MLP, a key of `ACTIVATIONS`.
        gated: whether the MLP is `down(activation(gate(x)) up(x))`, else `down(activation(up(x)))`.
        norm: "rms", "offset_rms" (a scale of 1 + its parameter; Gemma) or "layer" (GPT-2).
        norm_epsilon: number added to the variance.
        post_norms: whether the outputs of attention and MLP are normalised, too (Gemma).
        positions: "rotary" or "learned".
        max_positions: exclusive upper bound of positions, required if they are learned; None: no bound.
        rotary_base: base of the wavelengths, `theta` in the configs of checkpoints.
        rotary_frequencies: radians per position, half as many as rotated features; None: computed from the base.
        rotary_scale: factor of the rotated features (YaRN).
        local_rotary_frequencies: frequencies of layers with a window; None: as in the other layers.
        window: number of tokens that a layer with a window sees, including the current one; None: no windows.
        windowed_layers: whether each layer has the window; None: all, if there is a window.
        qkv_bias: whether queries, keys and values have a bias.
        output_bias: whether the output of attention has a bias.
        mlp_bias: whether the layers of the MLP have biases.
        fused_qkv: whether queries, keys and values are one projection (GPT-2), since small products do not use a
            CPU fully.
        qk_norm: whether the queries and keys of each head are normalised (Qwen3, Gemma 3).
        query_scale: factor of the scores; None: `1 / sqrt(head features)`.
        attention_cap: soft bound of the scores (Gemma 2); None: no bound.
        logit_cap: soft bound of the logits (Gemma 2); None: no bound.
        attention_block: number of queries whose scores are computed at once, and recomputed in the backward pass, when
            more tokens than that are read, in training and in prompts. No array then has one entry per pair of tokens,
            if `mask` is a `CausalMask`. None: all at once, which is faster for short sequences.
        scale_embedding: whether embeddings are multiplied by `sqrt(D)` (Gemma).
        tied_embeddings: whether the logits use the embedding, else a separate kernel.
        value_head: whether there is a linear value head.
        scan_layers: whether the layers are a scan over stacked parameters, which compiles as fast as one layer but
            runs more slowly on a CPU.
        remat: whether layers are recomputed in the backward pass, with the memory of one layer instead of all. The name
            of a policy of `jax.checkpoint_policies`, such as dots_with_no_batch_dims_saveable, selects what is stored.
        dtype: dtype of the computation; softmax, statistics of norms, logits and values are float32.
        param_dtype: dtype of the parameters.
    """

    vocab_size: int
    num_layers: int
    features: int
    num_heads: int
    hidden_features: int | None
    num_kv_heads: int | None = None
    head_features: int | None = None
    activation: str = "silu"
    gated: bool = True
    norm: str = "rms"
    norm_epsilon: float = 1e-6
    post_norms: bool = False
    positions: str = "rotary"
    max_positions: int | None = None
    rotary_base: float = 10_000.0
    rotary_frequencies: Sequence[float] | None = None
    rotary_scale: float = 1.0
    local_rotary_frequencies: Sequence[float] | None = None
    window: int | None = None
    windowed_layers: Sequence[bool] | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    fused_qkv: bool = False
    qk_norm: bool = False
    query_scale: float | None = None
    attention_cap: float | None = None
    logit_cap: float | None = None
    attention_block: int | None = None
    scale_embedding: bool = False
    tied_embeddings: bool = True
    value_head: bool = False
    scan_layers: bool = False
    remat: bool | str = False
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    def __post_init__(self):
        for name in ("rotary_frequencies", "local_rotary_frequencies", "windowed_layers"):
            if getattr(self, name) is not None:
                setattr(self, name, tuple(getattr(self, name)))
        _check(self)
        super().__post_init__()

    @property
    def num_key_heads(self) -> int:
        """Returns the number of key-value heads."""
        return self.num_kv_heads or self.num_heads

    @property
    def features_of_head(self) -> int:
        """Returns the number of features per head."""
        return self.head_features or self.features // self.num_heads

    @property
    def residual_scale(self) -> float:
        """Returns the initial scale of layer outputs, which keeps the variance near one at any depth (GPT-2)."""
        return 1.0 / math.sqrt(2.0 * self.num_layers)

    @property
    def windows(self) -> Sequence[bool]:
        """Returns whether each layer has a window."""
        if self.window is None:
            return (False,) * self.num_layers
        return self.windowed_layers or (True,) * self.num_layers

    def setup(self):
        """Makes the submodules; their names are the keys of the parameters."""
        normal = nn.initializers.normal(0.02)
        self.embedding = self.param("embedding", normal, (self.vocab_size, self.features), self.param_dtype)
        if self.positions == "learned":
            shape = (self.max_positions, self.features)
            self.position_embedding = self.param("position_embedding", normal, shape, self.param_dtype)
        config = self.clone(parent=None, name=None)
        policy = getattr(jax.checkpoint_policies, self.remat) if isinstance(self.remat, str) else None
        remat = partial(nn.remat, prevent_cse=not self.scan_layers, policy=policy)
        layer = remat(DecoderLayer) if self.remat else DecoderLayer
        if self.scan_layers:
            scanned = nn.scan(
                layer,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                in_axes=(0, nn.broadcast),
                length=self.num_layers,
            )
            self.layers = scanned(config, windowed=None)
        else:
            self.layers = [layer(config, windowed=windowed) for windowed in self.windows]
        self.final_norm = make_norm(self)
        if not self.tied_embeddings:
            self.head = self.param("head", normal, (self.features, self.vocab_size), self.param_dtype)
        if self.value_head:
            self.value_layer = ValueHead()

    def __call__(self, tokens: Array, positions: Array, mask: Array | CausalMask) -> Array:
        """Computes hidden states `[B, L, D]`; see `LanguageModel.apply`."""
        return self._run(tokens, positions, mask, positions, None, None)[1]

    def extend(
        self, cache: PyTree, tokens: Array, positions: Array, index: Array, mask: Array | CausalMask
    ) -> tuple[PyTree, Array]:
        """Computes `(cache, hidden [B, S, D])`; see `LanguageModel.extend`."""
        if self.window is None:
            return self._run(tokens, positions, mask, None, cache, index)
        new = positions.astype(jnp.int32)
        key_positions = jax.lax.dynamic_update_slice(cache.position, new, (0, index))
        layers, hidden = self._run(tokens, positions, mask, key_positions, cache.layers, index)
        return PositionedCache(layers=layers, position=key_positions), hidden

    def logits(self, hidden: Array) -> Array:
        """Computes logits float32 `[..., V]` of hidden states `[..., D]`."""
        kernel = self.embedding.T if self.tied_embeddings else self.head
        return soft_cap(make_logits(hidden.astype(self.dtype), kernel.astype(self.dtype)), self.logit_cap)

    def value(self, hidden: Array) -> Array:
        """Computes values float32 `[...]` of hidden states `[..., D]`."""
        return self.value_layer(hidden.astype(jnp.float32))

    def everything(self, tokens: Array, positions: Array, mask: Array) -> PyTree:
        """Computes outputs that depend on every parameter, for initialisation."""
        hidden = self(tokens, positions, mask)
        return self.logits(hidden), self.value(hidden) if self.value_head else None

    def init_cache(self, batch_size: int, length: int) -> PyTree:
        """Makes an empty cache: one `KeyValue` per layer, or one with stacked layers if they are scanned."""
        shape = (batch_size, self.num_key_heads, length, self.features_of_head)

        def empty(shape: tuple[int, ...]) -> KeyValue:
            return KeyValue(key=jnp.zeros(shape, self.dtype), value=jnp.zeros(shape, self.dtype))

        if self.scan_layers:
            layers: PyTree = empty((self.num_layers, *shape))
        else:
            layers = tuple(empty(shape) for _ in range(self.num_layers))
        if self.window is None:
            return layers
        return PositionedCache(layers=layers, position=jnp.zeros((batch_size, length), jnp.int32))

    def _run(
        self,
        tokens: Array,
        positions: Array,
        mask: Array | CausalMask,
        key_positions: Array | None,
        cache: PyTree,
        index: Array | None,
    ) -> tuple[PyTree, Array]:
        x = self.embedding.astype(self.dtype)[tokens]
        if self.scale_embedding:
            x = x * jnp.asarray(math.sqrt(self.features), self.dtype)
        if self.positions == "learned":
            x = x + self.position_embedding.astype(self.dtype)[positions]
        bias = self._bias(positions, mask, key_positions, index)
        causal = isinstance(mask, CausalMask)
        surroundings = Surroundings(angles=self._angles(positions), bias=bias, index=index, causal=causal)
        shape = x.shape
        x = x.reshape(-1, self.features)
        if self.scan_layers:
            # The cache is carried, not scanned over, so that it is updated in place.
            places = (jnp.arange(self.num_layers), jnp.asarray(self.windows))
            (x, cache), _ = self.layers((x, cache), places, surroundings)
        else:
            caches = [None] * self.num_layers if cache is None else list(cache)
            for number, layer in enumerate(self.layers):
                (x, caches[number]), _ = layer((x, caches[number]), None, surroundings)
            cache = None if cache is None else tuple(caches)
        return cache, self.final_norm(x).reshape(shape)

    def _angles(self, positions: Array) -> tuple:
        if self.positions == "learned":
            return (None,)
        full = self.rotary_frequencies or rotary_frequencies(self.features_of_head, self.rotary_base)

        def angles(frequencies: Sequence[float], scale: float) -> tuple[Array, Array]:
            return jax.tree.map(lambda angle: angle * scale, rotary_angles(positions, frequencies))

        if self.local_rotary_frequencies is None:
            return (angles(full, self.rotary_scale),)
        return angles(full, self.rotary_scale), angles(self.local_rotary_frequencies, 1.0)

    def _bias(
        self, positions: Array, mask: Array | CausalMask, key_positions: Array | None, index: Array | None
    ) -> tuple[Array | View, ...]:
        """Returns the bias, and with windows a second one for layers that have one."""
        size, index = positions.shape[1], jnp.int32(0) if index is None else index
        if self.attention_block is not None and size > self.attention_block:
            keys = mask.present if isinstance(mask, CausalMask) else mask[:, 0]
            keys = jnp.zeros_like(keys, jnp.int32) if key_positions is None else key_positions.astype(jnp.int32)
            queries, no_window = positions.astype(jnp.int32), jnp.int32(NO_WINDOW)
            view = View(seen=mask, position=queries, key_position=keys, index=index, window=no_window)
            return (view,) if self.window is None else (view, view.replace(window=jnp.int32(self.window)))
        bits = dense_mask(mask, index=index, size=size)
        if self.window is None:
            return (mask_bias(bits),)
        near = positions[:, :, None] - key_positions[:, None, :] < self.window
        return (mask_bias(bits), mask_bias(bits & near))


def _check(config: Decoder) -> None:
    """Refuses settings that are inconsistent."""
    heads, kv_heads = config.num_heads, config.num_key_heads
    if heads % kv_heads:
        raise ValueError(f"`num_kv_heads` must divide `num_heads`, got {kv_heads} and {heads}; try 1.")
    if config.head_features is None and config.features % heads:
        raise ValueError(
            f"`features` must be divisible by `num_heads`, got {config.features} and {heads}; try `head_features`."
        )
    choices = {"activation": tuple(ACTIVATIONS), "norm": NORMS, "positions": ("rotary", "learned")}
    for name, allowed in choices.items():
        if getattr(config, name) not in allowed:
            raise ValueError(f"`{name}` must be one of {', '.join(allowed)}, got {getattr(config, name)!r}.")
    if isinstance(config.remat, str) and config.remat not in POLICIES:
        raise ValueError(
            f"`remat` must be true, false or a policy of `jax.checkpoint_policies`, got {config.remat!r}; there are "
            f"{', '.join(POLICIES)}."
        )
    if config.attention_block is not None and config.attention_block < 1:
        raise ValueError(f"`attention_block` must be at least 1 or null, got {config.attention_block}; try 256.")
    if config.window is not None and config.window < 1:
        raise ValueError(f"`window` must be at least 1, got {config.window}; try null for none.")
    if config.windowed_layers is not None and len(config.windowed_layers) != config.num_layers:
        raise ValueError(
            f"`windowed_layers` must say it of each of the {config.num_layers} layers, got "
            f"{len(config.windowed_layers)}."
        )
    if config.positions == "learned":
        if config.max_positions is None:
            raise ValueError('`max_positions` must be given with learned positions, got None; try 512, or "rotary".')
        return
    features = config.features_of_head
    rotated = 2 * len(config.rotary_frequencies) if config.rotary_frequencies else features
    if rotated % 2 or rotated > features:
        raise ValueError(
            f"Rotary positions must turn an even number of features of a head, got {rotated} of {features}; try other "
            "`rotary_frequencies` or `head_features`."
        )


def make_logits(hidden: Array, kernel: Array) -> Array:
    """Computes `hidden kernel`, accumulated and returned in float32 for any input dtype.

    If the hidden states have half precision, so do the inputs of the products in the backward pass: the gradient of the
    logits is rounded, and sums are float32. By default these products would take a float32 input, which is at least
    twice as slow on accelerators.

    Args:
        hidden: `[..., D]`.
        kernel: `[D, V]`, of the same dtype.

    Returns:
        float32 `[..., V]`.

    References:
        Micikevicius et al. (2018), "Mixed Precision Training", section 3.
    """
    if hidden.dtype == jnp.float32:
        return jnp.dot(hidden, kernel, preferred_element_type=jnp.float32)
    return _half(hidden, kernel)


@jax.custom_vjp
def _half(hidden: Array, kernel: Array) -> Array:
    return jnp.dot(hidden, kernel, preferred_element_type=jnp.float32)


def _forward(hidden: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _half(hidden, kernel), (hidden, kernel)


def _backward(inputs: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    hidden, kernel = inputs
    gradient = gradient.astype(hidden.dtype)
    of_hidden = jnp.einsum("...v,dv->...d", gradient, kernel)
    of_kernel = jnp.einsum("...d,...v->dv", hidden, gradient)
    return of_hidden, of_kernel


_half.defvjp(_forward, _backward)
