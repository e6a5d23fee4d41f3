"""A decoder-only transformer, from a few thousand parameters on a CPU to the checkpoints of GPT-2, Llama and Qwen."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from jaxagents.networks.attention import Attention, KeyValue, mask_bias, rotary_angles, rotary_frequencies
from jaxagents.networks.heads import ValueHead
from jaxagents.networks.logits import make_logits
from jaxagents.networks.normalization import RMSNorm
from jaxagents.networks.sight import as_mask
from jaxagents.types import Array, PyTree, Sight

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu_squared": lambda x: jnp.square(jax.nn.relu(x)),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_new": jax.nn.gelu,
}


@struct.dataclass
class Context:
    """What every layer of one call needs and none changes.

    Attributes:
        angles: see `rotary_angles`; None with learned positions.
        bias: see `mask_bias`.
        index: int32 `[]`, where in the cache to write; None without a cache.
        causal: whether what is seen leaves out all that comes later, as a `Sight` does; static.
    """

    angles: tuple[Array, Array] | None
    bias: Array
    index: Array | None = None
    causal: bool = struct.field(pytree_node=False, default=False)


class Block(nn.Module):
    """One layer: `x + attention(norm(x))`, then `x + mlp(norm(x))`. `config` is the transformer it is part of."""

    config: "Transformer"

    @nn.compact
    def __call__(
        self, carry: tuple[Array, KeyValue | None], layer: Array | None, context: Context
    ) -> tuple[tuple[Array, KeyValue | None], None]:
        """Computes the carry `(x [B * S, D], cache)`; see `Attention`."""
        x, cache = carry
        config = self.config
        types = {"dtype": config.dtype, "param_dtype": config.param_dtype}
        # Each layer adds to the stream twice; this keeps its variance near one at any depth (GPT-2).
        residual_scale = 1.0 / math.sqrt(2.0 * config.num_layers)
        attention = Attention(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads or config.num_heads,
            head_features=_head_features(config),
            qkv_bias=config.qkv_bias,
            output_bias=config.output_bias,
            qk_norm=config.qk_norm,
            norm_epsilon=config.norm_epsilon,
            output_scale=residual_scale,
            name="attention",
            **types,
        )
        normed = _norm(config, "attention_norm")(x)
        output, cache = attention(
            normed, context.angles, context.bias, cache, context.index, layer, causal=context.causal
        )
        x = x + output
        return (x + self._mlp(_norm(config, "mlp_norm")(x), residual_scale, types), cache), None

    def _mlp(self, x: Array, residual_scale: float, types: dict[str, Any]) -> Array:
        config = self.config
        hidden_features = config.hidden_features or 4 * config.features
        activation = ACTIVATIONS[config.activation]
        up = nn.Dense(
            hidden_features * (2 if config.gated else 1),
            config.mlp_bias,
            kernel_init=nn.initializers.variance_scaling(1.0, "fan_in", "normal"),
            name="up",
            **types,
        )(x)
        if config.gated:
            gate, up = jnp.split(up, 2, axis=-1)
            hidden = activation(gate) * up
        else:
            hidden = activation(up)
        down_init = nn.initializers.variance_scaling(residual_scale**2, "fan_in", "normal")
        return nn.Dense(config.features, config.mlp_bias, kernel_init=down_init, name="down", **types)(hidden)


class Transformer(nn.Module):
    """A pre-norm decoder. The defaults are quick on a CPU: squared ReLU needs no exponential (So et al., 2021).

    Attributes:
        vocab_size: V.
        num_layers: of attention and MLP.
        features: D, of the residual stream.
        num_heads: of queries.
        num_kv_heads: of keys and values, divides `num_heads`; None: as many.
        head_features: of one head; None: `features / num_heads`.
        hidden_features: of the MLP; None: `4 features`.
        activation: of the MLP, a key of `ACTIVATIONS`.
        gated: whether the MLP is `down(activation(gate(x)) up(x))`, else `down(activation(up(x)))`.
        norm: "rms" or "layer".
        norm_epsilon: added to the variance.
        positions: "rotary" or "learned".
        max_positions: positions must be below it; needed when they are learned, else None for any.
        rotary_base: of the wavelengths, the theta of the configs of checkpoints.
        rotary_fraction: of the features of a head that are rotated.
        rotary_frequencies: radians per position, half as many as rotated features; None: from the two above.
        qkv_bias: whether queries, keys and values have a bias (Qwen2, GPT-2).
        output_bias: whether the output of attention has one (GPT-2).
        mlp_bias: whether both layers of the MLP have one (GPT-2).
        qk_norm: whether the queries and keys of each head are RMS-normalised (Qwen3).
        tied_embeddings: whether logits use the embedding, else a kernel of their own.
        value_head: whether there is a linear head for values.
        scan_layers: whether layers are one scan over stacked parameters: compiles in the time of one, runs slower on a
            CPU.
        remat: whether layers are computed again in the backward pass: memory of one layer instead of all.
        dtype: of the computation; softmax, statistics of norms, logits and values are float32.
        param_dtype: of the parameters.
    """

    vocab_size: int
    num_layers: int = 2
    features: int = 64
    num_heads: int = 4
    num_kv_heads: int | None = None
    head_features: int | None = None
    hidden_features: int | None = None
    activation: str = "relu_squared"
    gated: bool = False
    norm: str = "rms"
    norm_epsilon: float = 1e-6
    positions: str = "rotary"
    max_positions: int | None = None
    rotary_base: float = 10_000.0
    rotary_fraction: float = 1.0
    rotary_frequencies: Sequence[float] | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = True
    value_head: bool = False
    scan_layers: bool = False
    remat: bool = False
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    def __post_init__(self):
        if self.rotary_frequencies is not None:
            self.rotary_frequencies = tuple(self.rotary_frequencies)
        _check(self)
        super().__post_init__()

    def setup(self):
        """Makes the submodules; their names are the keys of the parameters."""
        normal = nn.initializers.normal(0.02)
        self.embedding = self.param("embedding", normal, (self.vocab_size, self.features), self.param_dtype)
        if self.positions == "learned":
            shape = (self.max_positions, self.features)
            self.position_embedding = self.param("position_embedding", normal, shape, self.param_dtype)
        config = self.clone(parent=None, name=None)
        block = nn.remat(Block, prevent_cse=not self.scan_layers) if self.remat else Block
        if self.scan_layers:
            self.layers = _scanned(block, self.num_layers)(config)
        else:
            self.layers = [block(config) for _ in range(self.num_layers)]
        self.final_norm = _norm(self)
        if not self.tied_embeddings:
            shape = (self.features, self.vocab_size)
            self.head = self.param("head", normal, shape, self.param_dtype)
        if self.value_head:
            self.value_layer = ValueHead()

    def __call__(self, tokens: Array, positions: Array, mask: Array | Sight) -> Array:
        """Computes hidden states `[B, L, D]`; see `LanguageModel.apply`."""
        return self._layers(self._embed(tokens, positions), None, positions, mask, None)[1]

    def extend(
        self, cache: PyTree, tokens: Array, positions: Array, index: Array, mask: Array | Sight
    ) -> tuple[PyTree, Array]:
        """Computes `(cache, hidden [B, S, D])`; see `LanguageModel.extend`."""
        return self._layers(self._embed(tokens, positions), cache, positions, mask, index)

    def logits(self, hidden: Array) -> Array:
        """Computes logits float32 `[..., V]` of hidden states `[..., D]`."""
        kernel = self.embedding.T if self.tied_embeddings else self.head
        return make_logits(hidden.astype(self.dtype), kernel.astype(self.dtype))

    def value(self, hidden: Array) -> Array:
        """Computes values float32 `[...]` of hidden states `[..., D]`."""
        return self.value_layer(hidden.astype(jnp.float32))

    def everything(self, tokens: Array, positions: Array, mask: Array) -> PyTree:
        """Computes what touches every parameter, to initialise them."""
        hidden = self(tokens, positions, mask)
        return self.logits(hidden), self.value(hidden) if self.value_head else None

    def init_cache(self, batch_size: int, length: int) -> PyTree:
        """Makes an empty cache; one `KeyValue` per layer, or one with stacked layers when scanned."""
        shape = (batch_size, self.num_kv_heads or self.num_heads, length, _head_features(self))

        def empty(shape: tuple[int, ...]) -> KeyValue:
            return KeyValue(key=jnp.zeros(shape, self.dtype), value=jnp.zeros(shape, self.dtype))

        if self.scan_layers:
            return empty((self.num_layers, *shape))
        return tuple(empty(shape) for _ in range(self.num_layers))

    def _embed(self, tokens: Array, positions: Array) -> Array:
        x = self.embedding.astype(self.dtype)[tokens]
        if self.positions == "learned":
            x = x + self.position_embedding.astype(self.dtype)[positions]
        return x

    def _layers(
        self, x: Array, cache: PyTree, positions: Array, mask: Array | Sight, index: Array | None
    ) -> tuple[PyTree, Array]:
        bits = as_mask(mask, index=0 if index is None else index, size=x.shape[1])
        causal = isinstance(mask, Sight)
        context = Context(angles=self._angles(positions), bias=mask_bias(bits), index=index, causal=causal)
        shape = x.shape
        x = x.reshape(-1, self.features)
        if self.scan_layers:
            # The cache is carried, not scanned over: it is then written in place.
            (x, cache), _ = self.layers((x, cache), jnp.arange(self.num_layers), context)
        else:
            caches = [None] * self.num_layers if cache is None else list(cache)
            for layer, block in enumerate(self.layers):
                (x, caches[layer]), _ = block((x, caches[layer]), None, context)
            cache = None if cache is None else tuple(caches)
        return cache, self.final_norm(x).reshape(shape)

    def _angles(self, positions: Array) -> tuple[Array, Array] | None:
        if self.positions == "learned":
            return None
        frequencies = self.rotary_frequencies
        if frequencies is None:
            frequencies = rotary_frequencies(_rotated_features(self), self.rotary_base)
        return rotary_angles(positions, frequencies)


def _scanned(block: type[nn.Module], num_layers: int) -> Callable[..., nn.Module]:
    """Returns a block whose parameters and caches have a leading axis of layers."""
    return nn.scan(
        block,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        in_axes=(0, nn.broadcast),
        length=num_layers,
    )


def _norm(config: Transformer, name: str | None = None) -> nn.Module:
    types = {"dtype": config.dtype, "param_dtype": config.param_dtype, "name": name}
    if config.norm == "rms":
        return RMSNorm(config.norm_epsilon, **types)
    return nn.LayerNorm(config.norm_epsilon, **types)


def _check(config: Transformer) -> None:
    """Refuses settings that do not fit together."""
    heads, kv_heads = config.num_heads, config.num_kv_heads or config.num_heads
    if heads % kv_heads:
        raise ValueError(f"`num_kv_heads` must divide `num_heads`, got {kv_heads} and {heads}; try 1.")
    if config.head_features is None and config.features % heads:
        raise ValueError(
            f"`features` must be divisible by `num_heads`, got {config.features} and {heads}; try `head_features`."
        )
    choices = {"activation": tuple(ACTIVATIONS), "norm": ("rms", "layer"), "positions": ("rotary", "learned")}
    for name, allowed in choices.items():
        if getattr(config, name) not in allowed:
            raise ValueError(f"`{name}` must be one of {', '.join(allowed)}, got {getattr(config, name)!r}.")
    if config.positions == "learned":
        if config.max_positions is None:
            raise ValueError('`max_positions` must be given with learned positions, got None; try 512, or "rotary".')
        return
    rotated = 2 * len(config.rotary_frequencies) if config.rotary_frequencies else _rotated_features(config)
    if rotated % 2 or not 0 < rotated <= _head_features(config):
        raise ValueError(
            f"Rotary positions must turn an even number of features of a head, got {rotated} of "
            f"{_head_features(config)}; try another `rotary_fraction` or `head_features`."
        )


def _head_features(config: Transformer) -> int:
    return config.head_features or config.features // config.num_heads


def _rotated_features(config: Transformer) -> int:
    return int(config.rotary_fraction * _head_features(config))
