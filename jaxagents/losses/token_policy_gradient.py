"""Policy-gradient losses of sampled tokens: `(view, *, ...) -> [n, t, S]`, see `types.TokenView`.

All are to be minimised, weighted by `losses.aggregation`. Gradients flow to `view.log_prob` only; losses are zero if
`view.mask` is False, whatever the other leaves contain there. `rho = exp(log_prob - behavior_log_prob)`, and A is the
advantage.
"""

import jax
import jax.numpy as jnp

from jaxagents.losses.policy_gradient import MAX_LOG_RATIO, clipped_surrogate, importance_ratio
from jaxagents.types import Array, TokenView

# Bounds to which a share of right answers is clipped (as in the authors' code of NFT).
NFT_SHARES = 0.02, 0.98


def plain(view: TokenView) -> Array:
    """Computes `-A log_prob`, the policy gradient without a correction for old data.

    References:
        Williams (1992), "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning".
    """
    return -_advantage(view) * jnp.where(view.mask, view.log_prob, 0.0)


def ppo_clip(view: TokenView, *, clip_epsilon: Array | float = 0.2) -> Array:
    """Computes `-min(rho A, clip(rho, 1 - clip_epsilon, 1 + clip_epsilon) A)`.

    Args:
        view: view of the tokens.
        clip_epsilon: half width of the trust interval.

    Returns:
        `[n, t, S]`.

    References:
        Schulman et al. (2017), "Proximal Policy Optimization Algorithms", eq. 7.
    """
    return clipped_surrogate(_log_ratio(view), 0.0, _advantage(view), clip_epsilon=clip_epsilon)


def decoupled_clip(
    view: TokenView, *, clip_epsilon_low: Array | float = 0.2, clip_epsilon_high: Array | float = 0.28
) -> Array:
    """Computes `-min(rho A, clip(rho, 1 - clip_epsilon_low, 1 + clip_epsilon_high) A)`.

    A higher upper bound lets unlikely tokens gain probability faster and keeps the entropy up.

    Args:
        view: view of the tokens.
        clip_epsilon_low: width of the trust interval below 1.
        clip_epsilon_high: width of the trust interval above 1.

    Returns:
        `[n, t, S]`.

    References:
        Yu et al. (2025), "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", eq. 10.
    """
    return clipped_surrogate(
        *(_log_ratio(view), 0.0, _advantage(view)), clip_epsilon=clip_epsilon_low, clip_epsilon_high=clip_epsilon_high
    )


def dual_clip(view: TokenView, *, clip_epsilon: Array | float = 0.2, dual_clip: Array | float = 3.0) -> Array:
    """Computes the loss of `ppo_clip`, limited to `-dual_clip A` for negative advantages.

    This limits how much a bad token that has become much more likely can influence one update.

    Args:
        view: view of the tokens.
        clip_epsilon: half width of the trust interval.
        dual_clip: largest ratio that counts against a token, above `1 + clip_epsilon`.

    Returns:
        `[n, t, S]`.

    References:
        Ye et al. (2020), "Mastering Complex Control in MOBA Games with Deep Reinforcement Learning"
        (dual-clip PPO; 3).
    """
    return clipped_surrogate(*(_log_ratio(view), 0.0, _advantage(view)), clip_epsilon=clip_epsilon, dual_clip=dual_clip)


def gspo(view: TokenView, *, clip_epsilon_low: Array | float = 3e-4, clip_epsilon_high: Array | float = 4e-4) -> Array:
    """Computes the clipped loss with one ratio per sequence, the geometric mean of its tokens' ratios (GSPO-token).

    A sequence is everything that an agent says in an episode, in all of its turns. With the mean s of `log rho` over
    its tokens and the stop-gradient `sg`, `s_l = exp(sg(s)) pi_l / sg(pi_l)`, and the loss is `-min(s_l A_l, clip(s_l,
    1 - clip_epsilon_low, 1 + clip_epsilon_high) A_l)`. With one advantage for all tokens and
    `losses.aggregation.sequence_mean`, its gradient is that of the loss with `exp(s)`.

    Args:
        view: view of the tokens; reads `sequence_log_ratio`.
        clip_epsilon_low: width of the trust interval below 1.
        clip_epsilon_high: width of the trust interval above 1.

    Returns:
        `[n, t, S]`.

    References:
        Zheng et al. (2025), "Group Sequence Policy Optimization", eq. 13 and 14.
    """
    mean = jnp.where(view.mask, jax.lax.stop_gradient(view.sequence_log_ratio), 0.0)
    return _clip_of_mean(view, mean, clip_epsilon_low, clip_epsilon_high)


def gspo_turn(
    view: TokenView, *, clip_epsilon_low: Array | float = 3e-4, clip_epsilon_high: Array | float = 4e-4
) -> Array:
    """Computes the loss of `gspo` with one ratio per turn instead of one per sequence.

    Args:
        view: view of the tokens.
        clip_epsilon_low: width of the trust interval below 1.
        clip_epsilon_high: width of the trust interval above 1.

    Returns:
        `[n, t, S]`.

    References:
        Zheng et al. (2025), "Group Sequence Policy Optimization", eq. 13 and 14.

    Deviation: the paper's responses have one turn.
    """
    count = jnp.sum(view.mask, axis=-1, keepdims=True, dtype=jnp.float32)
    mean = jnp.sum(jax.lax.stop_gradient(_log_ratio(view)), axis=-1, keepdims=True) / jnp.maximum(count, 1.0)
    return _clip_of_mean(view, jnp.where(view.mask, mean, 0.0), clip_epsilon_low, clip_epsilon_high)


def cispo(view: TokenView, *, clip_epsilon_low: Array | float = 1.0, clip_epsilon_high: Array | float = 4.0) -> Array:
    """Computes `-sg(clip(rho, 1 - clip_epsilon_low, 1 + clip_epsilon_high)) A log_prob` with the stop-gradient `sg`.

    It clips the importance weight and not the update: every token keeps a gradient.

    Args:
        view: view of the tokens.
        clip_epsilon_low: width of the interval of weights below 1; with 1, there is no lower bound.
        clip_epsilon_high: width of the interval of weights above 1.

    Returns:
        `[n, t, S]`.

    References:
        MiniMax (2025), "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention", eq. 4 and 5.
    """
    ratio = jax.lax.stop_gradient(importance_ratio(_log_ratio(view), 0.0))
    weight = jnp.clip(ratio, 1.0 - clip_epsilon_low, 1.0 + clip_epsilon_high)
    return -weight * _advantage(view) * jnp.where(view.mask, view.log_prob, 0.0)


def nft(
    view: TokenView,
    *,
    floor: Array | float = 1.0,
    negative_weight: Array | float = 1.0,
    failure_power: Array | float = 1.0,
    success_power: Array | float = 0.0,
) -> Array:
    """Computes the likelihood loss of right answers, and of wrong answers under an implicit policy.

    With r the share of right answers to the question, the acting policy is a mixture of that of its right answers, with
    weight r, which the trained policy models, and that of its wrong answers, with weight 1 - r. So a token of a right
    answer has the loss `-w log(rho)` and a token of a wrong answer has `-negative_weight w log(max((1 - r rho) / (1 -
    r), floor))`, where the maximum lets gradients pass, and `w = (1 - r)^failure_power r^-success_power`. Questions
    that all or no episodes answered right do not count.

    Args:
        view: view of the tokens; reads `success`, which marks right answers, and r from `group_success`. The advantage
            is not used.
        floor: positive number; below 1, wrong answers that have become more likely have a larger gradient.
        negative_weight: weight of wrong answers; with 0, only right ones are learned (rejection fine-tuning, RFT).
        failure_power: exponent of 1 - r; 1 with a `success_power` of 0 gives Dr. GRPO on data of the policy itself.
        success_power: exponent of 1 / r; 1/2 with a `failure_power` of 1/2 gives GRPO on data of the policy itself; 0
            and 0 give equal weights.

    Returns:
        `[n, t, S]`.

    References:
        Chen et al. (2025), "Bridging Supervised Learning and Reinforcement Learning in Math Reasoning", section 3.

    Deviation: log-ratios are bounded by 20 from above, in the authors' code by 10. Neither bound is ever reached.
    """
    share = jax.lax.stop_gradient(jnp.clip(view.group_success, *NFT_SHARES))
    ratio = importance_ratio(_log_ratio(view), 0.0)
    implicit = (1.0 - share * ratio) / (1.0 - share)
    constant = jax.lax.stop_gradient(implicit)
    floored = jnp.maximum(constant, floor)
    # The value is floored, and the gradient is not.
    log_implicit = jnp.log(floored) + (implicit - constant) / floored
    loss = jnp.where(view.success, -jnp.log(ratio), -negative_weight * log_implicit)
    weight = jnp.power(1.0 - share, failure_power) * jnp.power(share, -success_power)
    counted = view.mask & (view.group_success > 0.0) & (view.group_success < 1.0)
    return jnp.where(counted, weight * loss, 0.0)


def truncated_importance_weight(
    behavior_log_prob: Array, sampling_log_prob: Array, mask: Array, *, cap: Array | float = 2.0
) -> Array:
    """Computes `min(exp(behavior_log_prob - sampling_log_prob), cap)`, a factor for token losses.

    It corrects for tokens that were drawn from a distribution other than the acting policy's, for example because of
    temperature, truncation or a sampler of lower precision.

    Args:
        behavior_log_prob: `[B, T, S]`, log-probabilities under the acting policy.
        sampling_log_prob: `[B, T, S]`, log-probabilities under the distribution from which the tokens were drawn.
        mask: bool `[B, T, S]`, tokens that count.
        cap: largest weight.

    Returns:
        `[B, T, S]`, zero if the mask is False, without gradient.

    References:
        Yao et al. (2025), "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training".
    """
    log_ratio = jnp.where(mask, behavior_log_prob - sampling_log_prob, 0.0)
    weight = jnp.minimum(importance_ratio(log_ratio, 0.0), cap)
    return jax.lax.stop_gradient(jnp.where(mask, weight, 0.0))


def _log_ratio(view: TokenView) -> Array:
    """Computes `log_prob - behavior_log_prob`, 0 if the mask is False."""
    return jnp.where(view.mask, view.log_prob - jax.lax.stop_gradient(view.behavior_log_prob), 0.0)


def _advantage(view: TokenView) -> Array:
    return jax.lax.stop_gradient(jnp.where(view.mask, view.advantage, 0.0))


def _clip_of_mean(view: TokenView, mean: Array, low: Array | float, high: Array | float) -> Array:
    """Computes the clipped loss whose ratios have the value of a mean log-ratio and the gradient of the token."""
    log_ratio = _log_ratio(view)
    log_ratio = jnp.clip(mean, -MAX_LOG_RATIO, MAX_LOG_RATIO) + log_ratio - jax.lax.stop_gradient(log_ratio)
    return clipped_surrogate(log_ratio, 0.0, _advantage(view), clip_epsilon=low, clip_epsilon_high=high)
