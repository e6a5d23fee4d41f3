"""Terms added to token losses: `(view, *, coefficient) -> [n, t, S]`, see `types.TokenView`.

Terms are zero if `view.mask` is False. A coefficient is in units of the loss per nat, or of the mean |A| per nat if the
learner says so (`regularizer_units`); it is one number, or one per turn of the episode, `[K]`, where the last holds for
all further turns. The KL estimators are for `KL(policy || reference)` and tokens sampled from the policy; their
gradients differ, because sampling itself is not differentiated.
"""

import jax
import jax.numpy as jnp

from jaxagents.losses.policy_gradient import MAX_LOG_RATIO
from jaxagents.types import Array, TokenView


def kl_k2(view: TokenView, *, coefficient: Array | float) -> Array:
    """Computes `coefficient (log_prob - reference_log_prob)^2 / 2`: biased and non-negative.

    The gradient, `coefficient (log_prob - reference_log_prob) grad log_prob`, is in expectation that of
    `KL(policy || reference)`.

    Args:
        view: view of the tokens; reads `reference_log_prob`.
        coefficient: `[]` or `[K]`.

    Returns:
        `[n, t, S]`.

    Raises:
        ValueError: there is no reference.

    References:
        Schulman (2020), "Approximating KL Divergence".
    """
    return _of_turn(coefficient, view) * 0.5 * jnp.square(_log_ratio(view))


def kl_k3(view: TokenView, *, coefficient: Array | float) -> Array:
    """Computes `coefficient (exp(d) - 1 - d)` with `d = reference_log_prob - log_prob`: unbiased and non-negative.

    The gradient, `coefficient (1 - exp(d)) grad log_prob`, is in expectation that of `KL(reference || policy)`.

    Args:
        view: view of the tokens; reads `reference_log_prob`.
        coefficient: `[]` or `[K]` (GRPO: 0.04).

    Returns:
        `[n, t, S]`.

    Raises:
        ValueError: there is no reference.

    References:
        Schulman (2020), "Approximating KL Divergence". Shao et al. (2024), "DeepSeekMath", eq. 4.
    """
    difference = jnp.minimum(-_log_ratio(view), MAX_LOG_RATIO)
    return _of_turn(coefficient, view) * (jnp.expm1(difference) - difference)


def entropy_bonus(view: TokenView, *, coefficient: Array | float) -> Array:
    """Computes `-coefficient entropy`.

    Args:
        view: view of the tokens; reads `entropy`.
        coefficient: `[]` or `[K]`.

    Returns:
        `[n, t, S]`.
    """
    return -_of_turn(coefficient, view) * jnp.where(view.mask, view.entropy, 0.0)


def _of_turn(coefficient: Array | float, view: TokenView) -> Array | float:
    """Returns the coefficient of every token."""
    if jnp.ndim(coefficient) == 0:
        return coefficient
    coefficient = jnp.asarray(coefficient)
    return coefficient[jnp.clip(view.turn, 0, coefficient.shape[0] - 1)]


def _log_ratio(view: TokenView) -> Array:
    if view.reference_log_prob is None:
        raise ValueError("`view.reference_log_prob` must be there for a KL term, got None; try learner.reference=true.")
    return jnp.where(view.mask, view.log_prob - jax.lax.stop_gradient(view.reference_log_prob), 0.0)
