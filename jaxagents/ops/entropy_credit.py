"""Entropy-aware advantages (AEPO, Dong et al., 2025): uncertain tokens count more."""

import jax
import jax.numpy as jnp

from jaxagents.ops.advantages import normalize_advantage
from jaxagents.ops.episodes import credited_tokens
from jaxagents.types import Array, EpisodeView


def entropy_aware(
    view: EpisodeView, advantage: Array, *, axis_name: str | None = None, coefficient: Array | float = 0.2
) -> Array:
    """Computes `A (1 + coefficient (H - mean(H)) / std(H))` over the sampled tokens of the batch.

    Args:
        view: view of B episodes; reads `policy.entropy`.
        advantage: `[B, T, S]`.
        axis_name: mapped device axis to take means over.
        coefficient: change of the relative advantage per standard deviation of the entropy.

    Returns:
        The advantages, without gradient through the entropy.

    References:
        Dong et al. (2025), "Agentic Entropy-Balanced Policy Optimization", section 3.2 (0.2).

    Deviation: entropies are those before the update; the authors' code recomputes them in every microbatch.
    """
    entropy = jax.lax.stop_gradient(view.policy.entropy)
    score = normalize_advantage(jnp.asarray(entropy), credited_tokens(view.episode), axis_name=axis_name)
    return advantage * (1.0 + coefficient * score)
