"""Preference losses for rows of text, `(log_prob, reference_log_prob, length, pair, desirable, *, ...)`.

Every loss takes arrays over R rows, one row per answer or episode:

- `log_prob` `[R]`: sum of the log-probabilities of the sampled tokens of a row, in nats; this is trained.
- `reference_log_prob` `[R]`: the same under the reference, a constant; None for losses without a reference.
- `length` `[R]`: number of sampled tokens of a row; 0 for padding.
- `pair` int32 `[R]`: for a row that is compared, the row that is preferred to it; -1 for all others. One row may be
  preferred to several.
- `desirable` bool `[R]`: whether the row is good by itself.

It returns `(loss [R], counted bool [R])`: the objective is the mean of `loss` over the counted rows, which for losses
of pairs are the compared ones; the loss is zero elsewhere. The margin of a compared row is `x(preferred) - x(row)`,
where x is the log-probability relative to the reference or another score of a row.

SPIN (Chen et al., 2024) is `dpo` with demonstrations preferred to own answers.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxagents.types import Array

RowLoss = tuple[Array, Array]


def logistic(margin: Array, *, coefficient: Array | float = 0.1) -> Array:
    """Computes `log(1 + exp(-coefficient margin))`, any shape."""
    return jax.nn.softplus(-coefficient * margin)


def squared_margin(margin: Array, *, coefficient: Array | float = 0.1) -> Array:
    """Computes `(margin - 1 / (2 coefficient))^2`, any shape: the margin is drawn to a finite value."""
    return jnp.square(margin - 0.5 / coefficient)


def margin_of_rows(score: Array, pair: Array) -> Array:
    """Computes `score[pair] - score`, `[R]`, zero for rows that are not compared."""
    return jnp.where(pair >= 0, score[jnp.maximum(pair, 0)] - score, 0.0)


def dpo(
    log_prob: Array,
    reference_log_prob: Array | None,
    length: Array,
    pair: Array,
    desirable: Array,
    *,
    coefficient: Array | float = 0.1,
) -> RowLoss:
    """Computes DPO's `log(1 + exp(-coefficient margin))`, with the margin of log-ratios to the reference.

    Args:
        log_prob, reference_log_prob, length, pair, desirable: arrays over the rows, see the module.
        coefficient: beta, weight of the KL divergence from the reference; SPIN's lambda.

    Returns:
        `(loss, counted)`.

    Raises:
        ValueError: there is no reference.

    References:
        Rafailov et al. (2023), "Direct Preference Optimization", eq. 7. Chen et al. (2024), "Self-Play Fine-Tuning
        Converts Weak Language Models to Strong Language Models", eq. 4.7.

    Examples:
        >>> import jax.numpy as jnp
        >>> log_prob, reference = jnp.array([-1.0, -3.0]), jnp.array([-2.0, -2.0])  # Chosen, rejected.
        >>> pair = jnp.array([-1, 0])  # The second row is compared with the first.
        >>> loss, counted = dpo(log_prob, reference, jnp.ones(2), pair, pair < 0, coefficient=0.1)
        >>> round(float(loss[1]), 3), counted.tolist()
        (0.598, [False, True])
    """
    del length, desirable
    ratio = _log_ratio(log_prob, reference_log_prob)
    return _compared(lambda margin: logistic(margin, coefficient=coefficient), ratio, pair)


def ipo(
    log_prob: Array,
    reference_log_prob: Array | None,
    length: Array,
    pair: Array,
    desirable: Array,
    *,
    coefficient: Array | float = 0.1,
) -> RowLoss:
    """Computes IPO's `(margin - 1 / (2 coefficient))^2`: no pair is driven apart without limit, however certain it is.

    Args:
        log_prob, reference_log_prob, length, pair, desirable: arrays over the rows, see the module.
        coefficient: tau, weight of the KL divergence from the reference, positive.

    Returns:
        `(loss, counted)`.

    Raises:
        ValueError: there is no reference.

    References:
        Azar et al. (2024), "A General Theoretical Paradigm to Understand Learning from Human Preferences", eq. 17.
    """
    del length, desirable
    ratio = _log_ratio(log_prob, reference_log_prob)
    return _compared(lambda margin: squared_margin(margin, coefficient=coefficient), ratio, pair)


def rpo(
    log_prob: Array,
    reference_log_prob: Array | None,
    length: Array,
    pair: Array,
    desirable: Array,
    *,
    coefficient: Array | float = 0.1,
    imitation: Array | float = 1.0,
) -> RowLoss:
    """Computes `dpo + imitation NLL(preferred) / length(preferred)`: the preferred row's likelihood does not fall.

    Args:
        log_prob, reference_log_prob, length, pair, desirable: arrays over the rows, see the module.
        coefficient: beta, see `dpo`.
        imitation: weight of the negative log-likelihood.

    Returns:
        `(loss, counted)`.

    Raises:
        ValueError: there is no reference.

    References:
        Pang et al. (2024), "Iterative Reasoning Preference Optimization", eq. 1, with the weight on the other term.
    """
    loss, counted = dpo(log_prob, reference_log_prob, length, pair, desirable, coefficient=coefficient)
    likelihood = _per_token(log_prob, length)[jnp.maximum(pair, 0)]
    return loss - jnp.where(counted, imitation * likelihood, 0.0), counted


def simpo(
    log_prob: Array,
    reference_log_prob: Array | None,
    length: Array,
    pair: Array,
    desirable: Array,
    *,
    coefficient: Array | float = 2.0,
    target_margin: Array | float = 1.0,
) -> RowLoss:
    """Computes SimPO's `log(1 + exp(target_margin - coefficient margin))`, with log-probabilities per token.

    Args:
        log_prob, reference_log_prob, length, pair, desirable: arrays over the rows, see the module.
        coefficient: beta, scale of the reward (2.0 to 2.5 in the paper).
        target_margin: gamma, the margin by which the preferred reward should be higher (0.3 to 1.6 in the paper).

    Returns:
        `(loss, counted)`.

    References:
        Meng, Xia and Chen (2024), "SimPO: Simple Preference Optimization with a Reference-Free Reward", eq. 6.
    """
    del reference_log_prob, desirable
    return _compared(
        lambda margin: jax.nn.softplus(target_margin - coefficient * margin), _per_token(log_prob, length), pair
    )


def orpo(
    log_prob: Array,
    reference_log_prob: Array | None,
    length: Array,
    pair: Array,
    desirable: Array,
    *,
    coefficient: Array | float = 0.1,
) -> RowLoss:
    """Computes ORPO's `-log p(preferred) + coefficient log(1 + exp(-margin))`, with the margin of log-odds.

    `p` is the geometric mean of the probabilities of the tokens of a row, `odds = p / (1 - p)`.

    Args:
        log_prob, reference_log_prob, length, pair, desirable: arrays over the rows, see the module.
        coefficient: lambda, weight of the odds.

    Returns:
        `(loss, counted)`.

    References:
        Hong, Lee and Thorne (2024), "ORPO: Monolithic Preference Optimization without Reference Model", eq. 6 and 7.
    """
    del reference_log_prob, desirable
    per_token = _per_token(log_prob, length)
    # A certain row has infinite odds: 1e-6 bounds them and their gradient.
    log_odds = per_token - jnp.log(-jnp.expm1(jnp.minimum(per_token, -1e-6)))
    loss, counted = _compared(lambda margin: coefficient * jax.nn.softplus(-margin), log_odds, pair)
    return loss - jnp.where(counted, per_token[jnp.maximum(pair, 0)], 0.0), counted


def kto(
    log_prob: Array,
    reference_log_prob: Array | None,
    length: Array,
    pair: Array,
    desirable: Array,
    *,
    coefficient: Array | float = 0.1,
    desirable_weight: Array | float = 1.0,
    undesirable_weight: Array | float = 1.0,
) -> RowLoss:
    """Computes KTO's `weight (1 - sigmoid(+-coefficient (r - z)))`, r the log-ratio of a row, without pairs.

    The sign is + for desirable rows; gains and losses are measured from `z = max(0, mean r)` over the batch, which has
    no gradient.

    Args:
        log_prob, reference_log_prob, length, pair, desirable: arrays over the rows, see the module.
        coefficient: beta, sharpness of the sigmoid.
        desirable_weight: lambda_D, weight of desirable rows.
        undesirable_weight: lambda_U, weight of other rows.

    Returns:
        `(loss, counted)`.

    Raises:
        ValueError: there is no reference.

    References:
        Ethayarajh et al. (2024), "KTO: Model Alignment as Prospect Theoretic Optimization", eq. 8.

    Deviation: the KL divergence z is estimated from the rows themselves; the paper uses answers to other prompts.
    """
    del pair
    counted = length > 0
    ratio = jnp.where(counted, _log_ratio(log_prob, reference_log_prob), 0.0)
    reference_point = jnp.sum(ratio) / jnp.maximum(jnp.sum(counted), 1)
    gain = ratio - jax.lax.stop_gradient(jnp.maximum(reference_point, 0.0))
    sign, weight = jnp.where(desirable, 1.0, -1.0), jnp.where(desirable, desirable_weight, undesirable_weight)
    return jnp.where(counted, weight * jax.nn.sigmoid(-sign * coefficient * gain), 0.0), counted


def _compared(loss_of_margin: Callable[[Array], Array], score: Array, pair: Array) -> RowLoss:
    counted = pair >= 0
    return jnp.where(counted, loss_of_margin(margin_of_rows(score, pair)), 0.0), counted


def _log_ratio(log_prob: Array, reference_log_prob: Array | None) -> Array:
    if reference_log_prob is None:
        raise ValueError("`loss` must have a reference, got None; try learner.reference=true.")
    return log_prob - jax.lax.stop_gradient(reference_log_prob)


def _per_token(log_prob: Array, length: Array) -> Array:
    return log_prob / jnp.maximum(length, 1)
