"""Predictions of returns by action-value functions: expectations, probabilities of atoms, or quantiles."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from jaxagents.ops.value_distributions import CategoricalValues, QuantileValues, Values
from jaxagents.types import Array


class ReturnDistribution(NamedTuple):
    """The meaning of a network's outputs for every action.

    Attributes:
        num_outputs: K, number of outputs for every action.
        to_values: `(outputs [..., A, K], fractions [..., K] | None) -> values`.
        num_fractions: number of fractions of the distribution that are drawn for every step to learn from; 0 if they
            are fixed.
        num_acting_fractions: the same for choosing an action.
        num_cosines: number of cosines in the embedding of those fractions, see `networks.heads.CosineEmbedding`.
    """

    num_outputs: int
    to_values: Callable[[Array, Array | None], Values]
    num_fractions: int = 0
    num_acting_fractions: int = 0
    num_cosines: int = 1

    def spread(self, leading: tuple[int, ...], drawn: Array | None) -> Array:
        """Returns fractions `[*leading, K]`: drawn ones `[..., K]`, or midpoints, as many as for choosing an action."""
        if drawn is None:
            drawn = _midpoints(self.num_acting_fractions)
        drawn = drawn.reshape(*drawn.shape[:-1], *(1,) * (len(leading) + 1 - drawn.ndim), drawn.shape[-1])
        return jnp.broadcast_to(drawn, (*leading, drawn.shape[-1]))


EXPECTATIONS = ReturnDistribution(num_outputs=1, to_values=lambda outputs, _: outputs[..., 0])
"""One number per action, its expectation."""


def categorical(*, low: float, high: float, num_atoms: int = 51) -> ReturnDistribution:
    """Predicts the probabilities of fixed returns (C51).

    Args:
        low: first atom, in units of the return.
        high: last atom. Returns beyond the two count as the nearest one.
        num_atoms: Z, number of atoms. Paper: 51.

    Raises:
        ValueError: the bounds are not in order, or there are fewer than two atoms.

    References:
        Bellemare, Dabney and Munos (2017), A distributional perspective on reinforcement learning.
    """
    if not math.isfinite(high - low) or not low < high:
        raise ValueError(f"`low` must be less than `high`, and both finite, got {low} and {high}; try -10 and 10.")
    if num_atoms < 2:
        raise ValueError(f"`num_atoms` must be at least 2, got {num_atoms}; try 51.")
    return ReturnDistribution(
        num_outputs=num_atoms,
        to_values=lambda outputs, _: CategoricalValues(logits=outputs, low=float(low), high=float(high)),
    )


def quantiles(*, num_quantiles: int = 200) -> ReturnDistribution:
    """Predicts quantiles at the midpoints of equal parts of the distribution (QR-DQN).

    Args:
        num_quantiles: K, number of quantiles. Paper: 200.

    Raises:
        ValueError: `num_quantiles` is not positive.

    References:
        Dabney et al. (2018), Distributional reinforcement learning with quantile regression.
    """
    if num_quantiles < 1:
        raise ValueError(f"`num_quantiles` must be at least 1, got {num_quantiles}; try 200.")

    def to_values(outputs: Array, fractions: Array | None) -> QuantileValues:
        del fractions
        midpoints = _midpoints(num_quantiles).reshape((1,) * (outputs.ndim - 2) + (-1,))
        shape = (*outputs.shape[:-2], num_quantiles)
        return QuantileValues(quantiles=outputs, fractions=jnp.broadcast_to(midpoints, shape))

    return ReturnDistribution(num_outputs=num_quantiles, to_values=to_values)


def implicit_quantiles(
    *, num_fractions: int = 64, num_acting_fractions: int = 32, num_cosines: int = 64
) -> ReturnDistribution:
    """Predicts quantiles at fractions that are drawn again for every step (IQN).

    Args:
        num_fractions: N = N', number drawn for the prediction, and again for the target. Paper: 64.
        num_acting_fractions: K, number whose mean chooses an action, in acting and for successors in targets. Paper:
            32.
        num_cosines: number of cosines in the embedding. Paper: 64.

    Raises:
        ValueError: a count is not positive.

    References:
        Dabney et al. (2018), Implicit quantile networks for distributional reinforcement learning, equations 2 and 3;
        Dopamine, implicit_quantile_agent.py (which fractions choose the successor's action).

    Deviation: greedy evaluation uses the midpoints of equal parts.
    """
    counts = {"num_fractions": num_fractions, "num_acting_fractions": num_acting_fractions, "num_cosines": num_cosines}
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"`{name}` must be at least 1, got {count}; try 32.")

    def to_values(outputs: Array, fractions: Array | None) -> QuantileValues:
        return QuantileValues(quantiles=outputs, fractions=fractions)

    return ReturnDistribution(num_outputs=1, to_values=to_values, **counts)


def _midpoints(num_parts: int) -> Array:
    return (jnp.arange(num_parts) + 0.5) / num_parts
