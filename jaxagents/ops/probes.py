"""Linear classifiers that probe the features of a network."""

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.types import Array


@struct.dataclass
class Probe:
    """Multinomial logistic regression of standardised features: weights `[D + 1, K]`, mean and scale `[D]`."""

    weight: Array
    mean: Array
    scale: Array

    def log_prob(self, features: Array) -> Array:
        """Computes the log-probabilities of the classes, `[..., K]` of features `[..., D]`."""
        return jax.nn.log_softmax(_inputs(features, self.mean, self.scale) @ self.weight)


def fit_probe(
    features: Array, label: Array, mask: Array, *, num_classes: int, l2: float = 1e-3, num_steps: int = 300
) -> Probe:
    """Minimises `-mean log p(label | features) + l2 / 2 |weight|^2` by accelerated gradient descent.

    Args:
        features: `[N, D]`.
        label: int `[N]`, from 0 to K - 1.
        mask: bool `[N]`, rows that count.
        num_classes: K.
        l2: positive coefficient, for weights and biases.
        num_steps: number of descent steps.

    Returns:
        The probe.

    References:
        Nesterov (2004), "Introductory Lectures on Convex Optimization", section 2.2 (strongly convex functions).
    """
    counted = mask.astype(jnp.float32) / jnp.maximum(jnp.sum(mask), 1)
    mean = counted @ features
    scale = jnp.sqrt(counted @ jnp.square(features - mean[None])) + 1e-6
    inputs = _inputs(features, mean, scale)
    # The curvature of a softmax's log-likelihood is at most half that of its squared inputs.
    steepest = 0.5 * jnp.linalg.eigvalsh((inputs * counted[:, None]).T @ inputs)[-1] + l2
    ratio = jnp.sqrt(l2 / steepest)
    momentum = (1.0 - ratio) / (1.0 + ratio)

    def loss(weight: Array) -> Array:
        log_prob = jax.nn.log_softmax(inputs @ weight)
        chosen = jnp.take_along_axis(log_prob, label[:, None], axis=1)[:, 0]
        return -counted @ chosen + 0.5 * l2 * jnp.sum(jnp.square(weight))

    def step(loop: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        weight, ahead = loop
        following = ahead - jax.grad(loss)(ahead) / steepest
        return (following, following + momentum * (following - weight)), None

    nothing = jnp.zeros((inputs.shape[1], num_classes))
    (weight, _), _ = jax.lax.scan(step, (nothing, nothing), None, length=num_steps)
    return Probe(weight=weight, mean=mean, scale=scale)


def _inputs(features: Array, mean: Array, scale: Array) -> Array:
    """Standardises features and appends a 1."""
    mean, scale = (jnp.broadcast_to(leaf, features.shape) for leaf in (mean, scale))
    return jnp.concatenate([(features - mean) / scale, jnp.ones_like(features[..., :1])], axis=-1)
