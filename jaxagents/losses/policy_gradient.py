"""Element-wise policy-gradient objectives for both arrays and tokens, to be minimised."""

import jax
import jax.numpy as jnp

from jaxagents.types import Array

# A ratio of e^20 is no longer a sample of the same policy; without a bound its exponential overflows.
MAX_LOG_RATIO = 20.0


def importance_ratio(log_prob: Array, behavior_log_prob: Array | float) -> Array:
    """Computes `rho = exp(log_prob - behavior_log_prob)`, with log-ratios clipped to [-20, 20].

    Args:
        log_prob: log-probabilities under the policy being trained, any shape.
        behavior_log_prob: log-probabilities under the policy that acted; a constant.

    Returns:
        The ratio per element; without gradient outside these bounds.
    """
    log_ratio = log_prob - jax.lax.stop_gradient(behavior_log_prob)
    return jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def policy_gradient_loss(log_prob: Array, behavior_log_prob: Array, advantage: Array) -> Array:
    """Computes `-A log_prob`, the policy gradient without a correction for old data except that in the advantage.

    Args:
        log_prob: log-probabilities of the actions under the policy being trained, any shape.
        behavior_log_prob: not read.
        advantage: same shape; treated as a constant by the caller.

    Returns:
        Loss per element.

    References:
        Mnih et al. (2016), "Asynchronous Methods for Deep Reinforcement Learning", algorithm S3.
    """
    del behavior_log_prob
    return -advantage * log_prob


def advantage_weighted_loss(
    log_prob: Array,
    behavior_log_prob: Array,
    advantage: Array,
    *,
    temperature: Array | float = 1.0,
    max_weight: Array | float = 20.0,
) -> Array:
    """Computes `-min(exp(A / temperature), max_weight) log_prob`, regardless of who acted.

    Args:
        log_prob: log-probabilities of the actions under the policy being trained, any shape.
        behavior_log_prob: not read.
        advantage: same shape; treated as a constant by the caller.
        temperature: positive number, in units of the advantage; the lower it is, the fewer actions count.
        max_weight: largest weight, positive.

    Returns:
        Loss per element.

    References:
        Peng et al. (2019), "Advantage-Weighted Regression", equation 11 and section 5.1 (weight clipping).
    """
    del behavior_log_prob
    # The exponent is clipped first: exp overflows, and the gradient of a minimum with infinity is NaN.
    return -jnp.exp(jnp.minimum(advantage / temperature, jnp.log(max_weight))) * log_prob


def clipped_surrogate(
    log_prob: Array,
    behavior_log_prob: Array | float,
    advantage: Array,
    *,
    clip_epsilon: Array | float,
    clip_epsilon_high: Array | float | None = None,
    dual_clip: Array | float | None = None,
) -> Array:
    """Computes PPO's clipped surrogate loss.

    `-min(rho A, clip(rho, 1 - clip_epsilon, 1 + clip_epsilon_high) A)`, see `importance_ratio`; with `dual_clip`, at
    most `-dual_clip A` for negative advantages.

    Args:
        log_prob: log-probabilities of the actions under the policy being trained, any shape.
        behavior_log_prob: log-probabilities of the same actions under the policy that acted.
        advantage: same shape; treated as a constant by the caller.
        clip_epsilon: width of the trust interval below 1 (0.2 in the paper).
        clip_epsilon_high: width above 1 (0.28 in DAPO); None: the same as below.
        dual_clip: largest ratio that counts against an action, above `1 + clip_epsilon_high`; None: no such limit.

    Returns:
        Loss per element.

    References:
        Schulman et al. (2017), "Proximal Policy Optimization Algorithms", eq. 7.
        Yu et al. (2025), "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", eq. 10 (two widths).
        Ye et al. (2020), "Mastering Complex Control in MOBA Games with Deep Reinforcement Learning" (dual clip; 3).

    Examples:
        >>> import jax.numpy as jnp
        >>> log_prob, advantage = jnp.log(jnp.array([0.5, 0.5])), jnp.array([1.0, -1.0])
        >>> clipped_surrogate(log_prob, jnp.log(0.25), advantage, clip_epsilon=0.25).tolist()  # The ratio is 2.
        [-1.25, 2.0]
    """
    ratio = importance_ratio(log_prob, behavior_log_prob)
    high = clip_epsilon if clip_epsilon_high is None else clip_epsilon_high
    clipped = jnp.clip(ratio, 1.0 - clip_epsilon, 1.0 + high)
    loss = -jnp.minimum(ratio * advantage, clipped * advantage)
    if dual_clip is None:
        return loss
    return jnp.where(advantage < 0.0, jnp.minimum(loss, -dual_clip * advantage), loss)


def approximate_kl(log_prob: Array, behavior_log_prob: Array) -> Array:
    """Computes the k3 estimate of `KL(behavior || policy)` per element: `(rho - 1) - log rho`, which is non-negative.

    References:
        Schulman (2020), "Approximating KL Divergence".
    """
    return importance_ratio(log_prob, behavior_log_prob) - 1.0 - (log_prob - behavior_log_prob)


def clip_fraction(log_prob: Array, behavior_log_prob: Array, *, clip_epsilon: Array | float) -> Array:
    """Computes 1.0 if the ratio is outside the clip interval and 0.0 otherwise.

    Examples:
        >>> import jax.numpy as jnp
        >>> clip_fraction(jnp.log(jnp.array([0.5, 0.3])), jnp.log(0.25), clip_epsilon=0.5).tolist()
        [1.0, 0.0]
    """
    ratio = importance_ratio(log_prob, behavior_log_prob)
    return (jnp.abs(ratio - 1.0) > clip_epsilon).astype(log_prob.dtype)
