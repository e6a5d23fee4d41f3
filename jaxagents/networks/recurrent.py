"""Recurrent networks over time-first sequences that contain several episodes.

Every module here is called as `module(carry, features [T, *B, F], first [T, *B]) -> (carry, features [T, *B, H])`, with
any number of batch axes, and the carry is set to zero before every step with `first`.
`module.initial_carry(batch_shape)` needs no parameters.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxagents.networks.initializers import orthogonal
from jaxagents.types import Array, Carry


class GRU(nn.Module):
    """A gated recurrent unit.

    `r = s(W_r x + U_r h)`, `z = s(W_z x + U_z h)`, `n = tanh(W_n x + r (U_n h + b))`, `h' = (1 - z) n + z h`, with
    biases in `W`. One matrix product computes all three gates.

    Attributes:
        hidden_size: H, size of the carry and of the output.

    References:
        Cho et al. (2014), equations 5 to 8, in cuDNN's variant, which resets after the matrix product.
    """

    hidden_size: int

    def initial_carry(self, batch_shape: tuple[int, ...]) -> Array:
        """Returns zeros `[*batch_shape, H]`."""
        return jnp.zeros((*batch_shape, self.hidden_size))

    @nn.compact
    def __call__(self, carry: Array, features: Array, first: Array) -> tuple[Array, Array]:
        """Computes `(carry [*B, H], features [T, *B, H])`.

        Args:
            carry: `[*B, H]`, the carry before the first step.
            features: `[T, *B, F]`.
            first: bool `[T, *B]`, whether the step is the first of an episode.

        Raises:
            ValueError: the leading axes disagree.
        """
        _check_axes(carry, features, first, self.hidden_size)
        gates = 3 * self.hidden_size
        input_kernel = self.param("input_kernel", nn.initializers.lecun_normal(), (features.shape[-1], gates))
        input_bias = self.param("input_bias", nn.initializers.zeros, (gates,))
        recurrent_kernel = self.param("recurrent_kernel", _orthogonal_blocks, (self.hidden_size, gates))
        recurrent_bias = self.param("recurrent_bias", nn.initializers.zeros, (self.hidden_size,))

        def step(hidden, inputs):
            features, first = inputs
            hidden = jnp.where(first[..., None], 0.0, hidden)
            # Inputs are projected here: on CPUs, slicing a projection of all steps is up to seven times slower.
            projected = features @ input_kernel + _as_last_axis(input_bias, features.ndim)
            reset_in, update_in, new_in = jnp.split(projected, 3, axis=-1)
            reset_hidden, update_hidden, new_hidden = jnp.split(hidden @ recurrent_kernel, 3, axis=-1)
            reset = nn.sigmoid(reset_in + reset_hidden)
            update = nn.sigmoid(update_in + update_hidden)
            new = nn.tanh(new_in + reset * (new_hidden + _as_last_axis(recurrent_bias, hidden.ndim)))
            hidden = (1.0 - update) * new + update * hidden
            return hidden, hidden

        if features.shape[0] == 1:  # Acting: one step needs no loop.
            carry, _ = step(carry, (features[0], first[0]))
            return carry, carry[None]
        return jax.lax.scan(step, carry, (features, first))


class LRU(nn.Module):
    """A block around a linear recurrent unit, computed in parallel over time.

    `x_t = lambda x_(t-1) + gamma B u_t`, `y_t = Re(C x_t) + D u_t` with a complex diagonal
    `lambda = exp(-exp(nu) + i exp(theta))`, between a layer norm and `gelu -> gated linear unit -> skip`. Features of
    another width than `hidden_size` first pass through a dense layer.

    Attributes:
        hidden_size: H, size of the output.
        state_size: S, size of the complex state; None: `hidden_size`.
        r_min: smallest modulus of lambda at the start.
        r_max: largest modulus of lambda at the start, at most 1.
        max_phase: largest phase of lambda at the start, in radians.

    References:
        Orvieto et al. (2023), Resurrecting recurrent neural networks for long sequences, section 3.4 (normalisation)
        and lemma 3.2 (initialisation on a ring).
    """

    hidden_size: int
    state_size: int | None = None
    r_min: float = 0.0
    r_max: float = 1.0
    max_phase: float = 2.0 * math.pi

    def __post_init__(self):
        if not 0.0 <= self.r_min < self.r_max <= 1.0:
            raise ValueError(f"`r_min` and `r_max` must be 0 <= r_min < r_max <= 1, got {self.r_min} and {self.r_max}.")
        super().__post_init__()

    def initial_carry(self, batch_shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Returns zeros `[*batch_shape, S]`, twice: the real and the imaginary part of the state."""
        zeros = jnp.zeros((*batch_shape, self.state_size or self.hidden_size))
        return zeros, zeros

    @nn.compact
    def __call__(self, carry: tuple[Array, Array], features: Array, first: Array) -> tuple[tuple[Array, Array], Array]:
        """Computes `(carry ([*B, S], [*B, S]), features [T, *B, H])`.

        Args:
            carry: real and imaginary part of the state `[*B, S]` before the first step.
            features: `[T, *B, F]`.
            first: bool `[T, *B]`, whether the step is the first of an episode.

        Raises:
            ValueError: the leading axes disagree.
        """
        state_size = self.state_size or self.hidden_size
        _check_axes(carry[0], features, first, state_size)
        if features.shape[-1] != self.hidden_size:
            features = nn.Dense(self.hidden_size, name="encoder")(features)
        inputs = nn.LayerNorm(name="norm")(features)

        decay, normalizer = self._diagonal(state_size)
        # One product for the real and the imaginary part. Glorot: both parts share the variance 1 / H.
        into_state = nn.initializers.variance_scaling(0.5, "fan_in", "normal")
        driven = nn.Dense(2 * state_size, use_bias=False, kernel_init=into_state, name="B")(inputs)
        driven = jax.lax.complex(*jnp.split(driven, 2, axis=-1)) * _as_last_axis(normalizer, driven.ndim)
        states = linear_recurrence(decay, driven, first, jax.lax.complex(*carry))

        stacked = jnp.concatenate([states.real, -states.imag], axis=-1)
        out_of_state = nn.initializers.variance_scaling(2.0, "fan_in", "normal")
        outputs = nn.Dense(self.hidden_size, use_bias=False, kernel_init=out_of_state, name="C")(stacked)
        skip = self.param("D", nn.initializers.normal(1.0), (self.hidden_size,))
        outputs = nn.gelu(outputs + _as_last_axis(skip, inputs.ndim) * inputs)
        outputs = features + nn.glu(nn.Dense(2 * self.hidden_size, name="gate")(outputs))
        return (states.real[-1], states.imag[-1]), outputs

    def _diagonal(self, size: int) -> tuple[Array, Array]:
        """Returns lambda (complex64 `[S]`) and gamma (float32 `[S]`)."""

        def init_nu(key, shape):
            squared_modulus = jax.random.uniform(key, shape, minval=self.r_min**2, maxval=self.r_max**2)
            return jnp.log(-0.5 * jnp.log(jnp.clip(squared_modulus, 1e-12, 1.0 - 1e-6)))

        def init_theta(key, shape):
            return jnp.log(self.max_phase * jax.random.uniform(key, shape, minval=1e-6))

        nu = self.param("nu", init_nu, (size,))
        theta = self.param("theta", init_theta, (size,))
        # gamma = sqrt(1 - |lambda|^2) at the start makes the variance of the state equal that of its input.
        log_gamma = self.param("log_gamma", lambda _: 0.5 * jnp.log(-jnp.expm1(-2.0 * jnp.exp(nu))))
        modulus, phase = jnp.exp(-jnp.exp(nu)), jnp.exp(theta)
        return jax.lax.complex(modulus * jnp.cos(phase), modulus * jnp.sin(phase)), jnp.exp(log_gamma)


class Stack(nn.Module):
    """Recurrent modules on top of each other; the carry is the tuple of the layers' carries.

    Attributes:
        layers: modules of this file.
    """

    layers: Sequence[nn.Module]

    def __post_init__(self):
        self.layers = tuple(self.layers)
        super().__post_init__()

    def initial_carry(self, batch_shape: tuple[int, ...]) -> tuple[Carry, ...]:
        """Returns the initial carry of each layer."""
        return tuple(layer.initial_carry(batch_shape) for layer in self.layers)

    def __call__(self, carry: tuple[Carry, ...], features: Array, first: Array) -> tuple[tuple[Carry, ...], Array]:
        """Computes `(carry, features [T, *B, H])`, with H of the last layer; see the module's docstring."""
        carries = []
        for layer, layer_carry in zip(self.layers, carry, strict=True):
            layer_carry, features = layer(layer_carry, features, first)
            carries.append(layer_carry)
        return tuple(carries), features


def linear_recurrence(decay: Array, inputs: Array, first: Array, initial: Array) -> Array:
    """Computes `x_t = decay x_(t-1) + inputs_t`, with zero for `x_(t-1)` if `first_t`, in parallel over time.

    Pairs (a, b) that represent the maps `x -> a x + b` compose to `(a_2 a_1, a_2 b_1 + b_2)`, which is associative; a
    reset is `a = 0`.

    Args:
        decay: `[S]`, real or complex.
        inputs: `[T, *B, S]`.
        first: bool `[T, *B]`.
        initial: `[*B, S]`, the state before the first step.

    Returns:
        States `[T, *B, S]`.
    """
    kept = jnp.where(first[..., None], 0.0, _as_last_axis(decay, inputs.ndim))
    # Not `kept[0] * initial`: an infinite state must not survive the reset as 0 * inf.
    inputs = inputs.at[0].add(jnp.where(first[0][..., None], 0.0, _as_last_axis(decay, initial.ndim) * initial))

    def compose(earlier, later):
        return later[0] * earlier[0], later[0] * earlier[1] + later[1]

    return jax.lax.associative_scan(compose, (kept, inputs))[1]


def _as_last_axis(vector: Array, ndim: int) -> Array:
    """Adds leading axes to a vector until it has `ndim` axes."""
    return vector.reshape((1,) * (ndim - 1) + vector.shape)


def _orthogonal_blocks(key: Array, shape: tuple[int, int]) -> Array:
    """Samples a kernel `[H, n H]` of n orthogonal blocks, one for each gate."""
    size, width = shape
    keys = jax.random.split(key, width // size)
    return jnp.concatenate([orthogonal()(key, (size, size)) for key in keys], axis=-1)


def _check_axes(carry: Array, features: Array, first: Array, size: int) -> None:
    """Refuses leading axes that disagree, which broadcasting would not reveal."""
    if first.shape != features.shape[:-1]:
        raise ValueError(
            f"`first` must have the leading axes [T, *B] of `features`, got {first.shape} and {features.shape}."
        )
    if carry.shape != (*features.shape[1:-1], size):
        raise ValueError(
            f"`carry` must be [*B, {size}] for `features` [T, *B, F], got {carry.shape} and {features.shape}; "
            "try `initial_carry(features.shape[1:-1])`."
        )
