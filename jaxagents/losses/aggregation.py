"""Weights that reduce token losses to one number: `(view, *, axis_name, ...) -> weights [B, T, S]`.

They are computed from whole episodes (see `types.TokenView`), before the model has read them. The loss is
`pmean(sum(weights * loss_per_token))` over the devices of `axis_name`, or the sum without one, and does not depend on
how the rows are spread over devices. Weights are zero if `view.mask` is False, and all zero if no token counts.
"""

import math

import jax
import jax.numpy as jnp

from jaxagents.ops.episodes import sum_of_sequences
from jaxagents.types import Array, TokenView


def token_mean(view: TokenView, *, axis_name: str | None = None) -> Array:
    """Computes `mask / number of tokens that count`: all tokens of the batch have equal weights.

    Args:
        view: view of B episodes.
        axis_name: mapped device axis.

    Returns:
        float32 `[B, T, S]`.

    References:
        Yu et al. (2025), "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", eq. 12.
    """
    return view.mask * _share(jnp.sum(view.mask, dtype=jnp.float32), axis_name)


def sequence_mean(view: TokenView, *, axis_name: str | None = None) -> Array:
    """Computes weights of the mean over tokens of a sequence, then over sequences: all sequences have equal weights.

    A sequence is everything that an agent says in an episode; sequences without tokens that count are left out.

    Args:
        view: view of B episodes.
        axis_name: mapped device axis.

    Returns:
        float32 `[B, T, S]`.

    References:
        Shao et al. (2024), "DeepSeekMath", eq. 3.
    """
    length = sum_of_sequences(view, view.mask.astype(jnp.float32))
    weight = view.mask / jnp.maximum(length, 1.0)
    return weight * _share(jnp.sum(weight), axis_name)


def turn_mean(view: TokenView, *, axis_name: str | None = None) -> Array:
    """Computes weights of the mean over tokens of a turn, then over turns of a sequence, then over sequences.

    `mask / (tokens of the turn * turns of the sequence * sequences)`; turns and sequences without tokens that count are
    left out.

    Args:
        view: view of B episodes.
        axis_name: mapped device axis.

    Returns:
        float32 `[B, T, S]`.

    References:
        Li et al. (2025), "In-the-Flow Agentic System Optimization for Effective Planning and Tool Use" (Flow-GRPO).
    """
    tokens = jnp.sum(view.mask, axis=2, keepdims=True, dtype=jnp.float32)
    of_turn = view.mask / jnp.maximum(tokens, 1.0)
    weight = of_turn / jnp.maximum(sum_of_sequences(view, of_turn), 1.0)
    return weight * _share(jnp.sum(weight), axis_name)


def constant(view: TokenView, *, axis_name: str | None = None, max_tokens: Array | float | None = None) -> Array:
    """Computes `mask / (B * max_tokens)`: the weight of a token does not depend on lengths.

    Args:
        view: view of B episodes; B is the same on all devices.
        axis_name: not used; the mean over devices is the mean over all rows.
        max_tokens: positive number, such as the greatest number of sampled tokens in a row; null takes T S.

    Returns:
        float32 `[B, T, S]`.

    References:
        Liu et al. (2025), "Understanding R1-Zero-Like Training: A Critical Perspective", section 3.2.
    """
    num_rows, *others = view.mask.shape
    length = math.prod(others) if max_tokens is None else max_tokens
    return view.mask / jnp.float32(num_rows * length)


def _share(count: Array, axis_name: str | None) -> Array:
    """Computes 1 / the mean count over devices, or zero if that mean is zero."""
    if axis_name is not None:
        count = jax.lax.pmean(count, axis_name)
    return jnp.where(count > 0.0, 1.0 / jnp.where(count > 0.0, count, 1.0), 0.0)
