"""Measures of novelty of observations: counts, ellipsoids of an episode's features, and rises of novelty."""

import jax
import jax.numpy as jnp

from jaxagents.types import Array


def hash_codes(features: Array, projection: Array) -> Array:
    """Computes codes from the signs of random projections, `sum_k 2^k [features @ projection > 0]_k`.

    Args:
        features: float `[..., D]`.
        projection: float `[D, K]`, drawn once from a normal distribution.

    Returns:
        int32 `[...]`, from 0 to `2^K - 1`; close features often share a code.

    References:
        Tang et al. (2017), #Exploration: A study of count-based exploration, equation 2; Charikar (2002), SimHash.
    """
    bits = (features @ projection > 0.0).astype(jnp.int32)
    return bits @ (1 << jnp.arange(projection.shape[1]))


def visit_counts(codes: Array, before: Array, first: Array, counts: Array) -> tuple[Array, Array]:
    """Counts how often codes were reached in the episode; its initial state counts as visited once.

    Args:
        codes: int32 `[T, B]`, codes of the states that steps lead to.
        before: int32 `[T, B]`, codes of the states where steps start; read in first steps.
        first: bool `[T, B]`, whether the step is the first of an episode.
        counts: int32 `[B, M]`, numbers of visits in the running episodes.

    Returns:
        int32 `[T, B]`, number of visits to the code of every step, including this one, and the counts after the last
        step.
    """

    def step(counts: Array, inputs: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        code, start, opens = inputs
        opening, reached = (jax.nn.one_hot(each, counts.shape[1], dtype=counts.dtype) for each in (start, code))
        counts = jnp.where(opens[:, None], opening, counts) + reached
        return counts, jnp.take_along_axis(counts, code[:, None], axis=1)[:, 0]

    counts, reached = jax.lax.scan(step, counts, (codes, before, first))
    return reached, counts


def novelty_rise(next_novelty: Array, novelty: Array, *, scale: Array | float = 0.5) -> Array:
    """Computes `max(next_novelty - scale novelty, 0)`, elementwise.

    Args:
        next_novelty: novelty of the state that the step leads to.
        novelty: novelty of the state where it starts.
        scale: alpha. Paper: 0.5.

    References:
        Zhang et al. (2021), NovelD: a simple yet effective exploration criterion, equation 3.
    """
    return jnp.maximum(next_novelty - scale * novelty, 0.0)


def elliptical_bonus(
    features: Array, before: Array, first: Array, inverse: Array, *, ridge: float
) -> tuple[Array, Array]:
    """Computes `phi_t^T C_{t-1}^{-1} phi_t` with `C_t = ridge I + sum_{i <= t} phi_i phi_i^T` over the episode.

    The first observation of an episode is in the sum, `i = 0`, but earns no bonus. The inverse is updated with the
    Sherman-Morrison formula.

    Args:
        features: float32 `[T, B, D]`, phi of the states that steps lead to.
        before: float32 `[T, B, D]`, phi of the states where steps start; read in first steps.
        first: bool `[T, B]`, whether the step is the first of an episode.
        inverse: float32 `[B, D, D]`, inverse for the running episodes.
        ridge: lambda, positive. Paper: 0.1.

    Returns:
        float32 `[T, B]`, and the inverse after the last step.

    References:
        Henaff et al. (2022), Exploration via elliptical episodic bonuses, equation 2 and algorithm 1; official code,
        minihack/torchbeast/src/utils.py (step 0).
    """
    fresh = jnp.broadcast_to(jnp.eye(features.shape[-1]) / ridge, inverse.shape)

    def add(inverse: Array, phi: Array) -> tuple[Array, Array]:
        turned = jnp.einsum("bij,bj->bi", inverse, phi)
        bonus = jnp.sum(phi * turned, axis=-1)
        change = turned[:, :, None] * turned[:, None, :] / (1.0 + bonus)[:, None, None]
        return inverse - change, bonus

    def step(inverse: Array, inputs: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        phi, start, opens = inputs
        return add(jnp.where(opens[:, None, None], add(fresh, start)[0], inverse), phi)

    inverse, bonus = jax.lax.scan(step, inverse, (features, before, first))
    return bonus, inverse
