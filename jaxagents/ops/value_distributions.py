"""Action values: expectations `[..., A]` as arrays, or distributions of returns, from which one action's is selected.

Functions accept all three kinds: `values` is an array, `CategoricalValues` or `QuantileValues`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.types import Array

Values = Any
"""`Array | CategoricalValues | QuantileValues`, with an axis A of actions before that of the distribution."""


@struct.dataclass
class CategoricalValues:
    """Distributions of returns on Z fixed atoms between two bounds.

    Attributes:
        logits: float32 `[..., A, Z]`, or `[..., Z]` for one action.
        low: first atom.
        high: last atom.

    References:
        Bellemare, Dabney and Munos (2017), A distributional perspective on reinforcement learning.
    """

    logits: Array
    low: float = struct.field(pytree_node=False)
    high: float = struct.field(pytree_node=False)

    def mean(self) -> Array:
        """Returns expectations, `[..., A]`."""
        return jnp.dot(jax.nn.softmax(self.logits), self._atoms(), precision=jax.lax.Precision.HIGHEST)

    def select(self, action: Array) -> "CategoricalValues":
        """Returns the distribution of an action, int `[...]`."""
        return self.replace(logits=jnp.take_along_axis(self.logits, action[..., None, None], axis=-2)[..., 0, :])

    def backup(self, reward: Array, discount: Array) -> Array:
        """Projects the distribution of `reward + discount * return` onto the atoms.

        A probability between two atoms is shared between them, in proportion to how near they are.

        Args:
            reward: float `[...]`.
            discount: float `[...]`.

        Returns:
            Probabilities, float `[..., Z]`.

        References:
            Bellemare, Dabney and Munos (2017), equation 7.
        """
        atoms = self._atoms()
        spread = _last_axis(atoms, self.logits.ndim)
        shifted = jnp.clip(reward[..., None] + discount[..., None] * spread, self.low, self.high)
        distance = jnp.abs(shifted[..., None, :] - _last_axis(atoms, self.logits.ndim)[..., None])
        share = jnp.clip(1.0 - distance / (atoms[1] - atoms[0]), 0.0, 1.0)
        # In float32 even if matrix products have lower precision by default.
        precision = jax.lax.Precision.HIGHEST
        return jnp.einsum("...ij,...j->...i", share, jax.nn.softmax(self.logits), precision=precision)

    def _atoms(self) -> Array:
        return jnp.linspace(self.low, self.high, self.logits.shape[-1])


@struct.dataclass
class QuantileValues:
    """Quantiles of returns.

    Attributes:
        quantiles: float32 `[..., A, K]`, or `[..., K]` for one action.
        fractions: float32 `[..., K]` in (0, 1), cumulative probabilities of the quantiles.

    References:
        Dabney et al. (2018), Distributional reinforcement learning with quantile regression.
    """

    quantiles: Array
    fractions: Array

    def mean(self) -> Array:
        """Returns expectations, `[..., A]`."""
        return jnp.mean(self.quantiles, axis=-1)

    def select(self, action: Array) -> "QuantileValues":
        """Returns the quantiles of an action, int `[...]`."""
        return self.replace(quantiles=jnp.take_along_axis(self.quantiles, action[..., None, None], axis=-2)[..., 0, :])

    def backup(self, reward: Array, discount: Array) -> Array:
        """Returns the quantiles `reward + discount * quantile`, `[..., K]`, for rewards and discounts `[...]`."""
        return reward[..., None] + discount[..., None] * self.quantiles


def expected_values(values: Values) -> Array:
    """Returns the expectations of action values, float `[..., A]`."""
    return values.mean() if isinstance(values, CategoricalValues | QuantileValues) else values


def select_action(values: Values, action: Array) -> Values:
    """Returns the value of an action: of expectations `[..., A]` and int `[...]`, float `[...]`."""
    if isinstance(values, CategoricalValues | QuantileValues):
        return values.select(action)
    return jnp.take_along_axis(values, action[..., None], axis=-1)[..., 0]


def backup(value: Values, reward: Array, discount: Array) -> Array:
    """Returns `reward + discount * value` for the value of one action.

    Args:
        value: value from `select_action`.
        reward: float `[...]`.
        discount: float `[...]`.

    Returns:
        A target: float `[...]`, probabilities `[..., Z]` of the atoms, or quantiles `[..., K]`.
    """
    if isinstance(value, CategoricalValues | QuantileValues):
        return value.backup(reward, discount)
    return reward + discount * value


def mask_q(q: Array, action_mask: Array | None) -> Array:
    """Returns `q` with the lowest finite value for forbidden actions.

    Args:
        q: float `[..., A]`.
        action_mask: bool `[..., A]`, True = allowed; None if every action is.

    Examples:
        >>> import jax.numpy as jnp
        >>> mask_q(jnp.array([1.0, 2.0]), jnp.array([True, False])).argmax().tolist()
        0
    """
    return q if action_mask is None else jnp.where(action_mask, q, jnp.finfo(q.dtype).min)


def _last_axis(vector: Array, ndim: int) -> Array:
    return vector.reshape((1,) * (ndim - 1) + vector.shape)
