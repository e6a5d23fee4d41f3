"""Keeps only the most probable tokens: exact top-k, top-p and min-p without sorting the vocabulary."""

import jax
import jax.numpy as jnp

from jaxagents.types import Array


def truncate(
    logits: Array,
    *,
    temperature: Array | float | None = None,
    top_k: Array | int | None = None,
    top_p: Array | float | None = None,
    min_p: Array | float | None = None,
) -> Array:
    """Excludes all tokens except the most probable ones.

    With p the probabilities at the temperature, the `top_k` most probable tokens are kept first; of these, the fewest
    most probable ones whose mass is at least the fraction `top_p` of theirs; of these, those with `p >= min_p max p`.
    Tokens that are as probable as the last one kept are also kept, so that the most probable ones always are.

    All three are thresholds. Those of `top_k` and `top_p` are found by bisection over the bit patterns of the numbers
    from 0 to infinity, which are integers in the same order: 31 sums over the vocabulary, exact to the last bit.

    Args:
        logits: float32 `[..., V]`; entries of -inf are unchanged.
        temperature: `[]` or `[...]`, divisor of the logits for the thresholds; None: 1.
        top_k: `[]` or `[...]`, number of tokens, at least one; None: not used.
        top_p: `[]` or `[...]`, fraction of the mass, in (0, 1]; None: not used.
        min_p: `[]` or `[...]`, fraction of the largest probability, in [0, 1]; None: not used.

    Returns:
        The logits, with -inf for tokens that are excluded.

    References:
        Holtzman et al. (2020), "The Curious Case of Neural Text Degeneration", equations 2 and 3 (`top_p`).
        Nguyen et al. (2025), "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs", section 3.
    """
    below = jnp.max(logits, axis=-1, keepdims=True) - logits  # 0 for the most probable token.
    keep = jnp.ones_like(below, bool)
    if top_k is not None:
        wanted = jnp.clip(_column(top_k, logits), 1, below.shape[-1])
        keep = below <= _reach(below, jnp.ones_like(below), wanted)
    if top_p is not None or min_p is not None:
        heat = 1.0 if temperature is None else jnp.maximum(_column(temperature, logits), 1e-6)
        probability = jnp.where(keep, jnp.exp(-below / heat), 0.0)  # The largest one is 1.
        if top_p is not None:
            share = _column(top_p, logits)
            # The whole mass includes tokens that are too improbable to change a sum.
            wanted = jnp.where(share < 1.0, share * jnp.sum(probability, axis=-1, keepdims=True), jnp.inf)
            keep &= below <= _reach(below, probability, wanted)
        if min_p is not None:
            keep &= probability >= _column(min_p, logits)
    return jnp.where(keep, logits, -jnp.inf)


def _reach(below: Array, weight: Array, wanted: Array) -> Array:
    """Returns the least t with `sum of weight where below <= t` at least `wanted`, infinity if none, `[..., 1]`."""

    # A sum in a fixed order never decreases when a term grows, so there is one point where it reaches `wanted`.
    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        reached = jnp.where(below <= jax.lax.bitcast_convert_type(middle, jnp.float32), weight, 0.0)
        enough = jnp.sum(reached, axis=-1, keepdims=True) >= wanted
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    low = jnp.zeros((*below.shape[:-1], 1), jnp.int32)
    high = jnp.full_like(low, jax.lax.bitcast_convert_type(jnp.float32(jnp.inf), jnp.int32))
    return jax.lax.bitcast_convert_type(jax.lax.fori_loop(0, 31, halve, (low, high))[1], jnp.float32)


def _column(setting: Array | float, logits: Array) -> Array:
    """Returns a scalar or `[...]` as `[..., 1]`."""
    return jnp.broadcast_to(jnp.asarray(setting, jnp.float32), logits.shape[:-1])[..., None]
