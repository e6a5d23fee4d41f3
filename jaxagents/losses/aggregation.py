"""Weights that make one number of the losses of tokens: `(view, *, axis_name, ...) -> weights [B, T, S]`.

They are shown whole episodes (see `types.TokenView`), before the model has read them. The loss is
`pmean(sum(weights * loss_per_token))` over the devices of `axis_name`, or the sum without one, and is the same however
the rows lie on devices. Weights are zero where `view.mask` is False and where nothing counts at all.
"""

import math

import jax
import jax.numpy as jnp

from jaxagents.ops.episodes import sum_of_sequences
from jaxagents.types import Array, TokenView


def token_mean(view: TokenView, *, axis_name: str | None = None) -> Array:
    """Computes `mask / number of tokens that count`: every token of the batch weighs the same.

    Args:
        view: of B episodes.
        axis_name: mapped device axis.

    Returns:
        float32 `[B, T, S]`.

    References:
        Yu et al. (2025), "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", eq. 12.
    """
    return view.mask * _share(jnp.sum(view.mask, dtype=jnp.float32), axis_name)


def sequence_mean(view: TokenView, *, axis_name: str | None = None) -> Array:
    """Computes weights of the mean over tokens of a sequence, then over sequences: every sequence weighs the same.

    A sequence is all that an agent says in an episode; those without tokens that count are left out.

    Args:
        view: of B episodes.
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

    `mask / (tokens of the turn * turns of the sequence * sequences)`; turns and sequences without tokens that count
    are left out.

    Args:
        view: of B episodes.
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
    """Computes `mask / (B * max_tokens)`: the weight of a token depends on no length.

    Args:
        view: of B episodes; B is the same on all devices.
        axis_name: not used; the mean over devices is that over all rows.
        max_tokens: positive, such as the largest number of tokens that a row can have sampled; null takes T S.

    Returns:
        float32 `[B, T, S]`.

    References:
        Liu et al. (2025), "Understanding R1-Zero-Like Training: A Critical Perspective", section 3.2.
    """
    num_rows, *others = view.mask.shape
    length = math.prod(others) if max_tokens is None else max_tokens
    return view.mask / jnp.float32(num_rows * length)


def _share(count: Array, axis_name: str | None) -> Array:
    """Computes 1 / the mean count over devices, zero where that is zero."""
    if axis_name is not None:
        count = jax.lax.pmean(count, axis_name)
    return jnp.where(count > 0.0, 1.0 / jnp.where(count > 0.0, count, 1.0), 0.0)
