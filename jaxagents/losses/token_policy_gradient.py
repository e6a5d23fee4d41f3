"""Policy-gradient losses of sampled tokens: `(log_prob, behavior_log_prob, advantage, mask, *, ...) -> [B, L]`.

All are to be minimised, weighted by `losses.aggregation`. Gradient flows to `log_prob` only; losses are zero where the
mask is False, whatever the other arguments hold there. `rho = exp(log_prob - behavior_log_prob)`.
"""

import jax
import jax.numpy as jnp

from jaxagents.losses.policy_gradient import MAX_LOG_RATIO, clipped_surrogate, importance_ratio
from jaxagents.types import Array

# Between these a share of right answers is counted (the authors' code of NFT).
NFT_SHARES = 0.02, 0.98


def plain(log_prob: Array, behavior_log_prob: Array, advantage: Array, mask: Array) -> Array:
    """Computes `-A log_prob`, the policy gradient without correction for old data.

    Args:
        log_prob: `[B, L]`.
        behavior_log_prob: not used.
        advantage: `[B, L]`.
        mask: bool `[B, L]`, tokens that count.

    Returns:
        `[B, L]`.

    References:
        Williams (1992), "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning".
    """
    return -_constant(advantage, mask) * jnp.where(mask, log_prob, 0.0)


def ppo_clip(
    log_prob: Array, behavior_log_prob: Array, advantage: Array, mask: Array, *, clip_epsilon: Array | float = 0.2
) -> Array:
    """Computes `-min(rho A, clip(rho, 1 - clip_epsilon, 1 + clip_epsilon) A)`.

    Args:
        log_prob: `[B, L]`.
        behavior_log_prob: `[B, L]`.
        advantage: `[B, L]`.
        mask: bool `[B, L]`, tokens that count.
        clip_epsilon: half width of the trust interval.

    Returns:
        `[B, L]`.

    References:
        Schulman et al. (2017), "Proximal Policy Optimization Algorithms", eq. 7.
    """
    log_ratio = _log_ratio(log_prob, behavior_log_prob, mask)
    return clipped_surrogate(log_ratio, 0.0, _constant(advantage, mask), clip_epsilon=clip_epsilon)


def decoupled_clip(
    log_prob: Array,
    behavior_log_prob: Array,
    advantage: Array,
    mask: Array,
    *,
    clip_epsilon_low: Array | float = 0.2,
    clip_epsilon_high: Array | float = 0.28,
) -> Array:
    """Computes `-min(rho A, clip(rho, 1 - clip_epsilon_low, 1 + clip_epsilon_high) A)`.

    A higher upper bound lets unlikely tokens gain probability faster and keeps the entropy up.

    Args:
        log_prob: `[B, L]`.
        behavior_log_prob: `[B, L]`.
        advantage: `[B, L]`.
        mask: bool `[B, L]`, tokens that count.
        clip_epsilon_low: width of the trust interval below 1.
        clip_epsilon_high: width above 1.

    Returns:
        `[B, L]`.

    References:
        Yu et al. (2025), "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", eq. 10.
    """
    log_ratio, advantage = _log_ratio(log_prob, behavior_log_prob, mask), _constant(advantage, mask)
    return clipped_surrogate(
        log_ratio, 0.0, advantage, clip_epsilon=clip_epsilon_low, clip_epsilon_high=clip_epsilon_high
    )


def dual_clip(
    log_prob: Array,
    behavior_log_prob: Array,
    advantage: Array,
    mask: Array,
    *,
    clip_epsilon: Array | float = 0.2,
    dual_clip: Array | float = 3.0,
) -> Array:
    """Computes the loss of `ppo_clip`, for negative advantages at most `-dual_clip A`.

    Bounds what a token that became much likelier although it was bad can do to one update.

    Args:
        log_prob: `[B, L]`.
        behavior_log_prob: `[B, L]`.
        advantage: `[B, L]`.
        mask: bool `[B, L]`, tokens that count.
        clip_epsilon: half width of the trust interval.
        dual_clip: largest ratio that counts against a token, above `1 + clip_epsilon`.

    Returns:
        `[B, L]`.

    References:
        Ye et al. (2020), "Mastering Complex Control in MOBA Games with Deep Reinforcement Learning"
        (dual-clip PPO; 3).
    """
    log_ratio, advantage = _log_ratio(log_prob, behavior_log_prob, mask), _constant(advantage, mask)
    return clipped_surrogate(log_ratio, 0.0, advantage, clip_epsilon=clip_epsilon, dual_clip=dual_clip)


def gspo(
    log_prob: Array,
    behavior_log_prob: Array,
    advantage: Array,
    mask: Array,
    *,
    clip_epsilon_low: Array | float = 3e-4,
    clip_epsilon_high: Array | float = 4e-4,
) -> Array:
    """Computes the clipped loss of one ratio per row, the geometric mean of those of its tokens.

    `s = exp(mean_l(log_prob - behavior_log_prob))`, and with the stop-gradient `sg`, `s_l = sg(s) pi_l / sg(pi_l)`:
    `-min(s_l A_l, clip(s_l, 1 - clip_epsilon_low, 1 + clip_epsilon_high) A_l)` (GSPO-token). With one advantage for
    all tokens and `losses.aggregation.sequence_mean` its gradient is that of the loss of `s`.

    Args:
        log_prob: `[B, L]`.
        behavior_log_prob: `[B, L]`.
        advantage: `[B, L]`.
        mask: bool `[B, L]`, tokens that count. A row is a sequence: an episode, or a turn of one if rows are turns.
        clip_epsilon_low: width of the trust interval below 1.
        clip_epsilon_high: width above 1.

    Returns:
        `[B, L]`.

    References:
        Zheng et al. (2025), "Group Sequence Policy Optimization", eq. 13 and 14.
    """
    log_ratio, advantage = _log_ratio(log_prob, behavior_log_prob, mask), _constant(advantage, mask)
    count = jnp.sum(mask, axis=1, keepdims=True, dtype=log_ratio.dtype)
    mean = jax.lax.stop_gradient(jnp.sum(log_ratio, axis=1, keepdims=True) / jnp.maximum(count, 1.0))
    # The value is that of the row, the gradient that of the token.
    log_ratio = jnp.clip(mean, -MAX_LOG_RATIO, MAX_LOG_RATIO) + log_ratio - jax.lax.stop_gradient(log_ratio)
    return clipped_surrogate(
        log_ratio, 0.0, advantage, clip_epsilon=clip_epsilon_low, clip_epsilon_high=clip_epsilon_high
    )


def cispo(
    log_prob: Array,
    behavior_log_prob: Array,
    advantage: Array,
    mask: Array,
    *,
    clip_epsilon_low: Array | float = 1.0,
    clip_epsilon_high: Array | float = 4.0,
) -> Array:
    """Computes `-sg(clip(rho, 1 - clip_epsilon_low, 1 + clip_epsilon_high)) A log_prob` with the stop-gradient `sg`.

    Clips the importance weight and not the update: every token keeps a gradient.

    Args:
        log_prob: `[B, L]`.
        behavior_log_prob: `[B, L]`.
        advantage: `[B, L]`.
        mask: bool `[B, L]`, tokens that count.
        clip_epsilon_low: width of the interval of weights below 1; 1 does not bound them from below.
        clip_epsilon_high: width above 1.

    Returns:
        `[B, L]`.

    References:
        MiniMax (2025), "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention", eq. 4 and 5.
    """
    ratio = jax.lax.stop_gradient(_ratio(log_prob, behavior_log_prob, mask))
    weight = jnp.clip(ratio, 1.0 - clip_epsilon_low, 1.0 + clip_epsilon_high)
    return -weight * _constant(advantage, mask) * jnp.where(mask, log_prob, 0.0)


def nft(
    log_prob: Array,
    behavior_log_prob: Array,
    advantage: Array,
    mask: Array,
    *,
    floor: Array | float = 1.0,
    negative_weight: Array | float = 1.0,
    failure_power: Array | float = 1.0,
    success_power: Array | float = 0.0,
) -> Array:
    """Computes the likelihood loss of right answers, and of wrong ones under the policy that explains them.

    With r the share of right answers to the question, the acting policy is r times that of its right answers, which
    the trained one stands for, plus 1 - r times that of its wrong ones. So a token of a right answer has the loss
    `-w log(rho)` and one of a wrong answer `-negative_weight w log(max((1 - r rho) / (1 - r), floor))`, where the
    maximum lets gradients pass, and `w = (1 - r)^failure_power r^-success_power`.

    Args:
        log_prob: `[B, L]`.
        behavior_log_prob: `[B, L]`.
        advantage: `[B, L]`, that of `ops.credit.dr_grpo` for returns of 0 and 1: `1 - r` of right and `-r` of wrong
            answers. Zero, where all or none are right, counts for nothing.
        mask: bool `[B, L]`, tokens that count.
        floor: positive; below 1 wrong answers push harder once they have become likelier.
        negative_weight: of wrong answers; 0 learns from right ones alone (rejection fine-tuning, RFT).
        failure_power: 1 and a `success_power` of 0 are Dr. GRPO on data of the policy itself.
        success_power: 1/2 and a `failure_power` of 1/2 are GRPO on data of the policy itself; 0 and 0 weigh all alike.

    Returns:
        `[B, L]`.

    References:
        Chen et al. (2025), "Bridging Supervised Learning and Reinforcement Learning in Math Reasoning", section 3.

    Deviation: log-ratios are bounded by 20 from above, in the authors' code by 10. Both never occur.
    """
    advantage = _constant(advantage, mask)
    right = advantage > 0.0
    share = jnp.clip(jnp.where(right, 1.0 - advantage, -advantage), *NFT_SHARES)
    ratio = _ratio(log_prob, behavior_log_prob, mask)
    implicit = (1.0 - share * ratio) / (1.0 - share)
    constant = jax.lax.stop_gradient(implicit)
    floored = jnp.maximum(constant, floor)
    # The value is that of the floored, the gradient passes it.
    log_implicit = jnp.log(floored) + (implicit - constant) / floored
    loss = jnp.where(right, -jnp.log(ratio), -negative_weight * log_implicit)
    weight = jnp.power(1.0 - share, failure_power) * jnp.power(share, -success_power)
    return jnp.where(advantage == 0.0, 0.0, weight * loss)


def truncated_importance_weight(
    behavior_log_prob: Array, sampling_log_prob: Array, mask: Array, *, cap: Array | float = 2.0
) -> Array:
    """Computes `min(exp(behavior_log_prob - sampling_log_prob), cap)`, by which losses of tokens are multiplied.

    Corrects for tokens that were drawn from another distribution than the acting policy's own, as by temperature,
    truncation or a sampler of lower precision.

    Args:
        behavior_log_prob: `[B, L]`, under the acting policy.
        sampling_log_prob: `[B, L]`, under the distribution that the tokens were drawn from.
        mask: bool `[B, L]`, tokens that count.
        cap: largest weight.

    Returns:
        `[B, L]`, zero where the mask is False, without gradient.

    References:
        Yao et al. (2025), "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training".
    """
    weight = jnp.minimum(_ratio(behavior_log_prob, sampling_log_prob, mask), cap)
    return jax.lax.stop_gradient(jnp.where(mask, weight, 0.0))


def _log_ratio(log_prob: Array, behavior_log_prob: Array, mask: Array) -> Array:
    """Computes `log_prob - behavior_log_prob`, 0 where the mask is False."""
    return jnp.where(mask, log_prob - jax.lax.stop_gradient(behavior_log_prob), 0.0)


def _ratio(log_prob: Array, behavior_log_prob: Array, mask: Array) -> Array:
    """Computes `exp(log_prob - behavior_log_prob)`, 1 where the mask is False."""
    return importance_ratio(_log_ratio(log_prob, behavior_log_prob, mask), 0.0)


def _constant(advantage: Array, mask: Array) -> Array:
    return jax.lax.stop_gradient(jnp.where(mask, advantage, 0.0))
