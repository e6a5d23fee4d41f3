"""Element-wise losses of state values. No gradient flows to the targets."""

import jax
import jax.numpy as jnp

from jaxagents.types import Array


def squared_loss(value: Array, target: Array) -> Array:
    """Computes `0.5 (value - target)^2` per element.

    Args:
        value: float `[...]`.
        target: float `[...]`.

    Examples:
        >>> import jax.numpy as jnp
        >>> squared_loss(jnp.array([1.0, 2.0]), jnp.array([0.0, 2.5])).tolist()
        [0.5, 0.125]
    """
    return 0.5 * jnp.square(value - jax.lax.stop_gradient(target))


def huber_loss(value: Array, target: Array, *, delta: Array | float = 1.0) -> Array:
    """Computes the Huber loss per element.

    `0.5 e^2` if `|e| <= delta`, else `delta (|e| - 0.5 delta)`, with `e = value - target`.

    Args:
        value: float `[...]`.
        target: float `[...]`.
        delta: error from which the loss is linear, positive, in units of the value.

    References:
        Huber (1964).

    Examples:
        >>> import jax.numpy as jnp
        >>> huber_loss(jnp.array([0.0, 0.0]), jnp.array([0.5, 3.0])).tolist()
        [0.125, 2.5]
    """
    magnitude = jnp.abs(value - jax.lax.stop_gradient(target))
    quadratic = jnp.minimum(magnitude, delta)
    return 0.5 * jnp.square(quadratic) + delta * (magnitude - quadratic)


def clipped_value_loss(value: Array, old_value: Array, target: Array, *, clip_epsilon: Array | float) -> Array:
    """Computes the value loss of PPO: the larger loss of the free and the clipped prediction.

    `0.5 max((value - target)^2, (old_value + clip(value - old_value, -clip_epsilon, clip_epsilon) - target)^2)`.

    Args:
        value: float `[...]`.
        old_value: float `[...]`, predictions at collection time; no gradient flows to them.
        target: float `[...]`.
        clip_epsilon: largest change that the loss rewards, positive, in units of the value.

    References:
        Schulman et al. (2017), released implementation; absent from the paper.

    Examples:
        >>> import jax.numpy as jnp
        >>> value, old, target = jnp.array([1.0]), jnp.array([0.0]), jnp.array([1.0])
        >>> clipped_value_loss(value, old, target, clip_epsilon=0.5).tolist()  # As if the value were 0.5.
        [0.125]
    """
    old_value = jax.lax.stop_gradient(old_value)
    clipped = old_value + jnp.clip(value - old_value, -clip_epsilon, clip_epsilon)
    return jnp.maximum(squared_loss(value, target), squared_loss(clipped, target))
