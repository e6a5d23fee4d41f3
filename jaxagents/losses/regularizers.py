"""Terms added to the losses of tokens: `(log_prob, reference_log_prob, entropy, mask, turn, *, coefficient) -> [B, L]`.

Terms are zero where the mask is False. A coefficient is one number, or one per turn of the episode, `[K]`, the last of
which holds for all further turns. The KL estimators are of `KL(policy || reference)` for tokens sampled from the
policy; what their gradients point to differs, because sampling itself is not differentiated.
"""

import jax
import jax.numpy as jnp

from jaxagents.losses.policy_gradient import MAX_LOG_RATIO
from jaxagents.types import Array


def kl_k1(
    log_prob: Array,
    reference_log_prob: Array,
    entropy: Array | None,
    mask: Array,
    turn: Array | None = None,
    *,
    coefficient: Array | float,
) -> Array:
    """Computes `coefficient (log_prob - reference_log_prob)`: unbiased, of either sign.

    The gradient is `coefficient * grad log_prob`, zero in expectation whatever the reference is: as a loss it
    regularises nothing. It is here to be compared with and to be logged; use `kl_k2` or `kl_k3`.

    Args:
        log_prob: `[B, L]`.
        reference_log_prob: `[B, L]`.
        entropy: not used.
        mask: bool `[B, L]`, tokens that count.
        turn: int32 `[B, L]`, needed where the coefficient is one per turn.
        coefficient: `[]` or `[K]`, in units of the loss per nat.

    Returns:
        `[B, L]`.

    Raises:
        ValueError: there is no reference, or no `turn` for a coefficient per turn.

    References:
        Schulman (2020), "Approximating KL Divergence".
    """
    return _of_turn(coefficient, turn) * _log_ratio(log_prob, reference_log_prob, mask)


def kl_k2(
    log_prob: Array,
    reference_log_prob: Array,
    entropy: Array | None,
    mask: Array,
    turn: Array | None = None,
    *,
    coefficient: Array | float,
) -> Array:
    """Computes `coefficient (log_prob - reference_log_prob)^2 / 2`: biased, never negative.

    The gradient, `coefficient (log_prob - reference_log_prob) grad log_prob`, is in expectation that of
    `KL(policy || reference)`.

    Args:
        log_prob: `[B, L]`.
        reference_log_prob: `[B, L]`.
        entropy: not used.
        mask: bool `[B, L]`, tokens that count.
        turn: int32 `[B, L]`, needed where the coefficient is one per turn.
        coefficient: `[]` or `[K]`, in units of the loss per nat.

    Returns:
        `[B, L]`.

    Raises:
        ValueError: there is no reference, or no `turn` for a coefficient per turn.

    References:
        Schulman (2020), "Approximating KL Divergence".
    """
    return _of_turn(coefficient, turn) * 0.5 * jnp.square(_log_ratio(log_prob, reference_log_prob, mask))


def kl_k3(
    log_prob: Array,
    reference_log_prob: Array,
    entropy: Array | None,
    mask: Array,
    turn: Array | None = None,
    *,
    coefficient: Array | float,
) -> Array:
    """Computes `coefficient (exp(d) - 1 - d)` with `d = reference_log_prob - log_prob`: unbiased, never negative.

    The gradient, `coefficient (1 - exp(d)) grad log_prob`, is in expectation that of `KL(reference || policy)`.

    Args:
        log_prob: `[B, L]`.
        reference_log_prob: `[B, L]`.
        entropy: not used.
        mask: bool `[B, L]`, tokens that count.
        turn: int32 `[B, L]`, needed where the coefficient is one per turn.
        coefficient: `[]` or `[K]`, in units of the loss per nat (GRPO: 0.04).

    Returns:
        `[B, L]`.

    Raises:
        ValueError: there is no reference, or no `turn` for a coefficient per turn.

    References:
        Schulman (2020), "Approximating KL Divergence". Shao et al. (2024), "DeepSeekMath", eq. 4.
    """
    difference = jnp.minimum(-_log_ratio(log_prob, reference_log_prob, mask), MAX_LOG_RATIO)
    return _of_turn(coefficient, turn) * (jnp.expm1(difference) - difference)


def entropy_bonus(
    log_prob: Array,
    reference_log_prob: Array | None,
    entropy: Array,
    mask: Array,
    turn: Array | None = None,
    *,
    coefficient: Array | float,
) -> Array:
    """Computes `-coefficient entropy`.

    Args:
        log_prob: not used.
        reference_log_prob: not used.
        entropy: `[B, L]`, of the distribution that the token was sampled from, in nats.
        mask: bool `[B, L]`, tokens that count.
        turn: int32 `[B, L]`, needed where the coefficient is one per turn.
        coefficient: `[]` or `[K]`, in units of the loss per nat.

    Returns:
        `[B, L]`.

    Raises:
        ValueError: there are no entropies, or no `turn` for a coefficient per turn.
    """
    if entropy is None:
        raise ValueError("`entropy` must be given to entropy_bonus, got None; try computing it with the log-probs.")
    return -_of_turn(coefficient, turn) * jnp.where(mask, entropy, 0.0)


def _of_turn(coefficient: Array | float, turn: Array | None) -> Array | float:
    """Returns the coefficient of every token."""
    if jnp.ndim(coefficient) == 0:
        return coefficient
    if turn is None:
        raise ValueError("`turn` must be given with a coefficient per turn, got None; try a single number.")
    coefficient = jnp.asarray(coefficient)
    return coefficient[jnp.clip(turn, 0, coefficient.shape[0] - 1)]


def _log_ratio(log_prob: Array, reference_log_prob: Array | None, mask: Array) -> Array:
    if reference_log_prob is None:
        raise ValueError("`reference_log_prob` must be given to a KL term, got None; try a learner with a reference.")
    return jnp.where(mask, log_prob - jax.lax.stop_gradient(reference_log_prob), 0.0)
