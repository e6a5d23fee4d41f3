"""Entropy-balanced clipping (AEPO, Dong et al., 2025): tokens above the upper bound keep a bounded gradient."""

import jax
import jax.numpy as jnp

from jaxagents.losses.policy_gradient import importance_ratio
from jaxagents.types import Array, TokenView


def entropy_balanced_clip(
    view: TokenView,
    *,
    clip_epsilon_low: Array | float = 0.2,
    clip_epsilon_high: Array | float = 0.28,
    dual_clip: Array | float = 3.0,
) -> Array:
    """Computes the loss of `dual_clip` with two widths, in which the upper bound has the gradient of the ratio.

    With the stop-gradient `sg` and `rho = pi / behavior`, the upper bound is
    `U = (1 + clip_epsilon_high) rho / sg(rho)`, whose value does not depend on rho, and the loss is
    `-min(rho A, clip(rho, 1 - clip_epsilon_low, U) A)`, for negative advantages at most `-dual_clip A`.

    Args:
        view: view of the tokens.
        clip_epsilon_low: width of the trust interval below 1.
        clip_epsilon_high: width of the trust interval above 1.
        dual_clip: largest ratio that counts against a token, above `1 + clip_epsilon_high`.

    Returns:
        `[n, t, S]`.

    References:
        Dong et al. (2025), "Agentic Entropy-Balanced Policy Optimization", section 3.2.
    """
    log_ratio = jnp.where(view.mask, view.log_prob - jax.lax.stop_gradient(view.behavior_log_prob), 0.0)
    advantage = jax.lax.stop_gradient(jnp.where(view.mask, view.advantage, 0.0))
    ratio = importance_ratio(log_ratio, 0.0)
    upper = (1.0 + clip_epsilon_high) * ratio / jax.lax.stop_gradient(ratio)
    clipped = jnp.where(ratio > 1.0 + clip_epsilon_high, upper, jnp.maximum(ratio, 1.0 - clip_epsilon_low))
    loss = -jnp.minimum(ratio * advantage, clipped * advantage)
    return jnp.where(advantage < 0.0, jnp.minimum(loss, -dual_clip * advantage), loss)
