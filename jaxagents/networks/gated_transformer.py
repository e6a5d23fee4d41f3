"""A transformer block whose memory is a window of its past inputs, for time-first sequences with several episodes."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxagents.types import Array


class GRUGate(nn.Module):
    """Combines a stream with an update of it.

    `r = s(W_r y + U_r x)`, `z = s(W_z y + U_z x - bias)`, `h = tanh(W_h y + U_h (r x))`, result `(1 - z) x + z h`.

    Attributes:
        bias: initial value of the bias; if it is large, the update has hardly any effect.

    References:
        Parisotto et al. (2020), Stabilizing transformers for reinforcement learning, section 3.2.
    """

    bias: float = 2.0

    @nn.compact
    def __call__(self, x: Array, y: Array) -> Array:
        """Computes `[..., H]` of the stream `x` and its update `y`, both `[..., H]`."""
        size = x.shape[-1]
        reset_y, update_y, new_y = jnp.split(nn.Dense(3 * size, use_bias=False, name="update")(y), 3, axis=-1)
        reset_x, update_x = jnp.split(nn.Dense(2 * size, use_bias=False, name="stream")(x), 2, axis=-1)
        bias = self.param("bias", nn.initializers.constant(self.bias), (size,)).reshape((1,) * (x.ndim - 1) + (-1,))
        update = nn.sigmoid(update_y + update_x - bias)
        new = nn.tanh(new_y + nn.Dense(size, use_bias=False, name="new")(nn.sigmoid(reset_y + reset_x) * x))
        return (1.0 - update) * x + update * new


class GTrXL(nn.Module):
    """One block of a gated transformer; `networks.recurrent.Stack` stacks several.

    Every step attends to itself and to the `window` steps before it in its episode. With layer-normed inputs,
    `x' = gate(x, relu(attention(x)))` and `gate(x', relu(mlp(norm(x'))))`. It is called like the modules of
    `networks.recurrent`; features of another width than `hidden_size` first pass through a dense layer.

    Attributes:
        hidden_size: size of the output H.
        num_heads: number of heads, which divides H.
        window: W, number of visible steps before the current one.
        gate_bias: see `GRUGate`.

    References:
        Parisotto et al. (2020), Stabilizing transformers for reinforcement learning, equations 6 to 9.
        Dai et al. (2019), Transformer-XL, section 3.2 (memory of earlier segments).

    Deviation: positions enter as a learned bias per head and distance. The memory of earlier segments was computed
        with the parameters of that time, like a recurrent carry.
    """

    hidden_size: int
    num_heads: int = 4
    window: int = 32
    gate_bias: float = 2.0

    def __post_init__(self):
        if self.num_heads < 1 or self.hidden_size % self.num_heads:
            raise ValueError(
                f"`num_heads` must divide `hidden_size`, got {self.num_heads} and {self.hidden_size}; try 4 and 64."
            )
        if self.window < 1:
            raise ValueError(f"`window` must be at least 1 step, got {self.window}; try 32.")
        super().__post_init__()

    def initial_carry(self, batch_shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Returns inputs `[*batch_shape, W, H]` of the previous steps, and which of them exist (1, else 0): none."""
        shape = (*batch_shape, self.window)
        return jnp.zeros((*shape, self.hidden_size)), jnp.zeros(shape)

    @nn.compact
    def __call__(self, carry: tuple[Array, Array], features: Array, first: Array) -> tuple[tuple[Array, Array], Array]:
        """Computes `(carry, features [T, *B, H])`.

        Args:
            carry: inputs `[*B, W, H]` of the steps before the first one, the latest last, and which of them exist.
            features: `[T, *B, F]`.
            first: bool `[T, *B]`, whether the step is the first of an episode.

        Raises:
            ValueError: the leading axes disagree.
        """
        if first.shape != features.shape[:-1]:
            raise ValueError(
                f"`first` must have the leading axes [T, *B] of `features`, got {first.shape} and {features.shape}."
            )
        if carry[0].shape != (*first.shape[1:], self.window, self.hidden_size):
            raise ValueError(
                f"`carry` must be [*B, {self.window}, {self.hidden_size}] for `features` [T, *B, F], got "
                f"{carry[0].shape} and {features.shape}; try `initial_carry(features.shape[1:-1])`."
            )
        length, *batch_shape = first.shape
        if features.shape[-1] != self.hidden_size:
            features = nn.Dense(self.hidden_size, name="encoder")(features)
        x = jnp.swapaxes(features.reshape(length, -1, self.hidden_size), 0, 1)
        # Episodes are counted from 0, the memory's episode; missing steps of the memory belong to none (-1).
        episode = jnp.cumsum(first.reshape(length, -1).T, axis=1, dtype=jnp.int32)
        known = carry[1].reshape(-1, self.window) > 0.0
        episodes = jnp.concatenate([jnp.where(known, 0, -1), episode], axis=1)
        # Set to zero, not only masked: an infinite memory must not survive the reset as 0 * inf.
        memory = jnp.where(episode[:, :1, None] > 0, 0.0, carry[0].reshape(-1, self.window, self.hidden_size))
        inputs = jnp.concatenate([memory, x], axis=1)

        x = GRUGate(self.gate_bias, name="attention_gate")(x, nn.relu(self._attend(inputs, episodes, episode)))
        hidden = nn.relu(nn.Dense(4 * self.hidden_size, name="hidden")(nn.LayerNorm(name="norm")(x)))
        x = GRUGate(self.gate_bias, name="gate")(x, nn.relu(nn.Dense(self.hidden_size, name="output")(hidden)))

        known = episodes[:, -self.window :] == episode[:, -1:]
        kept = jnp.where(known[..., None], inputs[:, -self.window :], 0.0)
        carry = kept.reshape(*batch_shape, *kept.shape[1:]), known.astype(x.dtype).reshape(*batch_shape, self.window)
        return carry, jnp.swapaxes(x, 0, 1).reshape(length, *batch_shape, self.hidden_size)

    def _attend(self, inputs: Array, episodes: Array, episode: Array) -> Array:
        """Computes attention `[N, T, H]` over inputs `[N, W + T, H]`, by the episodes of keys and queries."""
        rows, width, size = inputs.shape
        heads = (rows, width, self.num_heads, size // self.num_heads)
        normed = nn.LayerNorm(name="input_norm")(inputs)
        query = nn.Dense(size, use_bias=False, name="query")(normed[:, self.window :])
        query = query.reshape(rows, -1, *heads[2:])
        key, value = (nn.Dense(size, use_bias=False, name=name)(normed).reshape(heads) for name in ("key", "value"))
        distance = self.window + jnp.arange(width - self.window)[:, None] - jnp.arange(width)[None]
        seen = ((distance >= 0) & (distance <= self.window))[None] & (episode[:, :, None] == episodes[:, None])
        bias = self.param("distance", nn.initializers.zeros, (self.num_heads, self.window + 1))
        bias = bias[:, jnp.clip(distance, 0, self.window)]
        scores = jnp.einsum("nqhf,nkhf->nhqk", query, key) / math.sqrt(heads[-1]) + bias[None]
        weights = jax.nn.softmax(jnp.where(seen[:, None], scores, -jnp.inf), axis=-1)
        attended = jnp.einsum("nhqk,nkhf->nqhf", weights, value).reshape(rows, -1, size)
        return nn.Dense(size, use_bias=False, name="attended")(attended)
