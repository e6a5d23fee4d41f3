"""Members of the CFR family, composed of small functions: accumulation, prediction, and averaging weights."""

import jax.numpy as jnp
from jax.tree_util import Partial

from jaxagents.games.cfr import Method, Moment
from jaxagents.types import Array

# Accumulation of regrets: `(regret, instant, moment, *, numbers) -> regret`.


def summed(regret: Array, instant: Array, moment: Moment) -> Array:
    """Computes `R + r`."""
    return regret + instant


def summed_positive(regret: Array, instant: Array, moment: Moment) -> Array:
    """Computes `max(0, R + r)`, regret matching+."""
    return jnp.maximum(regret + instant, 0.0)


def discounted(
    regret: Array, instant: Array, moment: Moment, *, alpha: Array | float, beta: Array | float, floor: Array | float
) -> Array:
    """Computes `max(floor, D R + r)`, with a discount D of earlier regrets.

    `D = n^alpha / (n^alpha + 1)` for the n earlier iterations, with beta instead of alpha if R < 0.
    """
    past = moment.iteration - 1.0
    return jnp.maximum(_discount(regret, past, alpha, beta) * regret + instant, floor)


def volatile(
    regret: Array,
    instant: Array,
    moment: Moment,
    *,
    boost: Array | float,
    sensitivity: Array | float,
    scale: Array | float,
    floor: Array | float,
) -> Array:
    """Computes `max(floor, D R + g)`, with discounts that decrease with the regrets' volatility, and boosted gains.

    `g = boost r` if r > 0, else r; `v = min(1, e / scale)`; `D = n^alpha / (n^alpha + 1)` for iteration n with `alpha =
    max(0.1, 1.5 - sensitivity v)` if R >= 0, else with `beta = min(alpha, -0.1 - sensitivity v)`.
    """
    factor = _volatile_discount(regret, moment, sensitivity, scale)
    return jnp.maximum(factor * regret + _boosted(instant, boost), floor)


# Prediction: `(regret, instant, moment, *, numbers) -> prediction`.


def no_prediction(regret: Array, instant: Array, moment: Moment) -> Array:
    """Returns R."""
    return regret


def last_regret(regret: Array, instant: Array, moment: Moment) -> Array:
    """Computes `R + r`, assuming that the next regrets equal the last ones."""
    return regret + instant


def discounted_last_regret(
    regret: Array, instant: Array, moment: Moment, *, alpha: Array | float, beta: Array | float
) -> Array:
    """Computes `D R + r`, with the discount of the next iteration, see `discounted`."""
    return _discount(regret, moment.iteration, alpha, beta) * regret + instant


def volatile_last_regret(
    regret: Array,
    instant: Array,
    moment: Moment,
    *,
    boost: Array | float,
    sensitivity: Array | float,
    scale: Array | float,
    optimism: Array | float,
    patience: Array | float,
) -> Array:
    """Computes `D R + w g`, see `volatile`, with `w = optimism max(0, 1 - 0.5 v) / (1 + (n - 1) / patience)`."""
    volatility = jnp.minimum(moment.volatility / scale, 1.0)
    weight = optimism * jnp.maximum(1.0 - 0.5 * volatility, 0.0) / (1.0 + (moment.iteration - 1.0) / patience)
    factor = _volatile_discount(regret, moment, sensitivity, scale)
    return factor * regret + weight * _boosted(instant, boost)


# Weight in the average: `(moment, *, numbers) -> weight`.


def power(moment: Moment, *, gamma: Array | float) -> Array:
    """Computes `n^gamma`."""
    return moment.iteration**gamma


def volatile_power(moment: Moment, *, warm_start: Array | float, scale: Array | float) -> Array:
    """Computes `n^gamma (1 + m / scale)^0.5 / (1 + m^1.5)`, `gamma = min(4, 2 + 1.5 min(1, m / scale))`; 0 in the first
    `warm_start` iterations."""
    share = moment.magnitude / scale
    gamma = jnp.minimum(2.0 + 1.5 * jnp.minimum(share, 1.0), 4.0)
    weight = moment.iteration**gamma * jnp.sqrt(1.0 + share) / (1.0 + moment.magnitude**1.5)
    return jnp.where(moment.iteration > warm_start, weight, 0.0)


def cfr() -> Method:
    """Makes CFR, with players updated in turn.

    References:
        Zinkevich et al. (2007), "Regret Minimization in Games with Incomplete Information".
    """
    return Method(Partial(summed), Partial(no_prediction), 1.0, Partial(power, gamma=0.0))


def cfr_plus() -> Method:
    """Makes CFR+: regrets are never below zero, and averaging is linear.

    References:
        Tammelin (2014), "Solving Large Imperfect Information Games Using CFR+".
    """
    return Method(Partial(summed_positive), Partial(no_prediction), 1.0, Partial(power, gamma=1.0))


def dcfr(alpha: float = 1.5, beta: float = 0.0, gamma: float = 2.0) -> Method:
    """Makes discounted CFR.

    Args:
        alpha: exponent for the discount of positive regrets.
        beta: exponent for the discount of negative regrets.
        gamma: exponent of the averaging weights.

    References:
        Brown and Sandholm (2019), "Solving Imperfect-Information Games via Discounted Regret Minimization".
    """
    add = Partial(discounted, alpha=alpha, beta=beta, floor=-jnp.inf)
    return Method(add, Partial(no_prediction), 1.0, Partial(power, gamma=gamma))


def pcfr_plus(gamma: float = 2.0) -> Method:
    """Makes predictive CFR+.

    Args:
        gamma: exponent of the averaging weights.

    References:
        Farina, Kroer and Sandholm (2021), "Faster Game Solving via Predictive Blackwell Approachability".
    """
    return Method(Partial(summed_positive), Partial(last_regret), 1.0, Partial(power, gamma=gamma))


def pdcfr_plus(alpha: float = 2.3, gamma: float = 5.0) -> Method:
    """Makes discounted predictive CFR+.

    Args:
        alpha: exponent for the discount of regrets.
        gamma: exponent of the averaging weights.

    References:
        Xu et al. (2024), "Minimizing Weighted Counterfactual Regret with Optimistic Online Mirror Descent".
    """
    add = Partial(discounted, alpha=alpha, beta=0.0, floor=0.0)
    predict = Partial(discounted_last_regret, alpha=alpha, beta=0.0)
    return Method(add, predict, 1.0, Partial(power, gamma=gamma))


def vad_cfr(
    warm_start: int = 500,
    boost: float = 1.1,
    sensitivity: float = 0.5,
    optimism: float = 1.0,
    exponent: float = 1.5,
    scale: float = 2.0,
    floor: float = -20.0,
    patience: float = 100.0,
) -> Method:
    """Makes volatility-adaptive discounted CFR.

    Args:
        warm_start: number of iterations that do not count in the average.
        boost: factor for positive regrets.
        sensitivity: sensitivity of discounts to volatility; 0 keeps them fixed.
        optimism: initial weight of the last regrets in the prediction.
        exponent: exponent of predicted regrets in the policy.
        scale: size of regrets that counts as volatile.
        floor: lower bound of accumulated regrets.
        patience: number of iterations in which optimism halves.

    References:
        Li et al. (2026), "Discovering Multiagent Learning Algorithms with Large Language Models".
    """
    shared = {"boost": boost, "sensitivity": sensitivity, "scale": scale}
    return Method(
        accumulate=Partial(volatile, **shared, floor=floor),
        predict=Partial(volatile_last_regret, **shared, optimism=optimism, patience=patience),
        exponent=exponent,
        weight=Partial(volatile_power, warm_start=warm_start, scale=scale),
    )


def _discount(regret: Array, iteration: Array, alpha: Array | float, beta: Array | float) -> Array:
    power = iteration ** jnp.where(regret >= 0.0, alpha, beta)
    return power / (power + 1.0)


def _volatile_discount(regret: Array, moment: Moment, sensitivity: Array | float, scale: Array | float) -> Array:
    volatility = jnp.minimum(moment.volatility / scale, 1.0)
    alpha = jnp.maximum(1.5 - sensitivity * volatility, 0.1)
    beta = jnp.minimum(alpha, -0.1 - sensitivity * volatility)
    return _discount(regret, moment.iteration, alpha, beta)


def _boosted(instant: Array, boost: Array | float) -> Array:
    return jnp.where(instant > 0.0, boost * instant, instant)
