"""Running mean and variance of pytrees of arrays, which can be merged over batches and devices."""

import math

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.types import Array, PyTree


@struct.dataclass
class RunningStatistics:
    """Mean and population variance of all elements seen so far.

    Attributes:
        mean: float32 pytree, leaves of the shape of one element.
        variance: float32 pytree like `mean`.
        count: float32 `[]`, number of elements seen.
    """

    mean: PyTree
    variance: PyTree
    count: Array


def init_statistics(example: PyTree) -> RunningStatistics:
    """Returns the statistics of zero elements, with which normalisation changes nothing.

    Args:
        example: pytree whose leaves have a `shape`: arrays, `ShapeDtypeStruct`s, or a space.
    """
    return RunningStatistics(
        mean=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), example),
        variance=jax.tree.map(lambda leaf: jnp.ones(leaf.shape, jnp.float32), example),
        count=jnp.zeros((), jnp.float32),
    )


def update_statistics(
    statistics: RunningStatistics, batch: PyTree, *, mask: Array | None = None, axis_name: str | None = None
) -> RunningStatistics:
    """Merges a batch into the statistics.

    With counts `a` and `b`, means `m_a` and `m_b`: `m = m_a + (m_b - m_a) b / (a + b)` and
    `v = (a v_a + b v_b + (m_b - m_a)^2 a b / (a + b)) / (a + b)`.

    Args:
        statistics: statistics of elements of one shape.
        batch: pytree of arrays of any dtype whose leaves have the same leading axes before the element's shape.
        mask: bool, of the leading axes, True for elements that count; None: all. The statistics of leaves without
            elements do not change.
        axis_name: mapped axis over whose members the batch is spread; None: the batch is not spread.

    Returns:
        The merged statistics.

    References:
        Chan, Golub and LeVeque (1983), equations 2.1.

    Examples:
        >>> import jax.numpy as jnp
        >>> statistics = update_statistics(init_statistics(jnp.zeros(2)), jnp.array([[0.0, 1.0], [2.0, 5.0]]))
        >>> print(statistics.mean)
        [1. 3.]
    """

    def total(value: Array) -> Array:
        return value if axis_name is None else jax.lax.psum(value, axis_name)

    leaf, mean = jax.tree.leaves(batch)[0], jax.tree.leaves(statistics.mean)[0]
    if mask is None:
        size = batch_count = total(jnp.float32(math.prod(leaf.shape[: leaf.ndim - mean.ndim])))
    else:
        batch_count = total(jnp.sum(mask, dtype=jnp.float32))
        size = jnp.maximum(batch_count, 1.0)
    count = statistics.count + batch_count

    def sum_of(values: Array) -> Array:
        if mask is not None:
            values = jnp.where(mask.reshape(-1, *(1,) * (values.ndim - 1)), values, 0.0)
        return total(jnp.sum(values, axis=0))

    def merge(mean: Array, variance: Array, values: Array) -> tuple[Array, Array]:
        values = values.astype(jnp.float32).reshape((-1, *mean.shape))
        batch_mean = sum_of(values) / size
        batch_variance = sum_of(jnp.square(values - batch_mean[None])) / size
        difference = batch_mean - mean
        fraction = batch_count / jnp.maximum(count, 1.0)
        merged = (1.0 - fraction) * variance + fraction * batch_variance
        return mean + fraction * difference, merged + fraction * (1.0 - fraction) * jnp.square(difference)

    pairs = jax.tree.map(merge, statistics.mean, statistics.variance, batch)
    new_mean, new_variance = jax.tree.transpose(jax.tree.structure(statistics.mean), jax.tree.structure((0, 0)), pairs)
    return RunningStatistics(mean=new_mean, variance=new_variance, count=count)


def normalize(statistics: RunningStatistics, values: PyTree, *, clip: float = 10.0, epsilon: float = 1e-8) -> PyTree:
    """Computes `clip((values - mean) / sqrt(variance + epsilon), -clip, clip)` in float32.

    Args:
        statistics: statistics of elements of one shape; no gradient flows to them.
        values: pytree of arrays `[..., *element]`.
        clip: largest magnitude of the result, in standard deviations.
        epsilon: small number that keeps the division finite if nothing varies.

    Examples:
        >>> import jax.numpy as jnp
        >>> statistics = update_statistics(init_statistics(jnp.zeros(1)), jnp.array([[0.0], [2.0]]))
        >>> print(normalize(statistics, jnp.array([2.0])))
        [1.]
    """

    def normalize_leaf(mean: Array, variance: Array, values: Array) -> Array:
        batch_axes = tuple(range(values.ndim - mean.ndim))
        scale = jax.lax.rsqrt(variance + epsilon)
        centred = values.astype(jnp.float32) - jnp.expand_dims(mean, batch_axes)
        return jnp.clip(centred * jnp.expand_dims(scale, batch_axes), -clip, clip)

    statistics = jax.lax.stop_gradient(statistics)
    return jax.tree.map(normalize_leaf, statistics.mean, statistics.variance, values)
