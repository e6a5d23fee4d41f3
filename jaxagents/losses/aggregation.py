"""Weights that make one number of the losses of tokens: `(mask, *, axis_name, ...) -> weights`.

The loss is `pmean(sum(weights * loss_per_token))` over the devices of `axis_name`, or the sum without one, and is the
same however the rows lie on devices. Weights are zero where the mask is False and where nothing counts at all.
"""

import jax
import jax.numpy as jnp

from jaxagents.types import Array


def token_mean(mask: Array, *, axis_name: str | None = None) -> Array:
    """Computes `mask / number of tokens that count`: every token of the batch weighs the same.

    Args:
        mask: bool `[B, L]`, tokens that count.
        axis_name: mapped device axis.

    Returns:
        float32 `[B, L]`.

    References:
        Yu et al. (2025), "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", eq. 12.
    """
    return mask * _share(jnp.sum(mask, dtype=jnp.float32), axis_name)


def sequence_mean(mask: Array, *, axis_name: str | None = None) -> Array:
    """Computes weights of the mean over tokens of a row, then over rows with tokens: every row weighs the same.

    Args:
        mask: bool `[B, L]`, tokens that count.
        axis_name: mapped device axis.

    Returns:
        float32 `[B, L]`.

    References:
        Shao et al. (2024), "DeepSeekMath", eq. 3.
    """
    length = jnp.sum(mask, axis=1, keepdims=True, dtype=jnp.float32)
    return mask / jnp.maximum(length, 1.0) * _share(jnp.sum(length > 0.0, dtype=jnp.float32), axis_name)


def constant(mask: Array, *, axis_name: str | None = None, max_tokens: Array | float | None = None) -> Array:
    """Computes `mask / (B * max_tokens)`: the weight of a token depends on no length.

    Args:
        mask: bool `[B, L]`, tokens that count; B is the same on all devices.
        axis_name: not used; the mean over devices is that over all rows.
        max_tokens: positive, such as the largest number of tokens that a row can have sampled; null takes L.

    Returns:
        float32 `[B, L]`.

    References:
        Liu et al. (2025), "Understanding R1-Zero-Like Training: A Critical Perspective", section 3.2.
    """
    num_rows, length = mask.shape
    return mask / jnp.float32(num_rows * (length if max_tokens is None else max_tokens))


def _share(count: Array, axis_name: str | None) -> Array:
    """Computes 1 / the mean count over devices, zero where that is zero."""
    if axis_name is not None:
        count = jax.lax.pmean(count, axis_name)
    return jnp.where(count > 0.0, 1.0 / jnp.where(count > 0.0, count, 1.0), 0.0)
