"""Element-wise losses of world models."""

import jax
import jax.numpy as jnp

from jaxagents.types import Array


def gaussian_loss(mean: Array, log_scale: Array, target: Array) -> Array:
    """Computes `sum_d ((target_d - mean_d)^2 / (2 scale_d^2) + log scale_d)`.

    Args:
        mean: float `[..., D]`.
        log_scale: float `[..., D]`, logarithm of the standard deviation.
        target: float `[..., D]`.

    Returns:
        float `[...]`, the negative log-likelihood without its constant, in nats.

    References:
        Chua et al. (2018), Deep reinforcement learning in a handful of trials, equation 1.

    Examples:
        >>> import jax.numpy as jnp
        >>> print(gaussian_loss(jnp.zeros((1, 2)), jnp.zeros((1, 2)), jnp.array([[1.0, 2.0]])))
        [2.5]
    """
    return jnp.sum(0.5 * jnp.square((target - mean) * jnp.exp(-log_scale)) + log_scale, axis=-1)


def end_loss(logit: Array, ended: Array) -> Array:
    """Computes the cross-entropy `-log p(ended)` of `p(True) = sigmoid(logit)`, per element.

    Examples:
        >>> import jax.numpy as jnp
        >>> print(end_loss(jnp.array([0.0, 4.0]), jnp.array([True, False])))
        [0.6931472 4.01815  ]
    """
    return jax.nn.softplus(jnp.where(ended, -logit, logit))
