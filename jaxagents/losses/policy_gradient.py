"""Per-element policy-gradient objectives, to be minimised."""

import jax.numpy as jnp

from jaxagents.types import Array


def clipped_surrogate(
    log_prob: Array, behavior_log_prob: Array, advantage: Array, *, clip_epsilon: Array | float
) -> Array:
    """Computes PPO's clipped surrogate loss.

    `-min(rho A, clip(rho, 1 - epsilon, 1 + epsilon) A)` with `rho = exp(log_prob - behavior_log_prob)`.

    Args:
        log_prob: of the actions under the policy being trained, any shape.
        behavior_log_prob: of the same actions under the policy that acted.
        advantage: same shape; treated as a constant by the caller.
        clip_epsilon: half width of the trust interval (0.2 in the paper).

    Returns:
        Loss per element.

    References:
        Schulman et al. (2017), "Proximal Policy Optimization Algorithms", eq. 7.
    """
    ratio = jnp.exp(log_prob - behavior_log_prob)
    clipped = jnp.clip(ratio, 1.0 - clip_epsilon, 1.0 + clip_epsilon)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def approximate_kl(log_prob: Array, behavior_log_prob: Array) -> Array:
    """Computes the k3 estimate of `KL(behavior || policy)` per element: `(rho - 1) - log rho`, never negative.

    References:
        Schulman (2020), "Approximating KL Divergence".
    """
    log_ratio = log_prob - behavior_log_prob
    return jnp.exp(log_ratio) - 1.0 - log_ratio


def clip_fraction(log_prob: Array, behavior_log_prob: Array, *, clip_epsilon: Array | float) -> Array:
    """Computes 1.0 where the ratio is outside the clip interval and 0.0 elsewhere."""
    return (jnp.abs(jnp.exp(log_prob - behavior_log_prob) - 1.0) > clip_epsilon).astype(log_prob.dtype)
