"""Element-wise losses of world models with categorical latent variables (DreamerV3)."""

import jax
import jax.numpy as jnp

from jaxagents.ops.symlog import symlog, two_hot
from jaxagents.types import Array


def symlog_loss(predicted: Array, target: Array) -> Array:
    """Computes `sum_d (predicted_d - symlog(target_d))^2 / 2`.

    Args:
        predicted: float `[..., D]`, in `symlog` units.
        target: float `[..., D]`.

    Returns:
        float `[...]`.

    References:
        Hafner et al. (2023), Mastering diverse domains through world models, equation 9.
    """
    return 0.5 * jnp.sum(jnp.square(predicted - symlog(target)), axis=-1)


def two_hot_loss(logits: Array, target: Array) -> Array:
    """Computes the cross-entropy between the bins of `logits` `[..., K]` and the two around `target` `[...]`.

    References:
        Hafner et al. (2023), equation 10.
    """
    return -jnp.sum(two_hot(target, logits.shape[-1]) * jax.nn.log_softmax(logits), axis=-1)


def balanced_kl(
    posterior: Array,
    prior: Array,
    *,
    free_nats: Array | float = 1.0,
    dynamics_coefficient: Array | float = 0.5,
    representation_coefficient: Array | float = 0.1,
) -> Array:
    """Computes `b_dyn max(f, KL(sg(posterior) | prior)) + b_rep max(f, KL(posterior | sg(prior)))`.

    Args:
        posterior: log-probabilities `[..., G, C]` of G independent variables, given the observation.
        prior: the same without the observation.
        free_nats: f, for all G variables together; below it, no gradient flows.
        dynamics_coefficient: `b_dyn`, with which the prior moves towards the posterior.
        representation_coefficient: `b_rep`, with which the posterior moves towards the prior.

    Returns:
        float `[...]`.

    References:
        Hafner et al. (2023), equation 5.
    """

    def divergence(first: Array, second: Array) -> Array:
        return jnp.maximum(free_nats, jnp.sum(jnp.exp(first) * (first - second), axis=(-2, -1)))

    dynamics = divergence(jax.lax.stop_gradient(posterior), prior)
    representation = divergence(posterior, jax.lax.stop_gradient(prior))
    return dynamics_coefficient * dynamics + representation_coefficient * representation
