"""Symmetric logarithms, and numbers as shares of the two nearest bins: one scale for all magnitudes."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxagents.types import Array

BOUND = 20.0
"""The last bin, in `symlog`: numbers up to 4.8e8 of either sign."""


def symlog(value: Array) -> Array:
    """Computes `sign(x) log(1 + |x|)`, elementwise.

    References:
        Hafner et al. (2023), Mastering diverse domains through world models, equation 9.

    Examples:
        >>> import jax.numpy as jnp
        >>> print(symlog(jnp.array([-10.0, 0.0, 1000.0])))
        [-2.3978953  0.         6.908755 ]
    """
    return _odd(jnp.log1p, value)


def symexp(value: Array) -> Array:
    """Computes `sign(x) (exp(|x|) - 1)`, the inverse of `symlog`, elementwise.

    Examples:
        >>> import jax.numpy as jnp
        >>> print(symexp(symlog(jnp.array([-10.0, 1000.0]))))
        [ -10.000001 1000.00006 ]
    """
    return _odd(jnp.expm1, value)


def two_hot(value: Array, num_bins: int) -> Array:
    """Computes shares of evenly spaced bins between `-20` and `20`, whose mean is the `symlog` of a number.

    Args:
        value: float32 `[...]`; numbers beyond the bins count as the outermost bin.
        num_bins: K, at least 2.

    Returns:
        float32 `[..., K]`: the shares of the two nearest bins add up to 1, and the nearer bin has more.

    References:
        Hafner et al. (2023), equation 10.
    """
    bins = _bins(num_bins, value.ndim + 1)
    distance = jnp.abs(jnp.clip(symlog(value), -BOUND, BOUND)[..., None] - bins)
    return jnp.clip(1.0 - distance * (num_bins - 1) / (2.0 * BOUND), 0.0, 1.0)


def two_hot_mean(logits: Array) -> Array:
    """Computes the numbers that logits of bins `[..., K]` represent: `symexp(sum_k softmax(logits)_k bin_k)`."""
    return symexp(jnp.sum(jax.nn.softmax(logits) * _bins(logits.shape[-1], logits.ndim), axis=-1))


def _odd(function: Callable[[Array], Array], value: Array) -> Array:
    """Computes `sign(x) function(|x|)`, whose gradient at zero is that of the function."""
    negative = value < 0.0
    above, below = function(jnp.where(negative, 0.0, value)), function(jnp.where(negative, -value, 0.0))
    return jnp.where(negative, -below, above)


def _bins(num_bins: int, ndim: int) -> Array:
    return jnp.linspace(-BOUND, BOUND, num_bins).reshape((1,) * (ndim - 1) + (num_bins,))
