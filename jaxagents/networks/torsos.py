"""Torsos: from observations to features, for any number of leading axes; with a memory, over time."""

import difflib
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxagents.networks.convolution import Convolution
from jaxagents.networks.initializers import orthogonal
from jaxagents.types import Array, Carry, Params, PyTree


def as_rows(values: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Joins the axes before the last one if the first of them has size one, like the time axis in feed-forward use.

    Other arrays stay as they are: joining a time axis with the axis of environments, which may be sharded over devices,
    would move data between devices.

    Args:
        values: `[1, B, ..., D]`, or any other shape.

    Returns:
        `values` as `[B * ..., D]`, and a function that reshapes results `[B * ..., F]` to `[1, B, ..., F]`.
    """
    if values.ndim < 3 or values.shape[0] != 1:
        return values, lambda results: results
    leading = values.shape[:-1]
    return values.reshape(-1, values.shape[-1]), lambda results: results.reshape(*leading, *results.shape[1:])


# The element-wise functions of flax.linen; others there (softmax, glu, ...) act along an axis.
_ACTIVATIONS = (
    *("celu", "elu", "gelu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "leaky_relu", "log_sigmoid"),
    *("relu", "relu6", "selu", "sigmoid", "silu", "soft_sign", "softplus", "swish", "tanh"),
)


def activation_function(name: str) -> Callable[[Array], Array]:
    """Returns the element-wise activation function that flax.linen calls `name`.

    Raises:
        ValueError: there is no such function.
    """
    if name in _ACTIVATIONS:
        return getattr(nn, name)
    near = difflib.get_close_matches(str(name), _ACTIVATIONS, n=1)
    way_out = near[0] if near else ", ".join(_ACTIVATIONS)
    raise ValueError(f"`activation` must be an element-wise function of flax.linen, got {name!r}; try {way_out}.")


_DTYPES = (None, "float32", "bfloat16")


def _require_dtype(dtype: str | None) -> None:
    if dtype not in _DTYPES:
        raise ValueError(f"`dtype` must be null, float32 or bfloat16, got {dtype!r}.")


class MLP(nn.Module):
    """Flattens each observation and applies dense layers, orthogonal with gain sqrt(2).

    Attributes:
        hidden_sizes: width of each layer; empty: only flattens and casts.
        activation: name of an element-wise function of flax.linen, applied after every layer.
        layer_norm: whether to normalise before every activation.
        observation_ndim: number of trailing axes of one observation.
        output_size: width of a final linear layer, whose features are unbounded; None: no such layer.
        dtype: dtype of the layers' products and activations, such as bfloat16; parameters, norms and features stay
            float32. None: float32.
    """

    hidden_sizes: Sequence[int] = (64, 64)
    activation: str = "tanh"
    layer_norm: bool = False
    observation_ndim: int = 1
    output_size: int | None = None
    dtype: str | None = None

    def __post_init__(self):
        self.hidden_sizes = tuple(self.hidden_sizes)
        _require_dtype(self.dtype)
        activation_function(self.activation)
        if self.observation_ndim < 0:
            raise ValueError(f"`observation_ndim` must be at least 0, got {self.observation_ndim}.")
        super().__post_init__()

    @nn.compact
    def __call__(self, observation: Array) -> Array:
        """Computes features `[..., F]` of observations `[..., *observation_shape]` of any dtype, F the last width."""
        x, restore = as_rows(_flatten(observation, self.observation_ndim))
        for size in self.hidden_sizes:
            x = nn.Dense(size, kernel_init=orthogonal(math.sqrt(2.0)), dtype=self.dtype)(x)
            x = nn.LayerNorm()(x) if self.layer_norm else x
            x = activation_function(self.activation)(x)
        if self.output_size is not None:
            x = nn.Dense(self.output_size, kernel_init=orthogonal(1.0), dtype=self.dtype)(x)
        return restore(x if self.dtype is None else x.astype(jnp.float32))


class CNN(nn.Module):
    """Convolutions without padding over `[..., height, width, channels]`, then dense layers.

    The defaults are those of the network of MinAtar (Young and Tian, 2019).

    Attributes:
        channels: output channels of each convolution.
        kernel_size: side of the square kernels in pixels, one for all layers or one for each.
        strides: step of the kernels in pixels, one for all layers or one for each.
        hidden_sizes: width of each dense layer after the convolutions.
        activation: name of an element-wise function of flax.linen, applied after every layer.
        layer_norm: whether to normalise before every activation of the dense layers.
        dtype: see `MLP`.
    """

    channels: Sequence[int] = (16,)
    kernel_size: int | Sequence[int] = 3
    strides: int | Sequence[int] = 1
    hidden_sizes: Sequence[int] = (128,)
    activation: str = "relu"
    layer_norm: bool = False
    dtype: str | None = None

    def __post_init__(self):
        self.channels = tuple(self.channels)
        self.kernel_size = _per_layer("kernel_size", self.kernel_size, len(self.channels))
        self.strides = _per_layer("strides", self.strides, len(self.channels))
        _require_dtype(self.dtype)
        self.hidden_sizes = tuple(self.hidden_sizes)
        activation_function(self.activation)
        super().__post_init__()

    @nn.compact
    def __call__(self, observation: Array) -> Array:
        """Computes features `[..., hidden_sizes[-1]]` of images `[..., height, width, channels]` of any dtype.

        Raises:
            ValueError: a kernel is larger than the input of its layer.
        """
        x = _floating(observation)
        layers = zip(self.channels, self.kernel_size, self.strides, strict=True)  # type: ignore[arg-type]
        for index, (channels, kernel_size, strides) in enumerate(layers):
            if min(x.shape[-3:-1], default=0) < kernel_size:
                raise ValueError(
                    f"`observation` must be [..., height, width, channels] with sides of at least the kernel's, got "
                    f"{observation.shape}, of which {x.shape} reaches a kernel of {kernel_size}; try a smaller kernel."
                )
            x = Convolution(channels, kernel_size, strides, self.dtype, name=f"Conv_{index}")(x)
            x = activation_function(self.activation)(x)
        return MLP(self.hidden_sizes, self.activation, self.layer_norm, observation_ndim=3, dtype=self.dtype)(x)


class Torso(NamedTuple):
    """An encoder and a memory.

    Attributes:
        init: `(key) -> (params, features [1, 1, F] of an observation of zeros)`.
        initial_carry: `(batch_shape) -> carry`; an empty tuple without a memory.
        apply: `(params, carry, observation [T, B, ...], first [T, B], beside=None) -> (carry, features
            [T, B, ..., F])`; `beside` is `[T, B, ..., S]`, inputs of the memory besides the encoded observation.
    """

    init: Callable[[Array], tuple[Params, Array]]
    initial_carry: Callable[[tuple[int, ...]], Carry]
    apply: Callable[..., tuple[Carry, Array]]


def make_torso(
    observation_space: PyTree, encoder: nn.Module, memory: nn.Module | None = None, beside_size: int = 0
) -> Torso:
    """Makes the part that policies and values share: an encoder, optionally followed by a memory.

    Args:
        observation_space: observation space of one agent; there may be any batch, time and agent axes.
        encoder: `module(observation [..., *shape]) -> features [..., F]`.
        memory: recurrent module of `networks.recurrent`; None for a feed-forward torso.
        beside_size: S, size of the memory's inputs besides the encoded observation; 0: none.

    Returns:
        The torso; its parameters are `{"encoder", "memory"}`, the latter if there is a memory.
    """

    def join(features: Array, beside: Array | None) -> Array:
        return jnp.concatenate([features, beside], axis=-1) if beside_size and beside is not None else features

    def init(key: Array) -> tuple[Params, Array]:
        encoder_key, memory_key = jax.random.split(key)
        observation = jax.tree.map(lambda space: jnp.zeros((1, 1, *space.shape), space.dtype), observation_space)
        params = {"encoder": encoder.init(encoder_key, observation)}
        features = encoder.apply(params["encoder"], observation)
        if memory is not None:
            first = jnp.ones((1, 1), bool)
            features = join(features, jnp.zeros((1, 1, beside_size)))
            params["memory"] = memory.init(memory_key, memory.initial_carry((1,)), features, first)
            _, features = memory.apply(params["memory"], memory.initial_carry((1,)), features, first)
        return params, features

    def initial_carry(batch_shape: tuple[int, ...]) -> Carry:
        return () if memory is None else memory.initial_carry(batch_shape)

    def apply(
        params: Params, carry: Carry, observation: PyTree, first: Array, beside: Array | None = None
    ) -> tuple[Carry, Array]:
        features = encoder.apply(params["encoder"], observation)
        if memory is None:
            return carry, features
        first = jnp.broadcast_to(
            first.reshape(first.shape + (1,) * (features.ndim - 1 - first.ndim)), features.shape[:-1]
        )
        return memory.apply(params["memory"], carry, join(features, beside), first)

    return Torso(init=init, initial_carry=initial_carry, apply=apply)


def _floating(observation: Array) -> Array:
    """Casts booleans, integers and floats of any width to float32."""
    return jnp.asarray(observation, jnp.float32)


def _flatten(observation: Array, observation_ndim: int) -> Array:
    """Casts to float32 and joins the last `observation_ndim` axes; with zero of them, adds an axis of size one."""
    x = _floating(observation)
    if x.ndim < observation_ndim:
        raise ValueError(
            f"`observation` must have at least `observation_ndim` axes, got shape {x.shape} and {observation_ndim}."
        )
    leading = x.shape[: x.ndim - observation_ndim]
    return x.reshape(*leading, math.prod(x.shape[x.ndim - observation_ndim :]))


def _per_layer(name: str, value: int | Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Returns one number for each layer."""
    values = (value,) * num_layers if isinstance(value, int) else tuple(value)
    if len(values) != num_layers:
        raise ValueError(f"`{name}` must be one number or one for each of {num_layers} layers, got {values}.")
    return values
